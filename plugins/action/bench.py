# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.bench: measure all cells, judge, write. Documentation: plugins/modules/bench.py."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench import judge as judge_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench import results, tables
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench.cells import MEASURED, Case, Cell, baseline_name
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench.page import bench_page
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench.planning import WORKLOAD, Planner, job_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench.sweep import Sweep, parse_sweep
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._bench.turns import Turns, cells_of_job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import Stopped, StopWatch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.screen import Screen, Text, columns
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.away import groups_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, check_cluster
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster_name import cluster_name
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import (
    cluster_from_hostvars,
    refuse_become_of,
    refuse_what_misleads,
    ssh_words,
    to_plain,
    vaulted_names,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request, parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session

from . import launch

Result = dict[str, Any]
display = Display()
JOB_TIMEOUT = 600.0  # seconds: a cell that hangs must not hold up the others
OF_A_JOB = ("nodes", "job_env", "secret_names", "ports", "bind_to", "lease", "exclusive", "job_timeout", "master_port")


class NoScreen(Screen):
    """A screen that shows nothing: the lines of many jobs would bury those of the bench. Their files have them.

    It needs no thread either.
    """

    def start(self, show: Callable[[Text], object]) -> threading.Thread:
        """Return a thread that does not run: there is nothing to show."""
        return threading.Thread()

    def take_over(self, terminal: int) -> None:
        """Do nothing."""

    def write(self, text: str, newline: bool = True, keep: bool = True) -> None:
        """Show nothing."""

    def is_terminal(self) -> bool:
        """Return false: no bar is drawn."""
        return False


class Measurement(launch.ActionModule):
    """A job as train.yml runs it, of which nothing is shown."""

    stop: StopWatch | None = None

    def watch(self) -> StopWatch:
        """Return what notices that the user wants to stop, and keep it."""
        self.stop = super().watch()
        return self.stop

    def screen(self) -> Screen:
        """Return where nothing is shown."""
        return NoScreen()


class ActionModule(Action):
    """One task, which runs a job for each case, one after the other."""

    BYPASS_HOST_LOOP = True
    parses_values = True
    options_are_typed = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed, bench_id, report, csv and cells; failed and msg if a cell failed or is below the floor."""
        refuse_what_misleads(variables)
        given = {name: value for name, value in given.items() if value is not None}
        sweep = parse_sweep(given)
        options = {"workload": WORKLOAD, "job_timeout": JOB_TIMEOUT, "show_ranks": []}
        options.update((name, given[name]) for name in OF_A_JOB if name in given)
        request = parse_request(options, vaulted_names(self._task.args.get("job_env")))
        hostvars = variables["hostvars"]
        cluster = cluster_from_hostvars(groups_of(variables), hostvars, request.nodes)
        check_cluster(cluster)
        refuse_become_of([node for node in cluster.workers if node.name != cluster.head.name], hostvars)
        try:
            return self.bench(sweep, request, cluster, cluster_name(to_plain(variables["groups"]), hostvars))
        except Stopped:
            return {"failed": True, "msg": "stopped before anything was measured"}
        except HeadLost as error:
            return {"failed": True, "msg": f"{error}: {launch.HELP_IF_LOST}"}

    def bench(self, sweep: Sweep, request: Request, cluster: Cluster, cluster_name: str) -> Result:
        """Plan all jobs, measure what is not measured yet, and judge all cells."""
        name = baseline_name([node.name for node in cluster.workers], cluster_name)
        baselines = results.read_baseline(sweep.baseline, name)
        bench_id = sweep.bench_id or f"bench-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
        directory = results.directory_of(sweep.runs_dir, bench_id)
        with StopWatch(), Session(cluster.head, ssh_words(self._connection, cluster.head, request.lease)) as session:
            cases = Planner(session, cluster, request).cases(sweep)
        turns = Turns(cases, sweep.sizes, results.stored(directory))
        display.display("\n".join(turns.opening(bench_id, sweep.rdma in ("on", "both"))))
        if self._task.check_mode:
            jobs = [case.name for case, _sizes in turns.todo()]
            display.display("\n".join(f"would run: {name}" for name in jobs))
            return {"changed": False, "bench_id": bench_id, "jobs": jobs}
        results.make_directory(directory)
        request = replace(request, runs_dir=str(directory / results.JOBS))
        with StopWatch() as stop:
            stop.hold(f"bench {bench_id} ends; the cells that are done stay", "")
            whole = self.measure(turns, sweep, request, cluster, directory, stop)
            judged = judge_module.judge(turns.known, {} if sweep.baseline_reset else baselines[name], sweep.floor)
            failed = judge_module.failure(judged, sweep.floor)
            at = time.strftime("%Y-%m-%d %H:%M:%S %z")
            pages = {"report": bench_page(bench_id, name, at, judged, failed), "csv": tables.csv_text(judged)}
            written = results.write_all(directory, pages)
            again = f"ansible-playbook bench.yml -e bench_id={bench_id} and the same options go on with it"
            if not whole:
                stop.say(f"{judge_module.sentence(judged)}; {again}")
                return {"failed": True, "msg": f"stopped: {again}", **written}
        self.show(judged, written)
        good = [row.cell for row in judged if not row.verdict.below]
        baselines[name] = judge_module.merged(baselines[name], good, sweep.baseline_reset)
        kept = results.keep_baseline(sweep.baseline, baselines)
        answer = {"changed": True, "bench_id": bench_id, "baseline": kept, **written}
        return {**answer, "failed": True, "msg": f"{failed}; {again}"} if failed else answer

    def measure(
        self, turns: Turns, sweep: Sweep, request: Request, cluster: Cluster, directory: Path, stop: StopWatch
    ) -> bool:
        """Run the jobs that are left, and store each cell when its job is over. False: the user stopped it."""
        for case, sizes in turns.todo():
            display.display(turns.next_job(case, sizes))
            began = time.monotonic()
            cells, stopped = self.run_case(case, sizes, sweep, request, cluster)
            for cell in cells:
                if not stopped or cell.state == MEASURED:
                    results.store(directory, cell)
            lines = turns.take(
                [cell for cell in cells if not stopped or cell.state == MEASURED], time.monotonic() - began
            )
            if stopped or stop.noted:
                return False
            display.display("\n".join(lines))
        return True

    def run_case(
        self, case: Case, sizes: list[int], sweep: Sweep, request: Request, cluster: Cluster
    ) -> tuple[list[Cell], bool]:
        """Run the job of a case. Return its cells, and whether the user stopped it."""
        asked, nodes = job_of(case, sizes, sweep, request, cluster)
        action = Measurement(
            self._task, self._connection, self._play_context, self._loader, self._templar, self._shared_loader_obj
        )
        try:
            answer = action.run_job(asked, nodes)
        except Stopped:
            return [], True
        except (InputError, HeadLost) as error:  # of this case alone: the others go on
            answer = {"failed": True, "msg": str(error)}
        run_dir = answer.get("run_dir", "")
        why = results.cause_of(answer)
        cells = cells_of_job(
            case, sizes, results.Reported(Path(run_dir) if run_dir else None), why, run_dir, time.strftime("%FT%T%z")
        )
        return cells, bool(action.stop and action.stop.noted)

    def show(self, judged: list[judge_module.Judged], written: Result) -> None:
        """Show the tables and where the files are."""
        cells, width = [row.cell for row in judged], columns()
        if judge_module.ways_of(cells):
            display.display("\n".join([*tables.rdma_lines(cells, width), ""]))
        display.display("\n".join([*tables.table_lines(judged, width), "", judge_module.sentence(judged)]))
        display.display("\n".join(f"{name}: {path}" for name, path in written.items()))
