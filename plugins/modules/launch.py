#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: launch
short_description: Run one distributed training job and follow it to its end
description:
  - Plans the placement of all ranks, renders the launcher's command, runs it on the head, shows progress and rank
    output live, ends whatever the job leaves, and brings per-rank output and a truthful result home to O(runs_dir).
  - The cluster is the inventory. Group C(head) has the one host that runs the launcher, group C(workers) the hosts that
    run ranks. Host variable C(slots) says how many ranks a worker takes (default its GPUs, else its cores).
  - Host variables C(torchfleet_home), C(torchfleet_python), C(torchfleet_mpirun), C(torchfleet_mpiexec) and
    C(torchfleet_srun) say where things are on a node; the defaults are where the roles of this collection install them.
    C(torchfleet_env) has environment of that node's ranks.
  - A job succeeds only if every planned rank left a record that says so. The launcher's exit status is no evidence.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  workload:
    description: Name of a program in C(workloads/), or path of a script or executable on the controller.
    type: str
    default: mnist
  workload_args:
    description: Its arguments, as a list, or as one text that is split as a shell does.
    type: raw
    default: []
  backend:
    description:
      - What carries the collectives. The program finds it in E(TORCHFLEET_BACKEND).
      - The default is V(nccl) where every worker has GPUs and a torch that can use them, else V(gloo).
      - V(nccl) is RCCL on AMD GPUs. What the installed torch does not have is refused, with who provides it.
    type: str
    choices: [gloo, nccl, xccl, ucc, mpi, ccl]
  launcher:
    description:
      - The program that starts the ranks. Each is rendered in the dialect of the version that is installed.
      - V(srun) and V(sbatch) are for a Slurm site. Its nodes are the workers, the head is where C(srun) is.
    type: str
    choices: [openmpi, mpich, intelmpi, torchrun, srun, sbatch]
    default: openmpi
  launcher_args:
    description:
      - More options for the launcher, as a list, or as one text that is split as a shell does. They are tried before
        anything starts, and win over NICs and binding with a warning. What places ranks is refused.
    type: raw
    default: []
  map_by:
    description: Whether ranks fill each node before the next (V(slot)), or take the nodes in turn (V(node)).
    type: str
    choices: [slot, node]
    default: slot
  bind_to:
    description: What each rank is bound to. A rank bound to one core trains many times slower than one that is not.
    type: str
    choices: [none, core, numa, socket]
    default: none
  ports:
    description:
      - First and last port that a firewall lets through, such as C(20000-20999), for the launcher, the rendezvous and
        MPI.
    type: str
  rendezvous:
    description: How torchrun's agents find each other.
    type: str
    choices: [static, c10d]
    default: static
  np:
    description: Number of ranks. The default is all slots.
    type: int
  nodes:
    description: Takes only these of the workers.
    type: list
    elements: str
    default: []
  ranks_per_node:
    description: Takes so many slots of a node at most.
    type: int
  job_timeout:
    description:
      - Seconds after which the job is ended as C(timed_out). The default is no limit. Under V(srun) and V(sbatch) they
        begin when the first ranks are there, not while the job waits in the queue.
    type: float
  job_env:
    description:
      - Environment of every rank. Values may hold anything but NUL; they are on no command line of a node.
      - What comes from a vault, what O(secret_names) names, and what has a usual name of a secret (C(HF_TOKEN),
        C(WANDB_API_KEY), C(DATABASE_URL)) is in no file and in no report, but in the environment of the ranks alone.
      - Give secrets as C(-e @file), best encrypted by C(ansible-vault). What is typed after C(-e) everybody on the
        controller can read in its list of processes.
    type: dict
    default: {}
  secret_names:
    description: Names in O(job_env) and C(torchfleet_env) whose values are secret too, beside those that say so.
    type: list
    elements: str
    default: []
  job_id:
    description: Name of the run. The default is made of the time, the workload and a few random letters.
    type: str
  runs_dir:
    description: Directory on the controller for the runs, relative to where C(ansible-playbook) was started.
    type: path
    default: runs
  show_ranks:
    description: Ranks whose output is shown live, as a list, or V(all). Files have the output of every rank anyway.
    type: raw
    default: [0]
  master_port:
    description:
      - Port of rank 0's rendezvous, one of O(ports) if they are given. The default is a free one. If it is taken
        another is used, with a warning.
    type: int
  grace:
    description:
      - Seconds between SIGTERM and SIGKILL when ranks are ended (default 30 for a process with a handler for SIGTERM,
        else 2). What a process started is asked when it is gone.
    type: float
  lease:
    description:
      - Seconds of silence after which a node, or the head, is given up; each side of a cut then ends its ranks. From 5
        to 3600. A network or a node that stands still for less ends no job.
    type: float
    default: 60
  fetch_limit:
    description:
      - Bytes of all files of a run that are fetched, such as C(500M) or C(2G). The rest stays on the nodes, and a line
        says so. C(clean.yml) fetches it, up to half of the free disk or its own C(fetch_limit).
    type: str
    default: 1G
  exclusive:
    description:
      - Refuses to start where another job has ranks on one of the nodes. The default is a warning that names it and its
        owner. It is asked again when the job is staged on each node, so of two jobs that start at once, of which one is
        to be alone, one is refused. Whoever comes later is not kept away, but warned.
      - Jobs of other homes, mostly other users', are known by their processes, where those may be looked at. Where two
        start in the same second, those of different homes may both pass, and those of different heads both be refused.
    type: bool
    default: false
  result_query:
    description: JMESPath expression; its value in C(result.json) is printed as JSON at the end.
    type: str
requirements:
  - jmespath and rich on the controller
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
attributes:
  check_mode:
    description: Prints placement, host file, environment and command with all reasons, and starts nothing.
seealso:
  - module: torchfleet.cluster.gather
  - module: torchfleet.cluster.reap
"""

EXAMPLES = r"""
- name: Train the digits on all slots
  torchfleet.cluster.launch:
    workload: mnist
    workload_args: --epochs 5
  run_once: true

- name: Run a script of one's own with two ranks under torchrun, for an hour at most
  torchfleet.cluster.launch:
    workload: ~/train.py
    launcher: torchrun
    np: 2
    job_timeout: 3600
    job_env:
      WANDB_MODE: offline
  run_once: true
"""

RETURN = r"""
job_id:
  description: Name of the run.
  returned: when the input was accepted
  type: str
  sample: 20261120-101500-mnist-3f9a2c
run_dir:
  description: Directory on the controller with plan.json, command.txt, ranks/, metrics.jsonl and result.json.
  returned: when the job was started
  type: str
  sample: /home/me/torchfleet/runs/20261120-101500-mnist-3f9a2c
state:
  description: C(succeeded), C(failed), C(timed_out), C(cancelled) or C(lost).
  returned: when the job was started
  type: str
  sample: succeeded
command:
  description: The launcher's command.
  returned: in check mode
  type: list
  elements: str
"""
