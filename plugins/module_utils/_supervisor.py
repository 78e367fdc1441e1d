# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The supervisor of a node: does what the other end of its channel asks, and outlives it if it must.

On the head the other end is the controller: it surveys, runs a job and brings it home, the other nodes' share over the
cluster's own SSH. On those the other end is the head's supervisor. Whoever loses the other end ends the job, and what
there is waits in the job directories for the next clean.yml.
"""

from __future__ import annotations

import os
import select
import signal
import time
from typing import Any, Collection, Iterator, Mapping

from ansible_collections.torchfleet.cluster.plugins.module_utils._channel import Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._frames import RANK_FILE
from ansible_collections.torchfleet.cluster.plugins.module_utils._jobdir import HOME_MARK, JobDir, jobs, remove
from ansible_collections.torchfleet.cluster.plugins.module_utils._link import LinkLost
from ansible_collections.torchfleet.cluster.plugins.module_utils._metrics import final_metrics
from ansible_collections.torchfleet.cluster.plugins.module_utils._part import Part, part_report
from ansible_collections.torchfleet.cluster.plugins.module_utils._peer import (
    ANSWER_SECONDS,
    BEAT_SECONDS,
    NotStaged,
    Peer,
    everywhere,
    in_our_time,
    own_report,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._result import write_result
from ansible_collections.torchfleet.cluster.plugins.module_utils._run import LOOK_SECONDS, Run
from ansible_collections.torchfleet.cluster.plugins.module_utils._shipment import Shipment, relay
from ansible_collections.torchfleet.cluster.plugins.module_utils._survey import home_path, ssh_config, survey

Json = Any
# What the other end may ask for.
KINDS = (
    *("clock", "survey", "folder", "run", "stage", "drop", "fetch", "collect", "forget", "part", "home"),
    *("beat", "leave", "end", "start", "begin"),
)


class Supervisor:
    """Serves one peer until it hangs up."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.signalled = ""
        self.peers: dict[str, Peer] = {}
        self.shipment: Shipment | None = None

    def serve(self) -> None:
        """Answer frames until the channel ends."""
        signal.signal(signal.SIGTERM, self.on_signal)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        while True:
            try:
                frame = self.channel.receive()
            except EOFError:
                break
            answer = getattr(self, "on_" + frame["kind"], None) if frame is not None else None
            if answer is not None and frame is not None and frame["kind"] in KINDS:
                answer(frame)
        for peer in self.peers.values():
            peer.link.close()

    def on_signal(self, number: int, _frame: object) -> None:
        self.signalled = signal.Signals(number).name

    def on_clock(self, _frame: dict[str, Json]) -> None:
        self.channel.send("clock", time=time.time())

    def on_survey(self, frame: dict[str, Json]) -> None:
        """Tell the facts of this node, and of the others if there are any: theirs are under `others`, by name."""
        request = frame["request"]
        others = request.pop("others", [])
        found = everywhere(lambda other: self.survey_other(request, other), others)
        facts = {other["name"]: answer for other, answer in zip(others, found)}
        self.channel.send("survey", facts=survey(request), others=facts)

    def survey_other(self, request: Mapping[str, Json], other: Mapping[str, Json]) -> dict[str, Json]:
        """Return the facts of another node, or `unreachable` with the reason."""
        try:
            peer = self.reach(other, home_path(request["home"]))
            wanted = {**request, **other["request"]}
            facts: dict[str, Json] = peer.link.expect("survey", ANSWER_SECONDS, request=wanted)["facts"]
        except LinkLost as lost:
            return {"unreachable": str(lost)}
        return {**facts, "clock_offset": round(peer.offset, 4)}

    def reach(self, way: Mapping[str, Json], home: str) -> Peer:
        """Return the peer of a node, with a way there opened unless there is one. LinkLost."""
        name = way["name"]
        if name in self.peers and self.peers[name].lost:
            self.peers.pop(name).link.close()
        if name not in self.peers:
            self.peers[name] = Peer(way, ssh_config(home))
        return self.peers[name]

    def on_folder(self, frame: dict[str, Json]) -> None:
        """Take a folder for this node, if it is meant, and the others in `nodes`."""
        self.shipment = Shipment(home_path(frame["home"]), frame["files"]) if frame["here"] else None
        peers = [self.peers[name] for name in frame["nodes"] if name in self.peers]
        relay(self.channel, self.shipment, frame["here"], peers, frame["files"])

    def on_run(self, frame: dict[str, Json]) -> None:
        """Run a job as its head and send the result."""
        try:
            run = Run(self, frame["order"], self.peers)
        except OSError as error:
            where = "" if isinstance(error, NotStaged) else f" on {frame['order']['host']}"
            self.channel.send("refused", reason=f"cannot stage the job{where}: {error}")
            return
        self.channel.send("result", result=run.follow())

    def on_stage(self, frame: dict[str, Json]) -> None:
        """Stage this node's part of a job and, when the head says so, run it."""
        try:
            part = Part(frame["order"], self.channel.offer, self.shipment)
        except OSError as error:
            self.channel.send("staged", reason=str(error))
            return
        self.channel.send("staged")
        self.channel.patience = frame["lease"]
        try:
            answer = self.channel.receive()
        except EOFError:
            answer = None
        if answer and answer["kind"] == "go":
            Outpost(self, part, frame["lease"]).follow()
        else:
            part.take_back()

    def on_drop(self, _frame: dict[str, Json]) -> None:
        """Hear that a job is dropped which this node had refused itself."""

    def on_fetch(self, frame: dict[str, Json]) -> None:
        """Send the files of a job; when the other end says it has them, drop what only it needs."""
        job = JobDir(os.path.join(home_path(frame["home"]), "jobs", frame["job_id"]))
        names = list(files_of(job))
        for name in names:
            self.channel.send_file(name, job.at(name))
        peers, missing = self.fetch_others(job)
        if os.path.exists(job.at("result.json")):  # last: where it is, all is
            self.channel.send_file("result.json", job.at("result.json"))
        self.channel.send("fetched", missing=missing)
        try:
            answer = self.channel.receive()
        except EOFError:
            return
        if answer and answer["kind"] == "home" and not missing:
            for peer in peers:
                peer.channel.send("home")
            let_go(job)

    def fetch_others(self, job: JobDir) -> tuple[list[Peer], list[str]]:
        """Pass on the files of a job's other nodes; return those nodes, and what could not be had."""
        order = job.read("order.json") or {}
        done, missing = [], []
        for way in order.get("peers") or []:
            try:
                peer = self.reach(way, order["home"])
                peer.channel.send("fetch", home=peer.home, job_id=job.job_id)
                self.pass_on(peer, order)
                done.append(peer)
            except LinkLost as lost:
                missing.append(f"{way['name']}: {lost}")
        return done, missing

    def pass_on(self, peer: Peer, order: Mapping[str, Json]) -> None:
        """Pass file frames on to the controller until the node has sent all. LinkLost for one that is not its own."""
        own_ranks = {place["rank"] for place in order["placement"] if place["host"] == peer.name}
        frame = peer.link.answer(ANSWER_SECONDS)
        while frame["kind"] != "fetched":
            if frame["kind"] == "file":
                name = frame["name"]
                if not goes_home(name, own_ranks):
                    raise LinkLost(f"it sent a file {name[:100]!r}, which is none of its own")
                own = {"metrics.jsonl": name, "launcher.out": f"launcher.{peer.name}.out"}
                first = frame["first"] and name != "metrics.jsonl"  # its rows follow those of the head
                self.channel.send("file", frame["data"], name=own.get(name, name), first=first)
            frame = peer.link.answer(ANSWER_SECONDS)

    def on_collect(self, frame: dict[str, Json]) -> None:
        """Name the jobs that are over and not home, and which of them the controller that asks had started.

        Unless it is a dry run, write the result of those whose every guardian died.
        """
        waiting = []
        for job in jobs(home_path(frame["home"])):
            order = job.read("order.json")
            if not order or os.path.exists(job.at(HOME_MARK)) or order["peers"] is None or job.running():
                continue
            over = {"run_dir": order["run_dir"], "own": order["controller"] == frame["controller"], "seconds": age(job)}
            waiting.append({"job_id": job.job_id, "state": self.state_of(job, order, frame["dry_run"]), **over})
        self.channel.send("waiting", jobs=waiting)

    def on_forget(self, frame: dict[str, Json]) -> None:
        """Let go of a job whose files nobody wants, here and on its other nodes; say where that could not be."""
        job = JobDir(os.path.join(home_path(frame["home"]), "jobs", frame["job_id"]))
        order = job.read("order.json") or {}
        missing = ["it still runs"] if job.running() else []
        for way in order.get("peers") or []:
            try:
                peer = self.reach(way, order["home"])
                told = peer.link.expect("forget", ANSWER_SECONDS, "forgotten", home=peer.home, job_id=job.job_id)
                missing += [f"{peer.name}: {reason}" for reason in told["missing"]]
            except LinkLost as lost:
                missing.append(f"{way['name']}: {lost}")
        if order and not missing:
            let_go(job)
        self.channel.send("forgotten", missing=missing)

    def state_of(self, job: JobDir, order: dict[str, Json], dry_run: bool) -> str:
        """Return the state of a job that is over; if all who could write its result are gone, it is lost."""
        found = job.read("result.json")
        if found is None and not dry_run:
            job.claim_end("lost", "the supervisor died")
            told = {way["name"]: self.ask(way, job) for way in order["peers"]}
            job.write("parts.json", {name: report for name, report in told.items() if report})
            found = write_result(job, final_metrics(job, order))
        return str(found["state"]) if found else "lost"

    def ask(self, way: Mapping[str, Json], job: JobDir) -> dict[str, Json] | None:
        """Return what another node can still tell of its part of a job, or None."""
        try:
            peer = self.reach(way, os.path.dirname(os.path.dirname(job.path)))
            answer = peer.link.expect("part", ANSWER_SECONDS, home=peer.home, job_id=job.job_id)
        except LinkLost:
            return None
        return in_our_time(own_report(peer.name, answer["report"]), peer.offset) if answer["report"] else None

    def on_part(self, frame: dict[str, Json]) -> None:
        """Tell what this node has of a job whose head lost it."""
        job = JobDir(os.path.join(home_path(frame["home"]), "jobs", frame["job_id"]))
        order = job.read("order.json")
        report = part_report(job, order, final_metrics(job, order)) if order and not job.running() else None
        self.channel.send("part", report=report)

    def on_home(self, _frame: dict[str, Json]) -> None:
        """Hear it after a fetch that ended early."""

    def on_beat(self, _frame: dict[str, Json]) -> None:
        """Hear a beat that crossed the end of the job."""

    on_leave = on_end = on_start = on_begin = on_beat


