# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.gather: fetch runs from the head. Documentation: plugins/modules/gather.py."""

from __future__ import annotations

from typing import Any, cast

from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.job_rows import WaitingRun
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes.explanation import explained_file, said
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.identity import identity
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import parse_bytes
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import (
    cluster_from_hostvars,
    ssh_words,
    to_plain,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.brought_home import within_room
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.run_directory import (
    is_fetched,
    noted_limits,
    room_for,
    unwritable_message,
    written_alone,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.waiting_runs import (
    FATES,
    Given,
    check_given,
    fate,
    of_others,
    place_for,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.writer import report_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._slow.explanation import measured, slow_lines

display = Display()
NO_LIMIT = 1 << 62  # bytes
Result = dict[str, Any]


class ActionModule(Action):
    """One task for the head."""

    BYPASS_HOST_LOOP = True
    options_are_typed = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed, runs (fetched, or would be), dropped and others (left alone)."""
        asked = cast("Given", given)
        check_given(asked)
        self.limit = parse_bytes("fetch_limit", given["fetch_limit"]) if given["fetch_limit"] else NO_LIMIT
        if given["only_check"]:
            return {"changed": False}
        try:
            self.head = cluster_from_hostvars(to_plain(variables["groups"]), variables["hostvars"]).head
            self.ssh = ssh_words(self._connection, self.head)
            with Session(self.head, self.ssh) as session:
                waiting = session.collect(identity(), self._task.check_mode)
            fates = [fate(run, asked) for run in waiting]
            result = {name: [run for run, what in zip(waiting, fates, strict=True) if what == name] for name in FATES}
            problems = [self.bring(run, asked) for run in result["runs"]] + [
                self.drop(run) for run in result["dropped"]
            ]
        except HeadLost as error:
            return {"failed": True, "msg": str(error)}
        if result["others"]:
            display.display(of_others(result["others"], self.head.name))
        failed = [problem for problem in problems if problem]
        changed = bool(result["runs"] or result["dropped"])
        return {**result, **({"failed": True, "msg": "; ".join(failed)} if failed else {"changed": changed})}

    def bring(self, run: WaitingRun, given: Given) -> str:
        """Fetch one run unless in check mode, and show it. Return what failed; the next run is fetched anyway."""
        try:
            run_dir, placement = place_for(run, given)
        except InputError as error:
            return str(error)
        run["run_dir"] = str(run_dir)
        if is_fetched(run_dir):
            return self.forget(run, f"was already fetched; run: {run_dir}")
        try:
            if not self._task.check_mode:
                run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
                with written_alone(run_dir), Session(self.head, self.ssh) as session:
                    limit = min(self.limit, room_for(run_dir))
                    home = within_room(run_dir, placement, noted_limits(run_dir))
                    missing = session.fetch(run["job_id"], run_dir, placement, limit, artifacts=home)
                    for line in home.said:
                        display.display(line)
                if missing:
                    return f"{run['job_id']}: the files of {'; '.join(missing)}"
        except OSError as error:
            return unwritable_message(error, run_dir, self.head.name)
        told = None if self._task.check_mode else explained_file(run_dir)
        why = said(told["cause"], None) if told else ""
        display.display(f"job {run['job_id']} {run['state']}; run: {run_dir}{why}")
        for line in slow_lines(measured(told, run_dir)) if told else ():
            display.display(line)
        problem = "" if self._task.check_mode else report_of(run_dir)
        if problem:
            display.warning(problem)
        return ""

    def drop(self, run: WaitingRun) -> str:
        """Drop a run without fetching it, and return what failed."""
        return self.forget(run, "dropped: the next clean.yml removes its files")

    def forget(self, run: WaitingRun, why: str) -> str:
        """Release one run on the head unless in check mode, show it, and return what failed."""
        if not self._task.check_mode:
            with Session(self.head, self.ssh) as session:
                missing = session.forget(run["job_id"])
            if missing:
                return f"{run['job_id']} cannot be dropped: {'; '.join(missing)}"
        display.display(f"job {run['job_id']} {run['state']}; {why}")
        return ""
