# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Jobs that are over and not fetched: which there are, what became of those whose head died, and dropping them."""

from __future__ import annotations

import contextlib
import os

from .basics.home import home_path
from .basics.job_directory import JobDir, jobs
from .head.result import write_result
from .node_job.node_job import node_report
from .nodes.remote_node import ANSWER_SECONDS, in_head_time, in_parallel, own_ranks_report
from .queue.job_queue import Queue
from .queue.waiting_job import remove_dead
from .ranks.metrics import final_metrics
from .transfer.fetched_files import age, mark_fetched, state_in
from .transfer.file_desk import Head
from .types import job_rows, orders, records
from .types.reasons import SUPERVISOR_DIED, FinalState
from .wire import protocol
from .wire.link import ConnectionLost, wrong_answer


class FinishedJobs:
    """What is asked of the jobs of this node that are over, over the channel of its supervisor, `head`."""

    def __init__(self, head: Head) -> None:
        self.head, self.channel = head, head.channel

    def on_collect(self, frame: protocol.Collect) -> None:
        """Send the jobs that are over and not fetched, and which of them the asking controller had started.

        Unless it is a dry run, write the result of those whose supervisor and guard died.
        """
        waiting: list[job_rows.WaitingRun] = []
        with self.head.sending_beats(frame):
            with contextlib.suppress(OSError):
                remove_dead(Queue(home_path(frame["home"])))
            for job in jobs(home_path(frame["home"])):
                order, staging = job.order(), job.staging()
                if not order or not staging or order["head"] != order["host"] or job.is_fetched() or job.running():
                    continue
                own = order["controller"] == frame["controller"]
                try:
                    state = self.state_of(job, order, staging, frame["dry_run"])
                except (OSError, ValueError, ArithmeticError):  # its program may have closed it, or written nonsense
                    state = "lost"
                waiting.append(
                    {
                        "job_id": job.job_id,
                        "run_dir": order["run_dir"],
                        "state": state,
                        "own": own,
                        "seconds": age(job),
                    }
                )
        self.channel.send({"kind": "waiting", "jobs": waiting})

    def on_forget(self, frame: protocol.Forget) -> None:
        """Drop the files of a job on all its nodes. Send the nodes where that failed."""
        home = home_path(frame["home"])
        job = JobDir(os.path.join(home, "jobs", frame["job_id"]))
        with self.head.sending_beats(frame):
            order = job.order()
            missing = ["it still runs"] if job.running() else []
            for route in job.routes() if order else []:
                try:
                    peer = self.head.reach(route, home)
                    asked = protocol.Forget(kind="forget", beats=True, home=peer.home, job_id=job.job_id)
                    answer = peer.remote.ask(asked, ANSWER_SECONDS)
                    if answer["kind"] != "forgotten":
                        raise wrong_answer(asked, answer)
                    missing += [f"{peer.name}: {reason}" for reason in answer["missing"]]
                except ConnectionLost as lost:
                    missing.append(f"{route['host']}: {lost}")
            if order and not missing:
                mark_fetched(job)
        self.channel.send({"kind": "forgotten", "missing": missing})

    def state_of(self, job: JobDir, order: orders.Order, staging: orders.Staging, dry_run: bool) -> FinalState:
        """Return the state of a job that is over; it is lost if all died who could write a result."""
        state = state_in(job.read("result.json"))
        if not state and not dry_run:
            job.claim_end(*SUPERVISOR_DIED)
            routes = job.routes()
            reports = in_parallel(lambda route: self.report_of(route, job), routes)
            node_reports = {route["host"]: report for route, report in zip(routes, reports) if report}
            state = write_result(job, order, staging, final_metrics(job, order), node_reports)["state"]
        return state or "lost"

    def report_of(self, route: orders.Route, job: JobDir) -> records.NodeReport | None:
        """Return another node's report of a job, or None if it has none or does not answer."""
        try:
            peer = self.head.reach(route, os.path.dirname(os.path.dirname(job.path)))
            asked = protocol.ReportRequest(kind="node_report", beats=True, home=peer.home, job_id=job.job_id)
            answer = peer.remote.ask(asked, ANSWER_SECONDS)
            if answer["kind"] != "node_report":
                raise wrong_answer(asked, answer)
        except ConnectionLost as lost:
            self.head.given_up[route["host"]] = str(lost)
            return None
        return in_head_time(own_ranks_report(peer.name, answer["report"]), peer.offset) if answer["report"] else None

    def on_node_report(self, frame: protocol.ReportRequest) -> None:
        """Send this node's report of a job whose head died."""
        job = JobDir(os.path.join(home_path(frame["home"]), "jobs", frame["job_id"]))
        with self.head.sending_beats(frame):
            order = job.order()
            report = node_report(job, order, final_metrics(job, order)) if order and not job.running() else None
        self.channel.send({"kind": "node_report", "report": report})
