# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The session with the head: a process there, its channel, and the controller's requests over it."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.file_messages import Fetch, File
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.job_rows import JobRow, WaitingRun
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import JobOrder, RunOrder
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import Reason
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import AnyFacts, Result
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.restarts import Rule
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import frames
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import (
    FromHead,
    Refused,
    Run,
    SeenJob,
    Shown,
    SurveyRequest,
    SurveyRoute,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import (
    end as end_message,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import Stopped, StopWatch
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster, Node

from .backends import BACKENDS
from .brought_home import PLACE, BroughtHome
from .connection import DEFAULT_HOME, Connection, HeadLost
from .last_look import bring_last_look
from .request import Request
from .requirements import by_job, not_alone
from .run_directory import FETCHED
from .workdir import Folder

ANY_FILE = re.compile(
    r"(attempts\.json|clocks\.json|launcher(\.[A-Za-z0-9][A-Za-z0-9._-]{0,252})?\.out"
    r"|last_look\.json|metrics\.jsonl|result\.json|usage\.json)\Z"
)
RESULT_BYTES = 64 << 20  # of result.json, which is fetched whatever the limit
FRAME_BYTES = 256  # that a frame without data counts for
FILES_MOST = 100_000  # of a run: those of 33,000 ranks
ATTEMPTS_MOST = 100  # whose files may be more than that, where the ranks are known


class Session(Connection):
    """What the supervisor on the head is asked for. Closing the session ends what still runs."""

    def survey(self, cluster: Cluster, request: Request, program: str = "", data: str = "") -> dict[str, AnyFacts]:
        """Return the facts of every node by name, as survey() there finds them, or `unreachable` with the reason.

        `program`: the name of the environment that the program needs, `data`: of its data set; empty texts for none.
        InputError if our code cannot be copied to the head.
        """
        nodes = {node.name: node for node in cluster.workers if node.name != self.head.name}
        routes: list[SurveyRoute] = [
            {
                "host": node.name,
                "home": node.home or DEFAULT_HOME,
                "interpreter": node.interpreter,
                "request": survey_request(node, request, (), program, data),  # the head alone reads launcher_args
            }
            for node in nodes.values()
        ]
        own = survey_request(self.head, request, request.options.args, program, data)
        try:
            answer = self.ask({"kind": "survey", "beats": True, "request": own, "nodes": routes})
        except HeadLost as lost:
            if not self.remote.channel.lost:
                raise
            raise self.unusable_home(lost) from None
        if answer["kind"] != "survey" or answer["nodes"].keys() != nodes.keys():
            raise self.other_question()
        return {self.head.name: answer["facts"], **answer["nodes"]}

    def ship(self, folder: Folder, names: list[str]) -> None:
        """Bring a folder to nodes; only what none of them has is sent. InputError if a node cannot take it."""
        here = self.head.name if self.head.name in names else ""
        nodes = [name for name in names if name != self.head.name]
        files = folder.listing()
        asked = self.ask(
            {"kind": "folder", "beats": True, "home": self.home, "files": files, "here": here, "nodes": nodes}
        )
        wanted = asked["wanted"] if asked["kind"] == "wanted" else []
        paths = {digest: path for path, (digest, _executable) in folder.files.items()}
        foreign = [digest for digest in wanted if digest not in paths]
        if foreign:  # the head asks by content, so what is not in the folder cannot even be said
            raise HeadLost(f"invalid answer from head {self.head.name}: it asks for {foreign[0][:100]!r}")
        for digest in wanted:
            self.remote.channel.send_file(digest, os.path.realpath(os.path.join(folder.root, paths[digest])))
        answer = self.ask({"kind": "files_sent", "beats": True})
        if answer["kind"] != "files_checked":
            raise self.other_question()
        if answer["reason"]:
            raise InputError("workload", folder.root, f"cannot be shipped: {answer['reason']}")

    def run(
        self,
        order: RunOrder,
        show: Callable[[Shown], None],
        stop: StopWatch,
        detached: bool = False,
        waits: bool = False,
        queue_timeout: float | None = None,
        tick: Callable[[], None] = lambda: None,
        restart: Rule | None = None,
    ) -> Result | None:
        """Run a job and return its result; frames in between go to `show`. None: it is `detached`, and goes on there.

        `waits`: it has its turn in the head's queue; a detached one enters that, for `queue_timeout` seconds at most.
        `restart`: by which the head starts a detached one again. `stop` is asked and `tick` called many times a second.
        Stopped if the job was not started, HeadLost if the user insists. InputError if it could not be staged.
        """
        stop.check()
        job = order["job"]
        planned = [(place["rank"], place["host"]) for place in job["placement"]]
        asked = Run(kind="run", order=order, beats=True, detached=detached, waits=waits, queue_timeout=queue_timeout)
        self.remote.channel.send({**asked, "restart": restart})
        end_sent = False

        def listen() -> bool:
            nonlocal end_sent
            tick()
            if not end_sent and (reason := stop.reason()):
                end_sent = True
                self.remote.channel.send(end_message(reason))
            return stop.insisted()

        while True:
            frame = self.answer(listen, job["lease"], math.inf)
            if frame["kind"] == "refused":
                raise refusal(frame, job)
            if frame["kind"] == "result":
                return self.believed(frame["result"], job["job_id"], planned)
            self.queued |= frame["kind"] == "queued"
            if not (detached and frame["kind"] == "started"):
                show_news(frame, planned, show)
            if detached and frame["kind"] in ("started", "queued"):
                return None

    def attach(self, job_id: str) -> list[tuple[int, str]]:
        """Begin to follow a job that the head knows; return its ranks and their hosts. InputError if it knows none."""
        answer = self.ask({"kind": "attach", "beats": True, "home": self.home, "job_id": job_id})
        if answer["kind"] == "refused":
            raise InputError("job_id", job_id, answer["reason"])
        if answer["kind"] != "attached" or not answer["placement"]:
            raise self.other_question()
        return [(place["rank"], place["host"]) for place in answer["placement"]]

    def follow(
        self,
        job_id: str,
        planned: list[tuple[int, str]],
        show: Callable[[Shown], None],
        stop: StopWatch,
        end: Reason | None = None,
        tick: Callable[[], None] = lambda: None,
    ) -> Result:
        """Show what an attached job tells until it is over, and return its result. Stopped if the user leaves it.

        `planned`: its ranks and their hosts; `end`: why it is to be ended. `tick` is called many times a second.
        """
        if end:
            self.remote.channel.send(end_message(end))

        def leave() -> bool:
            tick()
            if stop.reason():
                raise Stopped
            return False

        while True:
            frame = self.answer(leave, work=math.inf)
            if frame["kind"] == "refused":
                raise HeadLost(frame["reason"])
            if frame["kind"] == "result":
                return self.believed(frame["result"], job_id, planned)
            show_news(frame, planned, show)

    def jobs(self, controller: str) -> list[JobRow]:
        """Return the jobs that the head knows, oldest first."""
        answer = self.ask({"kind": "jobs", "beats": True, "home": self.home, "controller": controller})
        if answer["kind"] != "jobs":
            raise self.other_question()
        return answer["jobs"]

    def look(self, job_id: str, asks: bool = True) -> SeenJob:
        """Look at the ranks of a job that runs; with `asks` they tell where they are. InputError if there is none."""
        answer = self.ask({"kind": "look", "beats": True, "home": self.home, "job_id": job_id, "asks": asks})
        if answer["kind"] != "looked":
            raise self.other_question()
        if not answer["placement"]:
            raise InputError("job_id", job_id, "no such job runs; ansible-playbook playbooks/jobs.yml lists them")
        return {"placement": answer["placement"], "evidence": answer["evidence"], "missing": answer["missing"]}

    def believed(self, result: Result, job_id: str, planned: list[tuple[int, str]]) -> Result:
        """Return a result that is one of this job: its id and its ranks on their hosts. HeadLost for another."""
        reported = [(row["rank"], row["host"]) for row in result["ranks"]]
        seen = [(row["rank"], row["host"]) for row in result["placement"]]
        if result["job_id"] != job_id or reported != planned or seen != planned:
            raise HeadLost(f"invalid answer from head {self.head.name}: its result belongs to another job")
        return result

    def fetch(
        self,
        job_id: str,
        run_dir: Path,
        placement: Collection[tuple[int, str]] | None,
        limit: int,
        give_up: Callable[[], bool] = lambda: False,
        over: bool = True,
        artifacts: BroughtHome | None = None,
    ) -> list[str]:
        """Fetch the files of a job, and return the nodes whose files are missing, each with the reason.

        What ranks wrote, which `artifacts` takes, lies in a place of its own until all of it has come.

        Unless the job is `over` they are as far as they go, and stay on the nodes as well.

        `placement`: ranks of the job and their hosts, None if they are not known here; `limit`: bytes of all files
        together. What is more stays on the nodes, as all does if it cannot be written here (OSError), or if `give_up`
        says so (HeadLost). A head that sends without end is cut off.
        """
        with artifacts.arriving(run_dir) if artifacts else contextlib.nullcontext():
            return self.fetch_all(job_id, run_dir, placement, limit, give_up, over, artifacts)

    def fetch_all(
        self,
        job_id: str,
        run_dir: Path,
        placement: Collection[tuple[int, str]] | None,
        limit: int,
        give_up: Callable[[], bool],
        over: bool,
        artifacts: BroughtHome | None,
    ) -> list[str]:
        """Do what fetch() says, into a place that is there."""
        head, wanted = self.head.name, artifacts.limits if artifacts else None
        asked: Fetch = {"kind": "fetch", "home": self.home, "job_id": job_id, "limit": limit, "artifacts": wanted}
        self.remote.channel.send({**asked, "beats": True})
        allowed, left = fetched_names(placement) if placement is not None else None, limit
        frame = self.next_fetched(run_dir, give_up, artifacts)
        allowance, names = limit * (1 + len({host for _rank, host in placement or ()})), set[str]()
        most = max(FILES_MOST, ATTEMPTS_MOST * len(allowed or ()))
        while frame["kind"] != "fetched":
            if frame["kind"] != "file" or not is_of_a_job(frame["name"], allowed):
                raise self.foreign(frame)
            left -= len(frame["data"])
            allowance -= len(frame["data"]) + FRAME_BYTES
            if allowance < -RESULT_BYTES:
                return [f"{head}: it sends more than {limit:,} bytes (fetch_limit), and does not end"]
            names.add(frame["name"])
            if len(names) > most:
                return [f"{head}: it sends more than {most:,} files"]
            if left >= 0 or frame["name"] == "result.json":
                self.store(frame, run_dir)
            frame = self.next_fetched(run_dir, give_up, artifacts)
        cut = [f"all nodes: {-left:,} bytes more than fetch_limit"] if left < 0 else []
        missing = [*frame["missing"], *cut, *(artifacts.damaged if artifacts else ())]
        if artifacts:
            artifacts.settle(run_dir, over)
        if over:
            bring_last_look(job_id, run_dir, placement)
            self.note_fetched(run_dir, missing)
            if not cut and not (artifacts and artifacts.damaged):
                self.remote.channel.send({"kind": "received"})
        return missing

    def foreign(self, frame: FromHead) -> HeadLost:
        """Return the error for a frame that does not belong to the job whose files are fetched."""
        what = frame["name"][:100] if frame["kind"] == "file" else frame["kind"]
        return HeadLost(
            f"invalid answer from head {self.head.name}: it sent {what!r}, which does not belong to the job"
        )

    def note_fetched(self, run_dir: Path, missing: list[str]) -> None:
        """Note that the files of a job that is over were fetched, and what is missing. OSError."""
        data = json.dumps({"missing": missing}).encode() + b"\n"
        self.store({"kind": "file", "name": FETCHED, "first": True, "data": data}, run_dir)

    def next_fetched(self, run_dir: Path, give_up: Callable[[], bool], artifacts: BroughtHome | None) -> FromHead:
        """Return the next frame that is not about what ranks wrote: that is stored. HeadLost, OSError."""
        while True:
            frame = self.answer(give_up)
            if artifacts is None or (frame["kind"] != "file" and frame["kind"] != "artifacts"):
                return frame
            try:
                if not artifacts.take(frame):
                    return frame
            except ValueError as error:
                what = f"it sent no artifact of the job: {error}"
                raise HeadLost(f"invalid answer from head {self.head.name}: {what}") from None
            if frame["kind"] == "file":
                self.store(frame, run_dir / PLACE)

    @staticmethod
    def store(frame: File, run_dir: Path) -> None:
        """Write one block of a file below the run directory. The name has been checked; no link is followed."""
        path = run_dir / frame["name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if frame["first"] else os.O_APPEND)
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(frame["data"])

    def collect(self, controller: str, dry_run: bool) -> list[WaitingRun]:
        """Return the jobs that are over and not fetched."""
        answer = self.ask(
            {"kind": "collect", "beats": True, "home": self.home, "controller": controller, "dry_run": dry_run}
        )
        if answer["kind"] != "waiting":
            raise self.other_question()
        return answer["jobs"]

    def forget(self, job_id: str) -> list[str]:
        """Drop the files of a job on all its nodes; return the nodes where that failed, each with the reason."""
        answer = self.ask({"kind": "forget", "beats": True, "home": self.home, "job_id": job_id})
        return answer["missing"] if answer["kind"] == "forgotten" else ["it did not answer"]


def refusal(frame: Refused, job: JobOrder) -> InputError:
    """Return the error for a job that the nodes refuse: other jobs started since the survey, or what the nodes say."""
    running = frame.get("running", {})
    jobs = by_job(running)
    if not jobs:
        return InputError("job", job["job_id"], frame["reason"])
    hosts = dict.fromkeys(place["host"] for place in job["placement"])
    return not_alone(jobs, [host for host in hosts if not running.get(host)], job["exclusive"])


def show_news(frame: FromHead, planned: Sequence[object], show: Callable[[Shown], None]) -> None:
    """Show a frame that tells how far the job is, or what a rank said that it has."""
    if frame["kind"] == "line" or frame["kind"] == "report":
        if frame["rank"] < len(planned):
            show(frame)
    elif frame["kind"] == "started" or frame["kind"] == "queued" or frame["kind"] == "restarted":
        show(frame)


def is_of_a_job(name: str, allowed: Collection[str] | None) -> bool:
    """Whether a file may lie in a run directory: one of `allowed`, or of any job. Earlier attempts have the same."""
    earlier = frames.ATTEMPT.match(name)
    name = name[earlier.end() :] if earlier else name
    return name in allowed if allowed is not None else bool(ANY_FILE.match(name) or frames.RANK_FILE.match(name))


def fetched_names(placement: Collection[tuple[int, str]]) -> set[str]:
    """Return the names of all files that a job can have, below its run directory."""
    names = {
        "attempts.json",
        "clocks.json",
        "last_look.json",
        "launcher.out",
        "metrics.jsonl",
        "result.json",
        "usage.json",
        *(f"launcher.{host}.out" for _rank, host in placement),
    }
    return names | {f"ranks/{rank}/{name}" for rank, _host in placement for name in frames.RANK_FILES}


def survey_request(
    node: Node, request: Request, launcher_args: Sequence[str], program: str = "", data: str = ""
) -> SurveyRequest:
    """Return the survey request for a node."""
    return {
        "home": node.home or DEFAULT_HOME,
        "python": request.python or node.python,
        "launcher": request.launcher,
        "launcher_path": node.launcher_paths.get(request.launcher, ""),
        "launcher_args": list(launcher_args),
        "backend": request.backend if request.backend and BACKENDS[request.backend].asked else "",
        "port": request.master_port,
        "ports": request.options.ports,
        "program": program,
        "data": data,
        "script": "" if request.ship else request.workload,
        "container": node.container.wanted,
    }
