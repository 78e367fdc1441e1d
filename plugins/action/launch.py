# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.launch: plan, show or run a job. Documentation: plugins/modules/launch.py."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.restart_rule import (
    PAUSE_SECONDS,
    ended_of,
    goes_on,
    pause_before_next,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import RunOrder
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Result as JobResult
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.restarts import RETURN_SECONDS, Ended
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes.explanation import explained
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.identity import identity, owner
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import (
    NOTHING_LEFT,
    Stopped,
    StopWatch,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.screen import Screen
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.away import groups_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, check_cluster
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import (
    cluster_from_hostvars,
    head_from_hostvars,
    refuse_become_of,
    refuse_what_misleads,
    ssh_words,
    vaulted_names,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import run_directory
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.attempts import (
    ATTEMPTS,
    Attempt,
    attempt_of,
    note_attempts,
    rest,
    rounds_in,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.brought_home import BroughtHome
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import LaunchCommand
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.containers import with_containers
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.data_sending import lay
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.data_set import DataSet, data_set_for
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.environment_tasks import environment_to_make
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.explain import explain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.job_list import (
    detached_line,
    news_of,
    restart_line,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.order import order_for, plan_report, route_to
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import Job, LaunchPlan, plan_job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program import program_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.program_environment import environment_for
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.remote_script import find_script
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request, parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.requirements import facts_of_all
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.runtime_archive import entry
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.stand_ins import NoStandIn, seats_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.turn import Facts, Turn
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.view import (
    View,
    opening,
    remarks,
    summary,
    verdict,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.watches import Watches, watches_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.workdir import (
    Folder,
    check_in_place,
    code_digest,
    folder_of,
    folder_words,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.writer import report_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.pod_job import PodJob, in_pods
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.slurm_job import SlurmJob, on_slurm
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.targets import parse_target
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._slow.explanation import measured, slow_lines

WORKLOADS = Path(__file__).parents[2] / "workloads"
HELP_IF_LOST = "ansible-playbook clean.yml ends leftover processes and fetches the files"
Result = dict[str, Any]
Made = PodJob | SlurmJob
display = Display()


class ActionModule(Action):
    """One task, one job, whatever the number of hosts."""

    BYPASS_HOST_LOOP = True
    parses_values = True
    options_are_typed = True
    interrupted = False
    outcome: JobResult | None = None  # of the last attempt
    plans: list[LaunchPlan]  # of all attempts that ran

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed, job_id, run_dir and state; after a failure also failed and a one-line msg."""
        refuse_what_misleads(variables)
        request = parse_request(given, vaulted_names(self._task.args.get("job_env")))
        self.plans = []
        if parse_target(given) != "nodes":
            try:
                return self.run_scheduled(request, self.scheduled(given, request, variables))
            except Stopped:
                return {"failed": True, "msg": NOTHING_LEFT}
        groups, hostvars = groups_of(variables), variables["hostvars"]
        cluster = cluster_from_hostvars(groups, hostvars, request.nodes)
        refuse_become_of([node for node in cluster.workers if node.name != cluster.head.name], hostvars)
        try:
            return self.run_job(request, cluster)
        except Stopped:
            return {"failed": True, "msg": NOTHING_LEFT}
        except HeadLost as error:
            return {"failed": True, "msg": f"{error}: {HELP_IF_LOST}"}

    def run_job(self, request: Request, cluster: Cluster) -> Result:
        """Run the job, and start it again as often as it may be."""
        cluster = with_containers(cluster, request)
        check_cluster(cluster)
        script = find_script(request, WORKLOADS)
        data = data_set_for(request, cluster, display.display)  # once: each attempt has the same
        name = request.module.replace(".", "-") or script
        first, ended, answer = request.job_id or run_directory.new_job_id(name), list[Ended](), Result()
        plans = self.plans = list[LaunchPlan]()
        while True:
            hosts, size = ([node.name for node in plans[-1].nodes], plans[0].world_size) if plans else ([], 0)
            attempt = attempt_of(request, first, ended, hosts, size)
            named = replace(request, job_id=attempt.job_id, workload=script)
            try:
                answer = self.launch_in_time(named, cluster, script, attempt, data)
            except InputError as error:
                if not ended:
                    raise
                return {**answer, "msg": f"{answer['msg']}; it was not started again: {error}", "attempts": len(ended)}
            if not request.attempts_rule or "state" not in answer or self.outcome is None:
                return {**answer, **rounds_in(request, answer)}  # it is over, refused, or goes on without us
            ended.append(ended_of(attempt.job_id, self.outcome))
            try:
                note_attempts(Path(answer["run_dir"]), ended)
            except OSError as error:  # what became of the job is told all the same
                display.warning(f"{answer['run_dir']}/{ATTEMPTS} cannot be written: {error.strerror}")
            if self.interrupted or not goes_on(ended, request.restart_rule):
                return {**answer, "attempts": len(ended)}
            display.display(restart_line(attempt.job_id, answer["state"], len(ended), request.max_restarts))
            rest(pause_before_next(ended))

    def launch_in_time(
        self, request: Request, cluster: Cluster, script: str, attempt: Attempt, data: DataSet | None
    ) -> Result:
        """Launch an attempt, and wait for nodes that do not answer and for which there is no other. NoStandIn."""
        until, told = time.monotonic() + RETURN_SECONDS, ""
        while True:
            try:
                return self.launch(request, cluster, script, attempt, data)
            except NoStandIn as error:
                if not error.passes or time.monotonic() > until:
                    raise
                if told != str(error):
                    told = str(error)
                    display.display(f"job {attempt.job_id} waits for {RETURN_SECONDS / 60:.0f} min at most: {told}")
            rest(PAUSE_SECONDS)

    def launch(self, request: Request, cluster: Cluster, script: str, attempt: Attempt, data: DataSet | None) -> Result:
        """Plan the job with the facts of the nodes, then show or run it."""
        job_id = attempt.job_id
        run_dir = run_directory.check_run_dir(request.runs_dir, job_id)
        needs = None if cluster.has_images else environment_for(request, script)
        folder = folder_of(script, request.module) if script and request.ship and not cluster.local else None
        program = program_of(request, script, shipped=folder is not None, local=cluster.local)
        ssh = ssh_words(self._connection, cluster.head, request.lease)
        words, code, token = folder_words(folder), code_digest(folder, script), secrets.token_hex(6)
        job = Job(job_id, str(run_dir), program, entry(), token, *words, attempt, needs, data, code, owner())
        with self.watch() as stop, Session(cluster.head, ssh, request.detach) as session:

            def plan_now() -> tuple[LaunchPlan, Facts]:
                found = session.survey(cluster, request, needs.name if needs else "", data.name if data else "")
                asked, nodes, facts, said = seats_of(request, cluster, found, attempt)
                if program.folder and not cluster.local:
                    check_in_place(script, nodes, facts)
                warnings = (*job.warnings, *filter(None, [said]))
                return plan_job(asked, nodes, facts, replace(job, warnings=warnings)), facts

            plan, facts = plan_now()
            who = "" if self._task.check_mode else identity()
            turn = Turn(session, request, who, stop, display.display) if request.queue else None
            command = render(plan)  # what it cannot do is refused before the job waits, and before anything is sent
            if self._task.check_mode:
                display.display("\n".join([*explain(plan, command), *([turn.would_wait(plan)] if turn else [])]))
                return {"changed": False, "job_id": job_id, "command": list(command.argv)}
            if turn and not plan.unmade and not request.detach:
                plan, facts = turn.take(plan, facts, plan_now)
                command = render(plan)
            if needs and plan.unmade:
                every, into = facts_of_all(cluster, facts), Path(constants.DEFAULT_LOCAL_TMP)
                return {"changed": False, "environment": environment_to_make(needs, plan, every, into)}
            if folder:
                session.ship(folder, [node.name for node in plan.nodes])
            if data and plan.lacking:
                self.lay(session, data, plan, request.data_keep, stop)
            return self.execute(session, plan, command, order_for(plan, command, who), request, stop)

    def scheduled(self, given: Result, request: Request, variables: Result) -> Callable[[Job, Folder | None], Made]:
        """Return what makes a job on nodes that a scheduler brings. InputError."""
        if given.get("target") == "slurm":
            head = head_from_hostvars(groups_of(variables), variables["hostvars"])
            return on_slurm(given, request, head, ssh_words(self._connection, head, request.lease), identity())
        return in_pods(given, request, identity(), needed=not self._task.check_mode)

    def run_scheduled(self, request: Request, make: Callable[[Job, Folder | None], Made]) -> Result:
        """Plan a job on nodes that a scheduler brings, then show or run it."""
        script = find_script(request, WORKLOADS)
        job_id = request.job_id or run_directory.new_job_id(request.module.replace(".", "-") or script)
        run_dir = run_directory.check_run_dir(request.runs_dir, job_id)
        folder = folder_of(script, request.module) if script else None
        program = program_of(request, script, shipped=folder is not None, local=False)
        words, code = folder_words(folder), code_digest(folder, script)
        job = Job(job_id, str(run_dir), program, entry(), secrets.token_hex(6), *words, code=code, owner=owner())
        made = make(job, folder)
        answer = {"changed": False, "job_id": job_id, "command": list(made.command.argv)}
        if self._task.check_mode:
            display.display("\n".join(made.lines))
            return answer
        written = made.written()
        if written:
            display.display("\n".join(written))
            return {**answer, "changed": True}
        with self.watch() as stop:
            return self.execute_scheduled(made, request, stop)

    def execute_scheduled(self, made: Made, request: Request, stop: StopWatch) -> Result:
        """Run a job on such nodes, and show the outcome. Nothing of it is left there."""
        plan, run_dir = made.plan, Path(made.plan.run_dir)
        stop.hold(f"ending job {plan.job_id} and taking it away", f"or later: {made.again}")
        stop.check()
        files = {"plan.json": plan_report(plan, made.command), "command.txt": made.order["files"]["command.txt"]}
        run_directory.make_run_dir(run_dir, files)
        try:
            run = made.start()
        except InputError:
            run_directory.remove_run_dir(run_dir)
            raise
        screen, view = self.screen_and_view(plan)
        for line in [*(f"warning: {each}" for each in plan.warnings), opening(plan), *made.said]:
            view.say(line)
        outcome, left = run(view, stop)
        return self.tell(plan, outcome, request, stop, screen, view, [], left)

    def watch(self) -> StopWatch:
        """Return what notices that the user wants to stop."""
        return StopWatch()

    def screen(self) -> Screen:
        """Return where the job is shown."""
        return Screen()

    def screen_and_view(self, plan: LaunchPlan) -> tuple[Screen, View]:
        """Return where the job is shown, and what shows its ranks there."""
        screen = self.screen()
        hosts = [place.host for place in plan.placement]
        return screen, View(screen.write, hosts, screen.is_terminal(), screen.width, news_of(plan.job_id))

    def lay(self, session: Session, data: DataSet, plan: LaunchPlan, keep: int, stop: StopWatch) -> None:
        """Bring the data set to the nodes that do not have it, and say what that took."""
        nodes = {node.name: route_to(node) for node in plan.nodes}
        display.display(plan.data)
        began = time.monotonic()
        sent = lay(session, data, plan.lacking, nodes, keep, stop.check, display.display)
        seconds = time.monotonic() - began
        display.display(f"data {data.path}: copied in {seconds:.1f} s, {sent:,} bytes were sent from here")

    def execute(
        self,
        session: Session,
        plan: LaunchPlan,
        command: LaunchCommand,
        order: RunOrder,
        request: Request,
        stop: StopWatch,
    ) -> Result:
        """Run the job; when it is over, fetch its files and show the outcome."""
        run_dir, text = Path(plan.run_dir), order["files"]["command.txt"]
        stop.hold(f"ending job {plan.job_id} and fetching its files")
        stop.check()
        run_directory.make_run_dir(run_dir, {"plan.json": plan_report(plan, command), "command.txt": text})
        screen, view = self.screen_and_view(plan)
        warnings = [f"warning: {warning}" for warning in (*plan.warnings, *command.warnings)]
        for line in [*warnings, opening(plan), *filter(None, [plan.shipped, "" if plan.lacking else plan.data])]:
            view.say(line)
        watches = self.watches(session, plan, request, view, stop)
        try:
            queue = (request.queue, request.queue_timeout)
            show = watches.seeing(view.show)
            outcome = session.run(order, show, stop, request.detach, *queue, watches.tick, request.attempts_rule)
        except (InputError, Stopped):
            run_directory.remove_run_dir(run_dir)
            raise
        finally:
            watches.close()
            view.close()
        self.outcome = None
        self.plans.append(plan)
        if outcome is None:
            view.say(detached_line(plan.job_id, plan.head.name, session.queued))
            screen.flush(stop.reason)
            return {"changed": True, "job_id": plan.job_id, "run_dir": plan.run_dir}
        return self.bring(session, plan, outcome, request, stop, screen, view)

    def watches(self, session: Session, plan: LaunchPlan, request: Request, view: View, stop: StopWatch) -> Watches:
        """Return what looks at the job, and collects from it, while it is followed. Each has a session of its own."""
        ssh = ssh_words(self._connection, session.head, request.lease)
        return watches_of(plan, request, lambda: Session(session.head, ssh), view, stop.parent)

    def bring(
        self,
        session: Session,
        plan: LaunchPlan,
        outcome: JobResult,
        request: Request,
        stop: StopWatch,
        screen: Screen,
        view: View,
    ) -> Result:
        """Fetch the files of a job that is over, and show the outcome."""
        run_dir = Path(plan.run_dir)
        stop.hold(f"fetching the files of job {plan.job_id}")
        try:
            placement = [(place.rank, place.host) for place in plan.placement]
            home = BroughtHome({host for _rank, host in placement}, request.collect_limits)
            with run_directory.written_alone(run_dir, stop.insisted):
                missing = session.fetch(
                    plan.job_id, run_dir, placement, request.fetch_limit, stop.insisted, artifacts=home
                )
        except OSError as error:
            return {"failed": True, "msg": stop.tell(run_directory.unwritable_message(error, run_dir, plan.head.name))}
        return self.tell(plan, outcome, request, stop, screen, view, missing, home.said, home.warnings)

    def tell(
        self,
        plan: LaunchPlan,
        outcome: JobResult,
        request: Request,
        stop: StopWatch,
        screen: Screen,
        view: View,
        missing: list[str],
        collected: Sequence[str] = (),
        warned: Sequence[str] = (),
    ) -> Result:
        """Show the outcome of a job whose files are here. `missing`, `collected`, `warned`: lines on these."""
        run_dir = Path(plan.run_dir)
        told = measured(explained(outcome, run_dir), run_dir)
        said, asked = [*slow_lines(told), *collected], request.result_query
        lines = summary(told, missing, plan.run_dir, view.width, asked, said, told["checkpoint"])
        self.interrupted = bool(stop.reason())
        if stop.noted:  # last: from here on Ansible shows nothing
            screen.take_over(stop.terminal)
        for line in lines:
            view.say(line)
        if not screen.flush(stop.reason):
            os._exit(1)  # ended by a signal, and nobody reads: writing the result would block for ever
        self.outcome = outcome
        no_report = (
            "" if stop.insisted() else report_of(run_dir, exports=request.export)
        )  # last: what became of the job is told by now
        answer = {"changed": True, "job_id": plan.job_id, "run_dir": plan.run_dir, "state": outcome["state"]}
        notes = [f"job {plan.job_id}: {text}" for text in remarks(outcome)]
        answer["warnings"] = [*notes, *warned, *filter(None, [no_report])]
        failed = outcome["state"] != "succeeded"
        return {**answer, **({"failed": True, "msg": verdict(told, plan.run_dir, told["cause"])} if failed else {})}
