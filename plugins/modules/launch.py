#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: launch
short_description: Run one distributed training job and fetch its results
description:
  - Plans the placement of all ranks, runs the launcher on the head, shows progress and rank output live, ends all
    processes that the job leaves, and fetches the output of each rank and a verified result to O(runs_dir).
  - The inventory describes the cluster. Group C(head) has the one host that runs the launcher, group C(workers) the
    hosts that run ranks. Host variable C(slots) is the number of ranks of a worker (default its GPUs, else its cores).
  - Host variables C(torchfleet_home), C(torchfleet_python), C(torchfleet_mpirun), C(torchfleet_mpiexec) and
    C(torchfleet_srun) are paths on a node. The defaults are the paths where this collection's roles install.
    C(torchfleet_env) adds environment variables to that node's ranks.
  - A job succeeds only if every planned rank left a record of its success. The launcher's exit status does not count.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  workload:
    description:
      - Name of a program in C(workloads/), or path of a script or executable on the controller.
      - Or C(https://host/train.py) with O(sha256), or C(git+https://host/repository@COMMIT#path/train.py).
    type: str
    default: mnist
  workload_args:
    description: Arguments of the program, as a list, or as one text that is split as a shell does.
    type: raw
    default: []
  backend:
    description:
      - The backend of C(torch.distributed). The program finds it in E(TORCHFLEET_BACKEND).
      - The default is V(nccl) if every worker has GPUs and a torch that supports them, else V(gloo).
      - V(nccl) is RCCL on AMD GPUs. A backend that the installed torch does not have is refused; the message says who
        provides it.
    type: str
  launcher:
    description:
      - The program that starts the ranks. Its options are chosen for the installed version.
      - V(srun) and V(sbatch) are for a Slurm site. Its nodes are the workers; the head is the host that has C(srun).
    type: str
    default: openmpi
  launcher_args:
    description:
      - More options for the launcher, as a list, or as one text that is split as a shell does. They are tested before
        the job starts, and override NICs and binding with a warning. Options that place ranks are refused.
    type: raw
    default: []
  map_by:
    description: Whether ranks fill one node after the other (V(slot)), or go to the nodes in turn (V(node)).
    type: str
    choices: [slot, node]
    default: slot
  bind_to:
    description: What each rank is bound to. A rank bound to one core trains many times slower than an unbound one.
    type: str
    choices: [none, core, numa, socket]
    default: none
  ports:
    description:
      - Ports that the firewall allows, such as C(20000-20999), for the launcher, the rendezvous and MPI.
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
    description: Use only these workers. The default is all.
    type: list
    elements: str
    default: []
  ranks_per_node:
    description: Use at most this many slots of each node.
    type: int
  job_timeout:
    description:
      - Seconds after which the job is ended as C(timed_out). The default is no limit. Time in a queue does not count;
        under V(srun) and V(sbatch) the time begins when the first ranks start.
    type: float
  hang_look:
    description:
      - Seconds in which nothing comes from the job (no output or report that is shown), after which its ranks are
        looked at. If they neither write nor all compute, and some rank keeps the others waiting, a warning names it.
        The job goes on. V(0) is never. M(torchfleet.cluster.look) looks at any time, and so does Enter on the
        terminal in which the playbook runs.
    type: float
    default: 60
  hang_end:
    description:
      - End a job that hangs, as C(failed). It hangs if two looks in a row,
        O(hang_look) seconds apart, find that the same ranks keep the others waiting, each in the same place, or wait
        for each other in different calls. With V(60) it is ended some 130 seconds after its last sign of life.
      - The head looks, so this holds with O(detach) too. O(max_restarts) starts the job again, as after other failures.
    type: bool
    default: false
  profile:
    description:
      - Seconds from 1 to 60, such as V(10s), that PyTorch's profiler records when the ranks have met some times. The
        traces are C(profile/rank-N.trace.json.gz) in the run, and a table says what each rank spent its time on.
      - Of a program without a process group of PyTorch, or one that ends before, nothing comes, and a line says so.
    type: str
  profile_ranks:
    description: Ranks that are profiled, as a list, or V(all).
    type: raw
    default: all
  job_env:
    description:
      - Environment variables of every rank. Values may contain any character but NUL, and appear on no command line of
        a node.
      - Secrets appear in no file and no report, only in the environment of the ranks. A value is secret if it comes
        from a vault, if O(secret_names) names it, or if its name is usual for a secret (C(HF_TOKEN),
        C(WANDB_API_KEY), C(DATABASE_URL)).
      - Give secrets as C(-e @file), best encrypted by C(ansible-vault). Every user of the controller can read what is
        typed after C(-e) in the list of processes.
    type: dict
    default: {}
  secret_names:
    description: More names in O(job_env) and C(torchfleet_env) whose values are secret.
    type: list
    elements: str
    default: []
  job_id:
    description: Name of the run. The default consists of the time, the workload and a few random letters.
    type: str
  runs_dir:
    description: Directory on the controller for the runs, relative to the directory where C(ansible-playbook) runs.
    type: path
    default: runs
  show_ranks:
    description: Ranks whose output is shown live, as a list, or V(all). The output of all ranks is in files anyway.
    type: raw
    default: [0]
  master_port:
    description:
      - Port of rank 0's rendezvous, one of O(ports) if these are given. The default is a free port. If the port is in
        use, another one is chosen, with a warning.
    type: int
  grace:
    description:
      - Seconds between SIGTERM and SIGKILL when ranks are ended (default 30 for a process with a handler for SIGTERM,
        else 2). Child processes get SIGTERM when their parent is gone.
    type: float
  lease:
    description:
      - Seconds without a message after which a node or the head counts as lost. Each side then ends its ranks. From 5
        to 3600. A shorter pause of a network or node does not end the job.
      - With O(target=kubernetes) the seconds that the API may give the controller no answer; pods end when the
        controller was silent for 120 more.
    type: float
    default: 60
  fetch_limit:
    description:
      - Limit for the bytes of a run's files that are fetched, such as C(500M) or C(2G). The rest stays on the nodes,
        and a line says so. C(clean.yml) fetches it, up to half of the free disk or its own C(fetch_limit).
    type: str
    default: 1G
  ship:
    description:
      - Copy the folder of the script to every node. What C(.torchfleetignore) beside the script names is left out, in
        the words of gitignore.
      - With V(false) nothing is copied, for a file system that all nodes share. The script must be at the same path on
        every node, with the same content, and ranks work in its folder.
    type: bool
    default: true
  data:
    description:
      - A data set for the ranks, a folder or file on the controller. They find its path in E(TORCHFLEET_DATA).
      - It is copied to every worker of the job below C(torchfleet_home), once, by content; later jobs use it too. What
        a start that was interrupted has sent is not sent again. Each node checks the SHA-256 of what it writes.
      - It leaves the controller once, and the head sends it on. If nodes reach each other (C(ssh_mesh_any_to_any)), it
        sends to two of them, each of these on to two, and so on.
      - If this machine is the whole cluster nothing is copied, and the path itself is used.
    type: path
  data_keep:
    description: How many data sets stay on each node, those that were used last. 0 keeps all. One that a running job
      reads stays in any case.
    type: int
    default: 2
  collect:
    description:
      - Globs of files that ranks write, relative to their working directory, as a list or as one text that is split as
        a shell does. When the job is over, also after a failure, what matches and was written by the job comes home to
        C(artifacts/<host>/) in the run directory. C(artifacts.json) there lists host, path, bytes and SHA-256.
      - C(**) stands for any number of directories. A directory that matches comes with all in it. Links are not
        followed. A glob that matches nothing is a warning.
    type: raw
    default: []
  collect_files:
    description: How many files a node may send for O(collect). A node with more sends none, and a line says so.
    type: int
    default: 10000
  collect_limit:
    description: How many bytes a node may send for O(collect), such as C(20G). A node with more sends none.
    type: str
    default: 10G
  collect_every:
    description:
      - Seconds from one collection to the next while the job runs and is followed, such as V(300) for checkpoints of a
        long job. Output and metrics come, too. The default is to collect when the job is over.
      - What comes of a node takes the place of what came of it before, once it is all there. A node with a file that is
        just being written is left as it was until the next time. A collection that fails is a warning.
      - With O(detach) it is noted for who follows the job with C(playbooks/jobs.yml -e do=attach) or C(-e do=wait) on
        this controller. While nobody does, nothing is collected.
    type: float
  rdma:
    description:
      - Whether to use RDMA where all nodes of the job have it. With V(false) the data goes over the NIC by TCP, for
        instance to see what RDMA is worth.
    type: bool
    default: true
  exclusive:
    description:
      - Refuse to start if another job has ranks on one of the nodes. The default is a warning with the name and the
        owner of that job. The check is repeated when the job is staged on each node, so if two jobs start at once and
        one of them is exclusive, one is refused. A job that starts later is not refused, but warned.
      - Jobs with another home, mostly those of other users, are recognised by their processes if these are readable.
        If two jobs start in the same second, both may start if their homes differ, and both may be refused if their
        heads differ.
    type: bool
    default: false
  sample:
    description:
      - Read once a second what the ranks take of their nodes, which is CPU, memory, swap, disks, /dev/shm, network and
        GPUs. C(usage.json) in the run directory has it over time, the result and the closing lines have the figures,
        and what is out of the ordinary. It costs less than 1 % of a core on each node.
      - V(false) starts no such reader. Times and memory of ranks are in the result all the same.
    type: bool
    default: true
  export:
    description:
      - Write the run for programs of others too, as a list or with commas between them.
      - V(tensorboard) writes C(tensorboard/rank<n>) and C(tensorboard/node-<host>) into the run directory, event files
        of what ranks reported and of what they took of their nodes.
      - V(prometheus) writes C(metrics.prom), gauges for the textfile collector of node_exporter.
    type: raw
    default: []
  detach:
    description:
      - Return when the job runs. It goes on at the head without this controller, which may be switched off.
      - M(torchfleet.cluster.jobs), which C(playbooks/jobs.yml) uses, lists, follows and ends it from any controller.
      - With O(max_restarts) the head starts it again, on the same nodes and under the same name.
    type: bool
    default: false
  queue:
    description:
      - Wait until no job of this cluster runs on the nodes of this one, and none that came before waits for them. The
        default is to start at once, with a warning.
      - The queue is that of C(torchfleet_home) on the head. It is first come, first served. A job that needs none of
        the nodes that jobs before it need does not wait for them.
      - What can be refused is refused before the job waits. The nodes are looked at anew just before it starts.
      - With O(detach) the head waits and starts the job. Otherwise the job waits with this controller, and leaves the
        queue when that ends or says nothing for O(lease). In both cases C(playbooks/jobs.yml) lists it, and
        C(-e do=cancel) takes it out.
      - Not for V(srun) and V(sbatch), which have a queue of their own. Each start of O(max_restarts) waits anew, but a
        detached job keeps its nodes from one attempt to the next.
    type: bool
    default: false
  queue_timeout:
    description: Seconds that a job waits at most with O(queue). Then it is not started, and the task fails.
    type: float
  checkpoint_dir:
    description:
      - Absolute path of a directory on the nodes. It is made if it is not there, and programs find it in
        E(TORCHFLEET_CHECKPOINT_DIR). It outlives the job.
      - With O(max_restarts) the default is C(checkpoints/<job id>) below C(torchfleet_home), the same for all attempts.
    type: str
  notice:
    description:
      - Seconds before the end of O(job_timeout) at which each rank gets SIGUSR1. Only the first process of a rank that
        has a handler for it gets it. A program that saves its work then and exits with status 75 asks to be run again.
    type: float
  max_restarts:
    description:
      - How often the job is started again. Each attempt is a job and a run of its own, with the names C(<job id>-r1),
        C(<job id>-r2) and so on. C(attempts.json) in the last run lists them all. With O(detach) all attempts are one
        job, and C(attempts/<n>) in its run has the output of the earlier ones.
      - A job that failed twice in a row in the same way, without progress in between, is not started a third time.
      - A program finds in E(TORCHFLEET_RESTART_COUNT) how often it was started before, and in
        E(TORCHFLEET_RESTART_REASON) the state of the attempt before.
      - A worker without ranks takes the place of a node that does not answer, or that failed twice. Without such a
        worker the job waits ten minutes for a node that does not answer, and then ends. With O(detach) the nodes stay
        the same, and the job ends if one failed twice.
      - Before an attempt that follows a failure there is a pause of 1 second, which doubles with each further failure
        without progress, up to 5 minutes.
    type: int
    default: 0
  min_nodes:
    description:
      - With O(max_restarts) the job goes on with fewer nodes, and as many ranks as these have slots, if no worker is
        free to take the place of a node that does not answer, or that failed twice. This is how many it needs at least.
        The default is to have as many ranks as at first, or to end.
      - Not with O(detach).
    type: int
  restart_on:
    description: The states in which a job is started again. A job that a person has ended is not.
    type: list
    elements: str
    choices: [saved, failed, lost, timed_out]
    default: [saved, failed, lost]
  restart_by:
    description:
      - Who starts the job again. V(torchfleet) starts a new job, with a new launcher, on nodes that are looked at anew.
      - With V(torchrun) torchrun's agents start all ranks again in the running job, on the same nodes and without a new
        launch, which is faster. All starts are one job then, and C(attempts/<n>) in its run has the output of the
        earlier ones. The rule when that is done is the same, O(restart_on) has no more than V(saved) and V(failed).
      - V(torchrun) needs O(launcher=torchrun) and O(max_restarts), and has C(c10d) as O(rendezvous). A node that is
        lost, or one whose agent died, ends the job.
    type: str
    choices: [torchfleet, torchrun]
    default: torchfleet
  module:
    description:
      - A Python module that C(python -m) runs. With a folder as O(workload) it is found there; the folder is copied as
        that of a script is, and ranks work in it. Without O(workload) its package is installed on the nodes, as
        O(requirements) or O(python) have it, and nothing is copied.
    type: str
  sha256:
    description: Checksum of a O(workload) that is an https address. Without it an address is refused.
    type: str
  python:
    description:
      - A virtual environment, conda environment or interpreter that all nodes have, in place of the proven one. It is
        active for the program as far as variables make it so; C(activate.d) scripts are not run.
    type: str
  container_image:
    description:
      - The image that the launcher's daemons and the ranks run in, one container on each node. A name as Podman has it,
        or the absolute path of an unpacked image or of a C(.sif) or C(.sqsh) file on the nodes. V(none) is no image.
      - It must be on every node, and the same there. It needs Python 3.8 or newer, and torch for a Python script;
        O(python), C(torchfleet_mpirun) and C(torchfleet_mpiexec) are paths in the image then.
      - The default is the host variable C(torchfleet_container_image). The other three options have one as well.
    type: str
    version_added: 0.5.0
  container_engine:
    description:
      - What starts the image. V(auto) takes the first of these, in this order, that is there and starts images of that
        form.
    type: str
    version_added: 0.5.0
  container_args:
    description: More options for the engine, as a list, or as one text that is split as a shell does.
    type: raw
    version_added: 0.5.0
  container_mounts:
    description: Paths of the nodes that the image sees, as V(/here), V(/here:/there) or V(/here:/there:ro).
    type: raw
    version_added: 0.5.0
  requirements:
    description:
      - A C(requirements.txt), C(pyproject.toml) or C(uv.lock) on the controller, with the packages that the program
        needs beside torch. V(none) goes without. The default is the one that lies beside a Python script.
      - The environment is looked for on every node. Where it is missing nothing is started, and C(environment) is
        returned, for the tasks that make it. Torch is the proven one; a file that asks for another is refused.
    type: str
  program_index_url:
    description: The package index of that environment. The default is the one that pip is configured with.
    type: str
  program_wheelhouse:
    description: A directory of wheels on the controller. With it no package index is used.
    type: path
  program_wheelhouse_fill:
    description: Whether the controller downloads wheels that are missing in that directory.
    type: bool
    default: false
  program_keep:
    description: How many environments of programs stay on each node, those that were used last. 0 keeps all.
    type: int
    default: 10
  target:
    description:
      - Where the job runs. V(nodes) are those of the inventory.
      - V(kubernetes) are pods that C(kubectl) makes for the job, in its current context. A pod is one node of the plan.
        It needs O(pod_image) and no inventory; the launcher is torchrun. C(docs/kubernetes.md) has the whole way.
      - V(pytorchjob), V(trainjob) and V(mpijob) are V(kubernetes) with this O(pod_kind).
      - V(runai) are pods that Run:ai makes. C(runai) of version 2 or 3 submits and ends them, and C(kubectl) follows
        them in the namespace of O(pod_project). Without C(runai) the command lines are shown, and O(pod_manifest)
        writes what they need.
      - V(slurm) are nodes of a site's cluster, which Slurm brings. One C(srun) on the host in group C(head) starts our
        code on each; no other machine is logged in to. C(docs/launchers.md) has the whole way.
    type: str
    choices: [nodes, kubernetes, pytorchjob, trainjob, mpijob, runai, slurm]
    default: nodes
  slurm_nodes:
    description: How many nodes Slurm is asked for. The default is what O(np) and O(ranks_per_node) come to, else 1.
    type: int
    version_added: 0.5.0
  slurm_cpus:
    description: The cores of each node that Slurm is asked for. The default is one for each rank.
    type: int
    version_added: 0.5.0
  slurm_gpus:
    description: The GPUs of each node that Slurm is asked for. It is also the default of O(ranks_per_node).
    type: int
    default: 0
    version_added: 0.5.0
  slurm_gpu_vendor:
    description: Whose GPUs these are.
    type: str
    default: nvidia
    version_added: 0.5.0
  slurm_args:
    description:
      - More options of C(srun), such as V(--partition=gpu --account=mlo --time=2:00:00), as a list, or as one text that
        is split as a shell does. Each option and its value are one word. Options that the plan decides are refused.
    type: raw
    default: []
    version_added: 0.5.0
  slurm_start_timeout:
    description:
      - Seconds in Slurm's queue. After that the job is cancelled. When Slurm has brought the nodes, their ranks have
        600 s to start.
    type: float
    default: 600.0
    version_added: 0.5.0
  slurm_output:
    description: The bytes of output of each node that come home, of longer output the end.
    type: str
    default: 4M
    version_added: 0.5.0
  pods:
    description: How many pods. The default is what O(np) and O(ranks_per_node) come to, else 1.
    type: int
  pod_image:
    description: The image of the pods. It has Python 3.8 or newer and what the program imports, and nothing of ours.
    type: str
  pod_kind:
    description:
      - V(indexed) is one Indexed Job, of Kubernetes 1.24 and newer.
      - V(jobs) is a Job for each pod, for clusters that do not have that.
      - The default is V(indexed), or V(jobs) if the cluster is older than that. For O(pod_manifest) it is not asked.
      - V(pytorchjob) and V(trainjob) are jobs of Kubeflow's training operator 1 and trainer 2.
      - V(mpijob) is one of Kubeflow's MPI operator 0.5 or newer. Its launcher is the first pod; no mpirun and no sshd.
    type: str
    choices: [indexed, jobs, pytorchjob, trainjob, mpijob]
  pod_namespace:
    description: The namespace. The default is that of the context.
    type: str
  pod_context:
    description: The context of C(kubectl). The default is its current one.
    type: str
  pod_cpus:
    description: The cores of each pod, as request and limit. The plan counts on so many.
    type: str
  pod_memory:
    description: The memory of each pod, as request and limit, such as V(64Gi).
    type: str
  gpus_per_pod:
    description: The GPUs of each pod. It is also the default of O(ranks_per_node).
    type: int
    default: 0
  pod_gpu_resource:
    description: What the cluster calls its GPUs.
    type: str
    default: nvidia.com/gpu
  pod_resources:
    description: More resources of each pod by name, such as V(rdma/rdma) for RDMA devices.
    type: raw
    default: {}
  pod_annotations:
    description: Annotations of the pods by name, such as V(k8s.v1.cni.cncf.io/networks) for a second network.
    type: raw
    default: {}
  pod_volumes:
    description: Claims that are mounted into all pods, each as V(claim:/path) or V(claim:/path:ro).
    type: raw
    default: []
  pod_shm:
    description: The most bytes that C(/dev/shm) of a pod takes; V(K), V(M) or V(G) may follow. It counts as memory.
    type: str
  pod_queue:
    description: A queue of Kueue, which starts all pods of a job or none.
    type: str
  pod_start_timeout:
    description: Seconds for all pods to start. After that the job ends, and what the cluster says of them is shown.
    type: float
    default: 600.0
  pod_output:
    description: The bytes of output of each pod that come home, of longer output the end. It travels in the pod's log.
    type: str
    default: 4M
  pod_project:
    description: The project of Run:ai. Its namespace is C(runai-) and the project, unless O(pod_namespace) is given.
    type: str
  pod_security:
    description:
      - What the programs in the pods may do. V(hardened) drops all capabilities, privilege escalation and the system
        calls that the container runtime filters. V(restricted) is that without root, as Pod Security C(restricted)
        wants it. V(none) sets nothing. The default is V(hardened).
    type: str
    choices: [hardened, restricted, none]
  pod_user:
    description: The uid of all processes in the pods, in place of the image's user.
    type: int
  pod_manifest:
    description:
      - A file that is not there, such as V(job.json). The objects of the job are written into it; nothing is started.
        C(kubectl create -f) does that. Nobody follows such a job; its pods tell people in their logs what happens.
      - With O(target=runai) a file with the same name and C(.pyz) is written too, for a claim.
    type: str
  result_query:
    description: JMESPath expression. Its value in C(result.json) is printed as JSON at the end.
    type: str
requirements:
  - jmespath, pathspec (for a C(.torchfleetignore)) and rich on the controller
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
  - torchfleet.cluster.choices.launch
attributes:
  check_mode:
    description:
      - Prints placement, host file, environment and command, each with its reason, and starts nothing. With O(queue)
        also whether the job would wait, and for whom.
seealso:
  - module: torchfleet.cluster.jobs
  - module: torchfleet.cluster.gather
  - module: torchfleet.cluster.reap
"""

EXAMPLES = r"""
- name: Train on the digits with all slots
  torchfleet.cluster.launch:
    workload: mnist
    workload_args: --epochs 5
  run_once: true

- name: Run your own script with two ranks under torchrun, for at most an hour
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
environment:
  description:
    - What the tasks need that make the environment of the program. Nothing was started.
    - C(nodes) has the nodes of the job, of which some do not have it, each with C(path), C(home), C(python), C(linked)
      (the proven environment), C(torch) (its version) and C(build) (what that says of its build, such as C(cpu)). The
      rest is the same for all.
  returned: if the environment of the program is missing on a node
  type: dict
job_id:
  description: Name of the run.
  returned: if the options were accepted
  type: str
  sample: 20261120-101500-mnist-3f9a2c
run_dir:
  description: Directory on the controller with plan.json, command.txt, ranks/, metrics.jsonl and result.json.
  returned: if the job was started
  type: str
  sample: /home/me/torchfleet/runs/20261120-101500-mnist-3f9a2c
state:
  description: C(succeeded), C(saved), C(failed), C(timed_out), C(cancelled) or C(lost).
  returned: if the job was started, and not with O(detach)
  type: str
  sample: succeeded
attempts:
  description: How often the job was started.
  returned: if O(max_restarts) is not 0
  type: int
  sample: 2
command:
  description: The launcher's command.
  returned: in check mode
  type: list
  elements: str
"""