def let_go(job: JobDir) -> None:
    """Drop what only the controller needs of a job, and note that it is home: the next clean takes the rest away."""
    remove(job.at("ranks"))
    job.drop_ballast()
    open(job.at(HOME_MARK), "w").close()


def age(job: JobDir) -> float:
    """Return how many seconds ago a job ended, as far as its files tell."""
    for name in ("result.json", "order.json"):
        try:
            return max(0.0, time.time() - os.path.getmtime(job.at(name)))
        except OSError:
            continue
    return 0.0


def goes_home(name: str, ranks: Collection[int]) -> bool:
    """Whether a node with these ranks may send a file of this name."""
    found = RANK_FILE.match(name)
    return int(found.group(1)) in ranks if found else name in ("launcher.out", "metrics.jsonl")


def files_of(job: JobDir) -> Iterator[str]:
    """Yield the names of the files of a job on this node that go home."""
    for name in ("launcher.out", "metrics.jsonl"):
        if os.path.exists(job.at(name)):
            yield name
    ranks = [name for name in os.listdir(job.at("ranks")) if name.isdigit()] if os.path.isdir(job.at("ranks")) else []
    for rank in sorted(ranks, key=int):
        for name in ("stdout", "stderr", "record.json"):
            if os.path.exists(job.at("ranks", rank, name)):
                yield os.path.join("ranks", rank, name)


