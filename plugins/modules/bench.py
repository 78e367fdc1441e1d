#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: bench
short_description: Measure all-reduces over numbers of ranks, sizes, launchers, backends, with and without RDMA
description:
  - Runs the workload C(all_reduce_bench) as a job for each number of ranks, launcher, backend and way between nodes,
    one after the other. A cell is one message size of a job. A cell that fails has its cause, and the others go on.
  - All jobs are planned with the facts of the nodes before the first one starts, and what cannot run is refused then.
    What cannot be measured in a combination, such as RDMA with V(gloo), is a cell with that cause.
  - Cells are kept in C(<runs_dir>/<bench_id>/cells). With the same O(bench_id) those that are measured are not measured
    again, those that failed are.
  - Writes C(report.html) and C(bench.csv) beside them. Fails if a cell failed or is below the floor.
version_added: 0.5.0
author:
  - The torchfleet authors (@torchfleet)
options:
  bench_worlds:
    description:
      - Numbers of ranks (V(4), placed as C(np) of M(torchfleet.cluster.launch)), or nodes and the ranks of each
        (V(2x4)), as a list or with commas between them. The default is 2, 4, 8 and so on, and all slots.
    type: raw
  bench_sizes:
    description:
      - Bytes of each rank, such as V(4G), or the first and the last (V(1K..256M), each four times the one before), as a
        list or with commas between them. K, M and G are powers of 1024.
    type: raw
    default: [1M, 16M, 256M]
  bench_launchers:
    description: Launchers, as a list or with commas between them.
    type: raw
    default: [openmpi]
  bench_backends:
    description: Backends, as a list or with commas between them. The default is the one that C(train.yml) would take.
    type: raw
  bench_rdma:
    description:
      - Whether the data goes between the nodes by RDMA. V(both) measures with and without it. V(auto) is what
        C(train.yml) does. Where a backend or a node has none, the cell says so; nothing else is measured in its place.
    type: str
    choices: [auto, 'on', 'off', both]
    default: auto
  bench_rounds:
    description: In how many rounds each size is measured. The median of them counts, and their spread is the noise.
    type: int
    default: 5
  bench_iterations:
    description: All-reduces of each size in all rounds. The default is 200, and fewer for large sizes.
    type: int
  bench_id:
    description: The name of the bench, to go on with it. The default is made of the time and random letters.
    type: str
  bench_floor_gbps:
    description:
      - The least bus bandwidth of the largest size of each job, in GB/s (10^9 bytes a second, as nccl-tests tells it).
        Smaller sizes are bound by latency. V(0) is no floor.
    type: float
    default: 0
  bench_baseline:
    description:
      - File on the controller with what was measured first on each cluster. Later figures are compared with it; it gets
        those that it lacks.
    type: path
    default: reports/bench_baseline.json
  bench_baseline_reset:
    description: Make the baseline of this cluster anew from these figures, because the cluster was changed on purpose.
    type: bool
    default: false
  runs_dir:
    description: Directory on this controller in which the directory of the bench is made.
    type: str
    default: runs
  nodes:
    description: Use only these workers. The default is all.
    type: list
    elements: str
    default: []
  job_timeout:
    description: Seconds after which a job is ended and its cells fail.
    type: float
    default: 600
  job_env:
    description: Environment variables of every rank, as of M(torchfleet.cluster.launch).
    type: dict
    default: {}
  secret_names:
    description: More names in O(job_env) whose values are secret.
    type: list
    elements: str
    default: []
  ports:
    description: Ports that the firewall allows, as of M(torchfleet.cluster.launch).
    type: str
  bind_to:
    description: What each rank is bound to.
    type: str
    choices: [none, core, numa, socket]
    default: none
  lease:
    description: Seconds of silence after which a node is lost, as of M(torchfleet.cluster.launch).
    type: float
    default: 60
  exclusive:
    description: Whether to refuse to start where another job has ranks on one of the nodes.
    type: bool
    default: false
  master_port:
    description: Port of the rendezvous. The default is a free one.
    type: int
extends_documentation_fragment:
  - torchfleet.cluster.attributes
  - torchfleet.cluster.attributes.controller
  - torchfleet.cluster.attributes.once
attributes:
  check_mode:
    description: Plans all jobs, says which it would run and what cannot be measured, and starts nothing.
notes:
  - V(on) and V(off) of O(bench_rdma) are taken as words also where YAML reads them as booleans.
seealso:
  - module: torchfleet.cluster.launch
  - module: torchfleet.cluster.verify
"""

EXAMPLES = r"""
- name: Measure 2 to 32 ranks with and without RDMA, 4 GiB of each rank
  torchfleet.cluster.bench:
    bench_worlds: [2, 4, 8, 16, 32]
    bench_sizes: [4G]
    bench_rdma: both
  run_once: true
"""

RETURN = r"""
bench_id:
  description: The name of the bench.
  returned: success
  type: str
  sample: bench-20261126-051500-3f9a2c
report:
  description: The page.
  returned: when something was measured
  type: str
  sample: /home/me/torchfleet/runs/bench-20261126-051500-3f9a2c/report.html
csv:
  description: All cells as CSV.
  returned: when something was measured
  type: str
  sample: /home/me/torchfleet/runs/bench-20261126-051500-3f9a2c/bench.csv
baseline:
  description: The file with the baseline.
  returned: when the bench was not stopped
  type: str
  sample: /home/me/torchfleet/reports/bench_baseline.json
jobs:
  description: The jobs that would be run.
  returned: in check mode
  type: list
  elements: str
  sample: ["4 ranks (2x2), openmpi, nccl, RDMA"]
"""
