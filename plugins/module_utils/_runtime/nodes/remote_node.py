# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Another node, seen from the head: its supervisor, reached over the cluster's own SSH."""

from __future__ import annotations

import math
import os
import shlex
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Iterable, Mapping, NamedTuple, Sequence, TypeVar

from ..basics import bootstrap
from ..processes.processes import longest
from ..types.file_messages import FilesSent, FolderOffer, Listing
from ..types.orders import LocalNames, Order, Route
from ..types.records import NodeReport, RunningJob
from ..wire import frames
from ..wire.channel import BEAT_SECONDS
from ..wire.link import GREETING_SECONDS, ConnectionLost, RemoteProcess, wrong_answer
from ..wire.protocol import ClockRequest, FromNode, Stage, ToNode
from .alone import NotAlone

Item = TypeVar("Item")
Answer = TypeVar("Answer")

ANSWER_SECONDS = 60.0  # for an answer or a beat from a node
LOST_SECONDS = 5.0  # for a node that was lost before and is asked once more
CLOCK_LOOKS = 4
LOOK_SECONDS = 0.05  # to read one node's frames: one that sends without end must not block the others
END_SECONDS = 30.0  # beyond lease and `grace` twice, for a node to end its job; one that only beats on is lost then
AT_ONCE = 32  # logins in flight; sshd drops more than MaxStartups of them


class NotStaged(OSError):
    """Other nodes cannot stage the job: the text names each and its reason."""


class Clock(NamedTuple):
    """How far a clock is ahead of the head's, when that was measured, and how uncertain it is. Seconds."""

    at: float
    offset: float
    uncertainty: float


class RemoteNode:
    """Another node and the connection to its supervisor."""

    is_ending = False  # it was told that the job ends, or that all ranks are done

    def __init__(self, route: Route, config: str, lost: bool = False) -> None:
        """`config`: the ssh configuration of the mesh. ConnectionLost.

        One that was `lost` before is given LOST_SECONDS.
        """
        if not os.path.exists(config):
            raise ConnectionLost(f"there is no {config} yet: ansible-playbook setup.yml --tags ssh_mesh")
        self.name, self.home = route["host"], route["home"]
        self.answer_seconds = LOST_SECONDS if lost else ANSWER_SECONDS
        self.address = ""
        self.local_names: LocalNames = {"launcher_prefix": "", "nic": ""}
        command = bootstrap.bootstrap(route["interpreter"], route["home"], bootstrap.own_digest())
        alive = ("-o", "ServerAliveInterval=0")  # the lease detects a lost node, ssh must not do so sooner
        self.remote: RemoteProcess[ToNode, FromNode] = RemoteProcess(
            ["ssh", "-F", config, *alive, self.name, "exec " + shlex.join(command)], ANSWER_SECONDS, frames.FROM_NODE
        )
        self.channel, self.pid = self.remote.channel, self.remote.process.pid
        try:
            self.remote.greet(bootstrap.own_archive, LOST_SECONDS if lost else GREETING_SECONDS)
            self.clock = self.measure_clock(self.answer_seconds)
        except ConnectionLost:
            self.remote.close(0)
            raise
        self.report: NodeReport | None = None
        self.lost = ""  # why
        self.lease, self.grace, self.end_by = ANSWER_SECONDS, 0.0, math.inf
        self.last_received = self.last_sent = time.monotonic()

    @property
    def offset(self) -> float:
        """Return how many seconds this node's clock was ahead of the head's when the connection was opened."""
        return self.clock.offset

    def measure_clock(self, seconds: float) -> Clock:
        """Return how far this node's clock is ahead of the head's, by the shortest round trip. ConnectionLost."""
        asked, round_trips = ClockRequest(kind="clock", beats=True), []
        for _look in range(CLOCK_LOOKS):
            before = time.time()
            answer = self.remote.ask(asked, seconds)
            after = time.time()
            if answer["kind"] != "clock":
                raise wrong_answer(asked, answer)
            round_trips.append((after - before, answer["time"] - (before + after) / 2, after))
        took, offset, at = min(round_trips)
        return Clock(at, offset, took / 2)

    def ask_for_folder(self, listing: Listing) -> set[str]:
        """Return the digests of the files that the node is missing. ConnectionLost."""
        asked = FolderOffer(kind="folder", beats=True, home=self.home, here=self.name, nodes=[], files=listing)
        answer = self.remote.ask(asked, ANSWER_SECONDS)
        if answer["kind"] != "wanted":
            raise wrong_answer(asked, answer)
        wanted = set(answer["wanted"])
        if not wanted.issubset(digest for _path, digest, _executable in listing):
            raise ConnectionLost("it asks for files that were not offered")
        return wanted

    def check_folder(self) -> str:
        """Return why the node cannot use the folder that it was sent, or an empty string. ConnectionLost."""
        asked = FilesSent(kind="files_sent", beats=True)
        answer = self.remote.ask(asked, ANSWER_SECONDS)
        if answer["kind"] != "files_checked":
            raise wrong_answer(asked, answer)
        return answer["reason"]

    @property
    def over(self) -> bool:
        """Whether nothing more is to be expected from this node."""
        return bool(self.report or self.lost)

    @property
    def end_seconds(self) -> float:
        """How long the node may take to end its job. The lease is included: its disk may hang for so long."""
        return self.lease + 2 * self.grace + END_SECONDS

    def start(self) -> None:
        """Let the node start its job."""
        self.last_received = time.monotonic()
        self.send({"kind": "start"})

    def send(self, frame: ToNode) -> None:
        """Send a frame. A dead node is noticed elsewhere; `end` and `all_done` start the node's time to end its job.

        So does `end_round`, until the node has told that the round is over.
        """
        self.is_ending = self.is_ending or frame["kind"] in ("end", "all_done")
        if self.is_ending or frame["kind"] == "end_round":
            self.end_by = min(self.end_by, time.monotonic() + self.end_seconds)
        self.last_sent = time.monotonic()
        self.channel.send(frame)

    def beat(self) -> None:
        """Renew the lease on the node, and note when the node did not renew its own."""
        now = time.monotonic()
        if self.over:
            return
        if self.channel.lost or now - self.last_received > self.lease:
            self.lost = self.remote.failure_text() if self.channel.lost else f"silent for {self.lease:g} s"
        elif now > self.end_by:
            self.lost = f"it did not end its part within {self.end_seconds:.0f} s"
        elif now - self.last_sent > BEAT_SECONDS:
            self.send({"kind": "beat"})

    def messages(self) -> list[FromNode]:
        """Return the received frames, or some of them: the next call returns the others."""
        found: list[FromNode] = []
        until = time.monotonic() + LOOK_SECONDS
        while not self.over and time.monotonic() < until:
            try:
                frame = self.channel.receive(0)
            except EOFError:
                self.lost = self.remote.failure_text()
                break
            if frame is None:
                break
            self.last_received = time.monotonic()
            if frame["kind"] == "over":
                self.report = in_head_time(own_ranks_report(self.name, frame["report"]), self.offset)
            elif frame["kind"] == "round_report":
                report = in_head_time(own_ranks_report(self.name, frame["report"]), self.offset)
                found.append({"kind": "round_report", "report": report})
                self.end_by = self.end_by if self.is_ending else math.inf
            elif frame["kind"] != "beat":
                found.append(frame)
        return found


