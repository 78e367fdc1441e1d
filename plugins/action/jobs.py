# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.jobs: list, follow and end jobs. Documentation: plugins/modules/jobs.py."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import CANCELLED_BY_USER
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import Shown
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes.explanation import ExplainedResult, explained
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.identity import identity
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import Stopped, StopWatch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.keyboard import Keyboard
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.screen import Screen, columns
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import parse_bytes
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.hostvars import (
    cluster_from_hostvars,
    ssh_words,
    to_plain,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.brought_home import as_asked_for
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.collect_watch import (
    CollectWatch,
    fetch_running,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.job_list import (
    job_table,
    last_lines,
    news_of,
    place_of,
    told_row,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.key_look import KeyLook
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import (
    parse_every,
    parse_job_id,
    parse_query,
    parse_ranks,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.run_directory import (
    COLLECTS_NOTHING,
    is_fetched,
    noted_every,
    noted_limits,
    noted_run,
    run_dir_of,
    unwritable_message,
    written_alone,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.turn import take_out
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.view import View, summary, verdict
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.watches import Watches
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.writer import report_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._slow.explanation import (
    MeasuredResult,
    measured,
    slow_lines,
)

Result = dict[str, Any]
display = Display()


class ActionModule(Action):
    """One task for the head."""

    BYPASS_HOST_LOOP = True
    said: Sequence[str] = ()  # of what ranks wrote and was brought home
    options_are_typed = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return changed, and jobs, or state and run_dir."""
        self.given, self.job_id = given, parse_job_id(given["job_id"] or None)
        self.limit, query = parse_bytes("fetch_limit", given["fetch_limit"]), given["result_query"]
        self.query = None if query is None else parse_query("result_query", query)
        self.shown = parse_ranks("show_ranks", given["show_ranks"])
        if given["do"] != "list" and not self.job_id:
            raise InputError("job_id", None, "name a job; ansible-playbook playbooks/jobs.yml lists them")
        self.head = cluster_from_hostvars(to_plain(variables["groups"]), variables["hostvars"]).head
        self.ssh = ssh_words(self._connection, self.head)
        try:
            with StopWatch() as stop, Session(self.head, self.ssh) as session:
                if given["do"] == "list":
                    return self.show_all(session)
                fetches = {"logs": self.logs, "collect": self.collect}.get(given["do"])
                if fetches:
                    self.refuse_waiting(session, self.job_id or "")
                    return fetches(session, self.job_id or "")
                return self.take_out(session, self.job_id or "") or self.follow(session, stop, self.job_id or "")
        except OSError as error:
            run_dir = Path(given["runs_dir"]) / (self.job_id or "")
            return {"failed": True, "msg": unwritable_message(error, run_dir, self.head.name)}
        except Stopped:
            return {"changed": False, "state": "running", "msg": f"job {self.job_id} goes on"}
        except HeadLost as error:
            return {"failed": True, "msg": str(error)}

    def show_all(self, session: Session) -> Result:
        """Show all jobs of the head."""
        rows = session.jobs(identity())
        display.display(job_table(rows, self.head.name, columns()))
        return {"changed": False, "jobs": [told_row(row) for row in rows]}

    def take_out(self, session: Session, job_id: str) -> Result | None:
        """Take a job out of the queue that is to be ended and waits with its controller. None: it does not."""
        if self.given["do"] != "cancel":
            return None
        if self._task.check_mode:
            waits = place_of(session.jobs(identity()), job_id)
            return {"changed": True, "msg": f"job {job_id} would be taken out of the queue"} if waits else None
        if not take_out(session, job_id):
            return None
        display.display(f"job {job_id} is taken out of the queue of {self.head.name}; nothing of it was started")
        return {"changed": True, "state": "cancelled"}

    def refuse_waiting(self, session: Session, job_id: str) -> None:
        """InputError for a job in the queue: nothing of it is there."""
        place = place_of(session.jobs(identity()), job_id)
        if place:
            raise InputError("job_id", job_id, f"it waits in the queue, place {place}: its ranks have written nothing")

    def logs(self, session: Session, job_id: str) -> Result:
        """Fetch what ranks have written until now, and show the end of it."""
        try:
            run_dir, placement = noted_run(job_id, "", self.given["runs_dir"])
        except InputError:  # another controller started it
            return self.logs_elsewhere(session, job_id)
        with written_alone(run_dir):
            home = is_fetched(run_dir)  # then it is whole, and nobody is to write over it
            missing = [] if home else session.fetch(job_id, run_dir, placement, self.limit, over=False)
        for line in [*last_lines(run_dir, placement, self.shown), f"run: {run_dir}"]:
            display.display(line)
        return {"changed": False, "run_dir": str(run_dir), "warnings": missing}

    def logs_elsewhere(self, session: Session, job_id: str) -> Result:
        """Show the end of what ranks of another controller's job have written, and keep nothing of it here."""
        with Session(self.head, self.ssh) as asked:  # it follows the job from then on, and fetches nothing
            placement = asked.attach(job_id)
        with tempfile.TemporaryDirectory(prefix="torchfleet-") as place:
            missing = session.fetch(job_id, Path(place), None, self.limit, over=False)  # only the head says the ranks
            for line in last_lines(Path(place), placement, self.shown):
                display.display(line)
        return {"changed": False, "warnings": missing}

    def collect(self, session: Session, job_id: str) -> Result:
        """Fetch what ranks have written until now of what the job collects."""
        run_dir, placement = noted_run(job_id, "", self.given["runs_dir"])
        with written_alone(run_dir):
            if is_fetched(run_dir):
                return {
                    "changed": False,
                    "run_dir": str(run_dir),
                    "msg": f"job {job_id} is over, and its files are here",
                }
            home, missing = fetch_running(session, job_id, run_dir, placement, self.limit, noted_limits(run_dir))
        if not home.reports and not missing:
            raise InputError("job_id", job_id, COLLECTS_NOTHING)
        for line in home.said:
            display.display(line)
        found: Result = {"changed": bool(home.line), "run_dir": str(run_dir), "warnings": missing}
        wrong = [*missing, *home.refused]
        return {**found, "failed": True, "msg": wrong[0]} if wrong else found

    def follow(self, session: Session, stop: StopWatch, job_id: str) -> Result:
        """Follow a job to its end, or end it. The controller that started it fetches its files."""
        what, watched_by = self.given["do"], self.collects(session, job_id)
        planned = session.attach(job_id)
        if what == "cancel" and self._task.check_mode:
            return {"changed": True, "msg": f"job {job_id} would be ended"}
        stop.hold(
            f"job {job_id} goes on without this terminal", f"follow it again with -e job_id={job_id} -e do=attach"
        )
        screen = Screen()
        hosts = [host for _rank, host in planned]
        view = View(screen.write, hosts, screen.is_terminal(), screen.width, news_of(job_id))
        watches = Watches([watched_by(view.say), *([] if what == "cancel" else [self.keys(job_id, view, stop)])])
        show = watches.seeing(view.show if what == "attach" else ignore)
        try:
            end = CANCELLED_BY_USER if what == "cancel" else None
            outcome = session.follow(job_id, planned, show, stop, end, watches.tick)
        finally:
            watches.close()
            view.close()
        run_dir, missing = self.bring(session, stop, job_id)
        told: MeasuredResult = (
            measured(explained(outcome, Path(run_dir)), Path(run_dir))
            if run_dir
            else {**outcome, "cause": None, "checkpoint": None, "skew": None, "profile": None}
        )
        where = run_dir or f"on {self.head.name}; ansible-playbook clean.yml -e job_id={job_id} fetches it"
        said = [*slow_lines(told), *self.said]
        for line in summary(told, missing, where, view.width, self.query, said, told["checkpoint"]):
            view.say(line)
        screen.flush(stop.reason)
        problem = report_of(Path(run_dir)) if run_dir else ""
        return {**self.answer(told, what == "cancel", where), "warnings": [problem] if problem else []}

    def collects(self, session: Session, job_id: str) -> Callable[[Callable[[str], None]], CollectWatch]:
        """Return what makes, of a function that shows a line, what collects while the job is followed.

        It collects nothing where nothing is to be. InputError if it cannot, and was asked to.
        """
        asked = parse_every(self.given["collect_every"])
        run_dir, placement, every = Path(), list[tuple[int, str]](), None
        if self.given["do"] != "cancel":
            try:
                run_dir, placement = noted_run(job_id, "", self.given["runs_dir"])
                every = noted_every(run_dir, asked)
            except InputError:  # another controller started it
                if asked:
                    raise
        runs = every is not None and not place_of(session.jobs(identity()), job_id)

        def watched_by(say: Callable[[str], None]) -> CollectWatch:
            def connect() -> Session:
                return Session(self.head, self.ssh)

            watch = CollectWatch(job_id, run_dir, placement, (self.limit, noted_limits(run_dir)), every, connect, say)
            if runs:
                watch.begin_at_once()
            return watch

        return watched_by

    def keys(self, job_id: str, view: View, stop: StopWatch) -> KeyLook:
        """Return what looks at a followed job when Enter is pressed."""
        run_dir = run_dir_of(job_id, self.given["runs_dir"])

        def connect() -> Session:
            return Session(self.head, self.ssh)

        keys = KeyLook(job_id, run_dir, Keyboard(stop.parent), connect, view.say, view.terminal)
        keys.begin_at_once()
        return keys

    def bring(self, session: Session, stop: StopWatch, job_id: str) -> tuple[str, list[str]]:
        """Fetch the files of a job that this controller started; return where they are, and what is missing."""
        try:
            run_dir, placement = noted_run(job_id, "", self.given["runs_dir"])
        except InputError:
            return "", []
        with written_alone(run_dir, stop.insisted):
            if is_fetched(run_dir):  # train.yml, which started it, may have followed it as well
                return str(run_dir), []
            home = as_asked_for(run_dir, placement)
            missing = session.fetch(job_id, run_dir, placement, self.limit, stop.insisted, artifacts=home)
        self.said = home.said
        return str(run_dir), missing

    def answer(self, outcome: ExplainedResult, cancelled: bool, where: str) -> Result:
        """Return the result of the task: it fails as train.yml would, unless the job was to be ended."""
        found: Result = {"changed": cancelled, "state": outcome["state"]}
        found |= {"run_dir": where} if Path(where).is_absolute() else {}
        wanted = outcome["state"] == "succeeded" or (cancelled and outcome["state"] == "cancelled")
        return found if wanted else {**found, "failed": True, "msg": verdict(outcome, where, outcome["cause"])}


def ignore(_frame: Shown) -> None:
    """Show nothing."""
