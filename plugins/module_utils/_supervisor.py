# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The supervisor on the head: does what the controller asks over one channel, and outlives it if it must.

It stages and runs a job under a guard, shows what ranks write, and brings the run home. If the controller is gone it
ends the job, and the result waits in the job directory for the next clean.yml.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any, Iterator

from ansible_collections.torchfleet.cluster.plugins.module_utils import _processes
from ansible_collections.torchfleet.cluster.plugins.module_utils._channel import Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._guard import STOPPED_SECONDS, Guard
from ansible_collections.torchfleet.cluster.plugins.module_utils._jobdir import HOME_MARK, JobDir, jobs, remove
from ansible_collections.torchfleet.cluster.plugins.module_utils._lines import Follower, Line, Value
from ansible_collections.torchfleet.cluster.plugins.module_utils._result import write_result
from ansible_collections.torchfleet.cluster.plugins.module_utils._survey import home_path, survey

Json = Any
END_SECONDS = 3.0  # beyond `grace`, for a guard that was told to end the job
LOOK_SECONDS = 0.1  # how often rank files are looked at for the live view


class Supervisor:
    """Serves one controller until it hangs up."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.signalled = ""

    def serve(self) -> None:
        """Answer frames until the channel ends: survey, run, fetch, collect."""
        signal.signal(signal.SIGTERM, self.on_signal)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        while True:
            try:
                frame = self.channel.receive()
            except EOFError:
                return
            if frame is not None:
                getattr(self, "on_" + frame["kind"])(frame)

    def on_signal(self, number: int, _frame: object) -> None:
        self.signalled = signal.Signals(number).name

    def on_survey(self, frame: dict[str, Json]) -> None:
        self.channel.send("survey", facts=survey(frame["request"]))

    def on_run(self, frame: dict[str, Json]) -> None:
        try:
            run = Run(self, frame["order"])
        except OSError as error:
            self.channel.send("refused", reason=f"cannot stage the job on {frame['order']['host']}: {error}")
            return
        self.channel.send("result", result=run.follow())

    def on_fetch(self, frame: dict[str, Json]) -> None:
        """Send the files of a job; when the controller says it has them, drop what only it needs."""
        job = JobDir(os.path.join(home_path(frame["home"]), "jobs", frame["job_id"]))
        for name in files_of(job):
            self.channel.send_file(name, job.at(name))
        self.channel.send("fetched")
        try:
            answer = self.channel.receive()
        except EOFError:
            return
        if answer and answer["kind"] == "home":
            remove(job.at("ranks"))
            open(job.at(HOME_MARK), "w").close()

    def on_collect(self, frame: dict[str, Json]) -> None:
        """Name the jobs of a controller that are over and not home.

        Unless it is a dry run, write the result of those whose every guardian died.
        """
        waiting = []
        for job in jobs(home_path(frame["home"])):
            order = job.read("order.json")
            if not order or order["controller"] != frame["controller"] or os.path.exists(job.at(HOME_MARK)):
                continue
            if not job.running():
                state = state_of(job, frame["dry_run"])
                waiting.append({"job_id": job.job_id, "run_dir": order["run_dir"], "state": state})
        self.channel.send("waiting", jobs=waiting)


def state_of(job: JobDir, dry_run: bool) -> str:
    """Return the state of a job that is over; if all who could write its result are gone, it is lost."""
    found = job.read("result.json")
    if found is None and not dry_run:
        job.claim_end("lost", "the supervisor and the guard died")
        found = write_result(job, final_metrics(job))
    return str(found["state"]) if found else "lost"


def files_of(job: JobDir) -> Iterator[str]:
    """Yield the names of the files of a job that go home, the result last: where it is, all is."""
    for name in ("launcher.out", "metrics.jsonl"):
        if os.path.exists(job.at(name)):
            yield name
    ranks = sorted(os.listdir(job.at("ranks")), key=int) if os.path.isdir(job.at("ranks")) else []
    for rank in ranks:
        for name in ("stdout", "stderr", "record.json"):
            if os.path.exists(job.at("ranks", rank, name)):
                yield os.path.join("ranks", rank, name)
    yield "result.json"


class Run:
    """One job from staging to result."""

    def __init__(self, supervisor: Supervisor, order: dict[str, Json]) -> None:
        self.supervisor, self.channel = supervisor, supervisor.channel
        self.job = JobDir(os.path.join(order["home"], "jobs", order["job_id"]))
        self.order = order
        self.stage()
        self.metrics = Metrics(self.job)
        self.latest: dict[int, dict[str, Value]] = {}
        self.stopped: float | None = None
        self.followers = self.make_followers()

    def stage(self) -> None:
        """Make the job directory with all that the launcher and the ranks read. OSError leaves nothing behind."""
        self.job.create([place["rank"] for place in self.order["placement"]])
        try:
            self.lock = self.job.lock()
            self.order["private_tmp"] = private_directory()
            self.order["started"] = time.time()
            for name, text in self.order.pop("files").items():
                with open(self.job.at(name), "w") as file:
                    file.write(text)
            self.job.write("order.json", self.order)
            self.job.write("supervisor.json", {"pid": os.getpid()})
        except OSError:
            remove(self.order.get("private_tmp", ""))
            remove(self.job.path)
            raise

    def make_followers(self) -> list[Follower]:
        shown = self.order["show_ranks"]
        followers = []
        for place in self.order["placement"]:
            for stream in ("stdout", "stderr"):
                show = place["rank"] in shown
                if show or stream == "stdout":
                    path = self.job.rank(place["rank"], stream)
                    follower = Follower(path, place["rank"], stream, show, self.show_line, self.take_report)
                    followers.append(follower)
        return followers

    def show_line(self, line: Line) -> None:
        self.channel.offer("line", rank=line.rank, stream=line.stream, text=line.text, skipped=line.skipped)

    def take_report(self, rank: int, values: dict[str, Value]) -> None:
        self.metrics.add(rank, values)
        if rank in self.order["show_ranks"]:
            self.latest[rank] = values

    def follow(self) -> dict[str, Json]:
        """Run the guard, follow until it is gone, and return the result. Whatever happens to it, nothing stays."""
        _processes.become_subreaper()
        guard, says, gone = self.start_guard()
        self.channel.send("started")
        why, patience = "", 0.0
        while not self.channel.wait(LOOK_SECONDS, gone):
            reason = self.reason_to_end() or self.overdue()
            if reason and not why:
                why, patience = reason, time.monotonic() + self.order["grace"] + END_SECONDS
                tell(says, reason)
            self.stopped = _processes.stopped_for(guard, self.stopped)
            late = why and time.monotonic() > patience
            if late or (self.stopped is not None and time.monotonic() - self.stopped > STOPPED_SECONDS):
                os.kill(guard, signal.SIGKILL)  # stopped or stuck: burying it does its work
            self.look()
        self.bury(guard, why or "guard_died\tthe guard died")
        self.look(last=True)
        remove(self.order["private_tmp"])
        return write_result(self.job, self.metrics.last)

    def look(self, last: bool = False) -> None:
        """Read what ranks wrote; of many reports in one look the last is shown, all are kept."""
        for follower in self.followers:
            follower.look(last)
        for rank, values in self.latest.items():
            self.channel.offer("report", rank=rank, values=values)
        self.latest.clear()

    def overdue(self) -> str:
        """Return the reason to end a job whose guard should have ended it by now."""
        timeout = self.order["job_timeout"]
        late = timeout and time.time() > self.order["started"] + timeout + 1.0
        return f"timed_out\tjob_timeout of {timeout:g} s" if late else ""

    def reason_to_end(self) -> str:
        """Return "reason<tab>detail" if the controller, its absence or a signal wants the job to end."""
        if self.supervisor.signalled:
            return f"cancelled\t{self.supervisor.signalled} to the supervisor"
        try:
            frame = self.channel.receive(0)
        except EOFError:
            return "lost\tthe controller died"
        return f"{frame['reason']}\t{frame['detail']}" if frame and frame["kind"] == "end" else ""

    def start_guard(self) -> tuple[int, int, int]:
        """Fork the guard. Return its pid, a descriptor to tell it things, and one that ends when it is gone."""
        heard, says = os.pipe()
        gone, stays = os.pipe()
        pid = os.fork()
        if pid:
            os.close(heard)
            os.close(stays)
            return pid, says, gone
        status = 1
        try:
            for descriptor in (says, gone, self.channel.incoming, self.channel.outgoing):
                os.close(descriptor)
            self.guard(heard)
            status = 0
        except BaseException:  # a fork must not run on as a second supervisor
            import traceback

            with open(self.job.at("launcher.out"), "a") as file:
                traceback.print_exc(file=file)
        os._exit(status)

    def guard(self, supervisor: int) -> None:
        """In the guard process: run the job; if the supervisor is gone at the end, say what became of it."""
        above = os.getppid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _processes.become_subreaper()
        Guard(self.job, self.order, supervisor).run()
        if os.getppid() != above:
            write_result(self.job, final_metrics(self.job))
            remove(self.order["private_tmp"])

    def bury(self, guard: int, why: str) -> None:
        """Collect the guard; if it did not leave by itself, do its work, then look for what escaped both."""
        status = os.waitpid(guard, 0)[1]
        if status != 0:
            reason, _tab, detail = why.partition("\t")
            Guard(self.job, self.order, -1).finish((reason, detail))

        def escaped() -> list[_processes.Process]:
            return [process for process, mark in _processes.marked() if mark.job_dir == self.job.path]

        found = _processes.end_all(escaped, self.order["grace"])
        if found:
            self.job.write("leftovers.json", (self.job.read("leftovers.json") or []) + found)


class Metrics:
    """Collects reports: each one a row of metrics.jsonl, the last value of each name for the result."""

    def __init__(self, job: JobDir) -> None:
        self.file = os.open(job.at("metrics.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self.last: dict[str, Value] = {}
        self.rank_of: dict[str, int] = {}

    def add(self, rank: int, values: dict[str, Value]) -> None:
        """Take one report. Of several ranks that report the same name the lowest is believed."""
        try:
            row = {**values, "time": round(time.time(), 3), "rank": rank}
            os.write(self.file, (json.dumps(row) + "\n").encode())
        except OSError:  # a full disk ends the job by the rank that hits it, not by its metrics
            pass
        for name, value in values.items():
            if rank <= self.rank_of.get(name, rank):
                self.rank_of[name], self.last[name] = rank, value


def tell(guard: int, reason: str) -> None:
    """Tell the guard why to end the job; if it died in this very moment, that is noticed elsewhere."""
    try:
        os.write(guard, reason.encode())
    except BrokenPipeError:
        pass


def private_directory() -> str:
    """Make a directory of the launcher's own: 0700, and short, because Unix sockets go in there (108 bytes at most)."""
    path = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"torchfleet-{os.urandom(8).hex()}")
    os.mkdir(path, 0o700)
    return path


def final_metrics(job: JobDir) -> dict[str, Value]:
    """Read the reports of all ranks again, for when the supervisor that had followed them is gone."""
    metrics = Metrics(job)
    for place in job.read("order.json")["placement"]:
        rank = place["rank"]
        Follower(job.rank(rank, "stdout"), rank, "stdout", False, lambda _line: None, metrics.add).look(last=True)
    return metrics.last


def main() -> None:
    """Serve the controller at the other end of stdin and stdout."""
    Supervisor(Channel(0, 1)).serve()