def own_ranks_report(name: str, report: NodeReport) -> NodeReport:
    """Return a node's report without what it says of ranks that did not come up on it."""
    records = {rank: record for rank, record in report["records"].items() if record["host"] == name}
    evidence = [row for row in report.get("evidence", []) if row["host"] == name]
    return {**report, "records": records, "evidence": evidence}


def in_head_time(report: NodeReport, offset: float) -> NodeReport:
    """Return a node's report with its times by the head's clock: who failed first depends on them."""
    for record in report["records"].values():
        record["started"] -= offset
        if "ended" in record:
            record["ended"] -= offset
    usage = report.get("usage")
    if usage:
        usage["began"] -= offset
    if "at" in report["launcher"]:
        report["launcher"]["at"] -= offset
    return report


def in_parallel(do: Callable[[Item], Answer], items: Iterable[Item]) -> list[Answer]:
    """Call a function with each item in a thread and return the results in order."""
    items = list(items)
    with ThreadPoolExecutor(max_workers=min(AT_ONCE, len(items)) or 1) as pool:
        return list(pool.map(do, items))


def stage_on_all(
    peers: Sequence[RemoteNode], orders: Mapping[str, Order], secrets: Mapping[str, Mapping[str, str]]
) -> None:
    """Stage the job on all nodes or on none. NotStaged names the nodes that cannot, NotAlone those with other jobs.

    `orders` and `secrets` by host.
    """
    running: dict[str, list[RunningJob]] = {}

    def stage(peer: RemoteNode) -> str:
        order = orders[peer.name]
        asked = Stage(kind="stage", beats=True, order=order, secrets=dict(secrets[peer.name]))
        peer.address, peer.local_names = order["address"], order
        peer.grace, peer.lease = longest(order["grace"]), order["lease"]
        peer.channel.send_timeout = peer.lease
        try:
            answer = peer.remote.ask(asked, ANSWER_SECONDS)
            if answer["kind"] != "staged":
                raise wrong_answer(asked, answer)
            reason = answer["reason"]
            if answer["running"]:
                running[peer.name] = answer["running"]
        except ConnectionLost as lost:
            reason = str(lost)
        return f"{peer.name}: {reason}" if reason else ""

    refused = [reason for reason in in_parallel(stage, peers) if reason]
    if refused:
        for peer in peers:
            peer.channel.send({"kind": "unstage"})
        raise NotAlone(running) if running else NotStaged("; ".join(refused))
