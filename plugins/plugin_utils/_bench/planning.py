# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Plans the jobs of a bench with the facts of the nodes, before the first of them starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import AnyFacts
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, slots_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import Job, LaunchPlan, plan_job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program import Program
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.requirements import facts_of_all
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.runtime_archive import entry
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render

from .cells import RDMA, Case
from .sweep import Sweep, World, cases_of, worlds_of

WORKLOAD = "all_reduce_bench"


class Planner:
    """Plans jobs of one cluster. The nodes are asked once for each launcher and backend."""

    def __init__(self, session: Session, cluster: Cluster, request: Request) -> None:
        self.session, self.cluster, self.request = session, cluster, request
        self.facts: dict[tuple[str, str | None], Mapping[str, AnyFacts]] = {}

    def cases(self, sweep: Sweep) -> list[Case]:
        """Return the cases of a sweep. InputError for what cannot work."""
        facts = self.ask(sweep.launchers[0], sweep.backends[0])
        slots = slots_of(self.cluster.workers, facts_of_all(self.cluster, facts))
        return cases_of(sweep, worlds_of(sweep, slots), self.plan)

    def ask(self, launcher: str, backend: str | None) -> Mapping[str, AnyFacts]:
        """Return the facts of the nodes for a launcher and a backend. InputError."""
        key = (launcher, backend)
        if key not in self.facts:
            request = replace(self.request, launcher=launcher, backend=backend)
            self.facts[key] = self.session.survey(self.cluster, request)
        return self.facts[key]

    def plan(self, launcher: str, backend: str | None, world: World, rdma: bool) -> LaunchPlan:
        """Return the plan of a job. InputError if it cannot be."""
        facts = self.ask(launcher, backend)
        request = replace(
            self.request, launcher=launcher, backend=backend, np=world.ranks, ranks_per_node=world.each, rdma=rdma
        )
        workers = self.cluster.workers[: world.nodes] if world.nodes else self.cluster.workers
        program = Program(f"/{WORKLOAD}.py", (), shipped=True)
        job = Job("bench", "", program, entry(), "0" * 12)
        plan = plan_job(request, replace(self.cluster, workers=workers), facts, job)
        render(plan)
        return plan


def job_of(case: Case, sizes: list[int], sweep: Sweep, request: Request, cluster: Cluster) -> tuple[Request, Cluster]:
    """Return what the launcher action takes to measure sizes of a case."""
    workers = tuple(node for node in cluster.workers if node.name in case.nodes)
    repeats = ("--iterations", str(sweep.iterations)) if sweep.iterations else ()
    args = ("--sizes", ",".join(map(str, sizes)), "--rounds", str(sweep.rounds), *repeats)
    asked = replace(
        request,
        workload_args=args,
        launcher=case.launcher,
        backend=case.backend,
        np=case.ranks,
        ranks_per_node=case.each,
        rdma=case.way == RDMA,
    )
    return asked, replace(cluster, workers=workers)
