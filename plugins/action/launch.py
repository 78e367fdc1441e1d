# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.launch: plan, show or run, bring home. Documentation: plugins/modules/launch.py."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.plugin_utils import _border, _rundir, _view
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cluster import Cluster, check_cluster
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._command import LaunchCommand
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller import identity
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._explain import explain
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._folder import folder_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers import render
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._order import order_for, plan_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._plan import Job, LaunchPlan, Program, plan_job
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError, Request, parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._runtime import entry
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._screen import Screen
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._session import HeadLost, Session
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._stop import NOTHING_LEFT, Stopped, StopWatch

WORKLOADS = Path(__file__).parents[2] / "workloads"
HELP_IF_LOST = "ansible-playbook clean.yml ends what is left and brings it home"
Result = dict[str, Any]
display = Display()


class ActionModule(Action):
    """One task, one job, whatever the number of hosts."""

    BYPASS_HOST_LOOP = True
    parses_values = True
    options_are_typed = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed, job_id, run_dir and state; where it went wrong also failed and a one-line msg."""
        _border.refuse_what_misleads(variables)
        request = parse_request(given, _border.vaulted_names(self._task.args.get("job_env")))
        groups, hostvars = _border.to_plain(variables["groups"]), variables["hostvars"]
        cluster = _border.cluster_from_hostvars(groups, hostvars, request.nodes)
        _border.refuse_become_of([node for node in cluster.workers if node.name != cluster.head.name], hostvars)
        try:
            return self.launch(request, cluster)
        except Stopped:
            return {"failed": True, "msg": NOTHING_LEFT}
        except HeadLost as error:
            return {"failed": True, "msg": f"{error}: {HELP_IF_LOST}"}

    def launch(self, request: Request, cluster: Cluster) -> Result:
        """Plan the job with what the head says of itself, then show or run it."""
        check_cluster(cluster)
        script = _rundir.find_workload(request.workload, WORKLOADS)
        job_id = request.job_id or _rundir.new_job_id(script)
        run_dir = _rundir.check_run_dir(request.runs_dir, job_id)
        folder = None if cluster.local else folder_of(script)
        program = Program(script, request.workload_args, request.job_env, shipped=folder is not None)
        ssh = _border.ssh_words(self._connection, cluster.head, request.lease)
        job = Job(job_id, str(run_dir), program, entry(), secrets.token_hex(6), folder.warnings if folder else ())
        with StopWatch() as stop, Session(cluster.head, ssh) as session:
            plan = plan_job(request, cluster, session.survey(cluster, request), job)
            command = render(plan)
            if self._task.check_mode:
                display.display("\n".join(explain(plan, command)))
                return {"changed": False, "job_id": job_id, "command": list(command.argv)}
            if folder:
                session.ship(folder, [node.name for node in plan.nodes])
            order = order_for(plan, command, identity(), {node.name: node for node in cluster.workers})
            return self.execute(session, plan, command, order, request, stop)

    def execute(
        self,
        session: Session,
        plan: LaunchPlan,
        command: LaunchCommand,
        order: Result,
        request: Request,
        stop: StopWatch,
    ) -> Result:
        """Run the job, bring it home, and say what became of it."""
        run_dir, text = Path(plan.run_dir), order["files"]["command.txt"]
        stop.hold(f"ending job {plan.job_id} and bringing it home")
        stop.check()
        _rundir.make_run_dir(run_dir, {"plan.json": plan_report(plan, command), "command.txt": text})
        screen = Screen()
        view = _view.View(screen.write, [place.host for place in plan.placement], screen.is_terminal(), screen.width)
        for line in [*(f"warning: {warning}" for warning in (*plan.warnings, *command.warnings)), _view.opening(plan)]:
            view.say(line)
        try:
            outcome = session.run(order, view.show, stop)
        except (InputError, Stopped):
            _rundir.remove_run_dir(run_dir)
            raise
        finally:
            view.close()
        stop.hold(f"bringing job {plan.job_id} home")
        try:
            placement = [(place.rank, place.host) for place in plan.placement]
            missing = session.fetch(plan.job_id, run_dir, placement, request.fetch_limit, stop.insisted)
        except OSError as error:
            return {"failed": True, "msg": stop.tell(_rundir.why_not_home(error, run_dir, order["host"]))}
        if stop.noted:
            screen.take_over(stop.terminal)
        for line in _view.summary(outcome, missing, plan.run_dir, view.width, request.result_query):
            view.say(line)
        if not screen.flush(stop.reason):
            os._exit(1)  # told to end, and nobody reads: handing over the result would wait for ever
        answer = {"changed": True, "job_id": plan.job_id, "run_dir": plan.run_dir, "state": outcome["state"]}
        answer["warnings"] = [f"job {plan.job_id}: {note['text']}" for note in outcome["notes"]]
        failed = outcome["state"] != "succeeded"
        return {**answer, **({"failed": True, "msg": _view.verdict(outcome, plan.run_dir)} if failed else {})}