class Outpost:
    """Runs a node's part of a job for a head elsewhere, as long as its lease holds."""

    def __init__(self, supervisor: Supervisor, part: Part, lease: float) -> None:
        self.supervisor, self.channel, self.part, self.lease = supervisor, supervisor.channel, part, lease
        self.heard = self.told = time.monotonic()
        self.alone = False

    def follow(self) -> None:
        """Run the part to its end and report it."""
        self.part.start()
        while not self.part.over:
            inputs = [] if self.part.gone else [self.part.ear]
            inputs += [] if self.channel.lost else [self.channel.incoming]
            if self.part.ear in select.select(inputs, [], [], LOOK_SECONDS)[0]:
                for word in self.part.words():
                    self.pass_on(word)
                if self.part.status and not self.part.why:
                    self.pass_on({"kind": "ending", "reason": "guard_died", "detail": "the guard died"})
            self.listen()
            self.beat()
            self.part.check_guard()
            self.part.look()
        self.part.close()
        self.channel.send("over", report=self.part.report())

    def pass_on(self, word: dict[str, Json]) -> None:
        """Tell the head what the guard says, with what it needs to act on it."""
        if word["kind"] == "left":
            word["text"] = self.part.launcher_text()
        self.channel.send(**word)

    def listen(self) -> None:
        """Do what the head says; without it, or a signal, end the part."""
        try:
            frame = None if self.channel.lost else self.channel.receive(0)
            while frame:
                self.heard = time.monotonic()
                if frame["kind"] == "end":
                    self.part.end(frame["reason"], frame["detail"])
                elif frame["kind"] in ("leave", "start", "begin"):
                    self.part.tell(frame["kind"], command=frame.get("command", ""))
                frame = self.channel.receive(0)
        except EOFError:
            pass
        if self.channel.lost:
            self.end_alone("the head is gone")
        elif time.monotonic() - self.heard > self.lease:
            self.end_alone(f"the head was silent for {self.lease:.0f} s")
        if self.supervisor.signalled:
            self.part.end("cancelled", f"{self.supervisor.signalled} to the supervisor on {self.part.order['host']}")

    def end_alone(self, detail: str) -> None:
        """End the part. Nobody will say when the ranks of other nodes are done: the guard waits for its own only."""
        self.part.end("lost", detail)
        if not self.alone:
            self.alone = True
            self.part.tell("leave")

    def beat(self) -> None:
        """Tell the head that this node is there."""
        if time.monotonic() - self.told > BEAT_SECONDS:
            self.told = time.monotonic()
            self.channel.send("beat")


def main() -> None:
    """Serve the other end of stdin and stdout."""
    Supervisor(Channel(0, 1)).serve()
