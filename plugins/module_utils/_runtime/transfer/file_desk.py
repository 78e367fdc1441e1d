# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The files of a job on their way to the controller: those of this node, and on the head those of the others."""

from __future__ import annotations

import os
from typing import Collection, ContextManager, Protocol

from ..basics.home import home_path
from ..basics.job_directory import JobDir, field, ranks_on
from ..nodes.clocks import FILE as CLOCKS
from ..nodes.clocks import clocks_until_now
from ..nodes.remote_node import ANSWER_SECONDS, RemoteNode, in_parallel
from ..processes import processes
from ..ranks.metrics import OwnRows
from ..stores.earlier_attempts import METRICS
from ..types import orders
from ..types.file_messages import Fetch, Request
from ..wire.channel import SupervisorChannel
from ..wire.link import ConnectionLost
from ..wire.record_forms import RESTARTS_MOST
from .artifact_border import Border, Limits, forward_artifact
from .artifacts import send_artifacts
from .fetched_files import files_of, mark_fetched, own_block

STILL_RUNS = "processes of the job still run there"


class Head(Protocol):
    """What it needs of the supervisor: its channel, and the way to other nodes."""

    channel: SupervisorChannel
    given_up: dict[str, str]

    def reach(self, route: orders.Route, home: str) -> RemoteNode: ...
    def sending_beats(self, frame: Request) -> ContextManager[None]: ...


class FileDesk:
    """Sends files over one channel. `fetched`: a job whose files were all sent, and its other nodes."""

    def __init__(self, head: Head) -> None:
        self.head, self.channel = head, head.channel
        self.fetched: tuple[JobDir, list[RemoteNode]] | None = None

    def on_fetch(self, frame: Fetch) -> None:
        """Send the files of a job. When the other end has them all it sends `received`, which drops them here."""
        job = JobDir(os.path.join(home_path(frame["home"]), "jobs", frame["job_id"]))
        with self.head.sending_beats(frame):
            unwatched = [STILL_RUNS] if runs_unwatched(job) else []  # asked first: what they write later is not sent
            if os.path.exists(job.at("result.json")):  # first: what became of the job waits for no node
                self.channel.send_file("result.json", job.at("result.json"))
            for name in files_of(job):
                self.channel.send_file(name, job.at(name))
            order, limits = job.order(), limits_of(frame)
            if order and limits:
                send_artifacts(self.channel, job, order, limits)
            peers, missing = self.fetch_from_nodes(job, frame["limit"], limits)
            clocks = clocks_until_now(job, peers)
            if clocks:
                self.channel.send({"kind": "file", "name": CLOCKS, "first": True, "data": clocks})
        missing = [*unwatched, *missing]
        self.fetched = None if missing else (job, peers)
        self.channel.send({"kind": "fetched", "missing": missing})

    def on_received(self) -> None:
        """Drop the files of the job that was fetched last: the other end has them all."""
        if self.fetched is None:
            return
        (job, peers), self.fetched = self.fetched, None
        for peer in peers:
            peer.channel.send({"kind": "received"})
        mark_fetched(job)

    def fetch_from_nodes(self, job: JobDir, limit: int, limits: Limits | None) -> tuple[list[RemoteNode], list[str]]:
        """Forward the files of a job's other nodes, in parallel; return these nodes, and what is missing.

        `limit`: bytes that the controller accepts. A node that sends more by itself may never end.
        """
        order, routes = job.order(), job.routes()
        if order is None:
            return [], []
        over = os.path.exists(job.at("result.json"))
        found = in_parallel(lambda route: self.fetch_from(route, order, limit, limits, over), routes)
        missing = [f"{route['host']}: {answer}" for route, answer in zip(routes, found) if isinstance(answer, str)]
        return [answer for answer in found if isinstance(answer, RemoteNode)], missing

    def fetch_from(
        self, route: orders.Route, order: orders.Order, limit: int, limits: Limits | None, over: bool
    ) -> RemoteNode | str:
        """Forward the files of one other node; return the node, or why its files are missing.

        `over`: the job is, so nothing of it may still write there.
        """
        try:
            peer = self.head.reach(route, order["home"])
            beats = peer.answer_seconds == ANSWER_SECONDS  # one that was lost before has no time for a slow disk
            peer.channel.send(
                {
                    "kind": "fetch",
                    "home": peer.home,
                    "job_id": order["job_id"],
                    "limit": limit,
                    "beats": beats,
                    "artifacts": limits,
                }
            )
            ranks = ranks_on(peer.name, order["placement"])
            is_whole = self.forward_files(peer, ranks, limit, limits, restarts_of(order))
            peer.clock = peer.measure_clock(peer.answer_seconds)
        except (ConnectionLost, ValueError) as lost:
            self.head.given_up[route["host"]] = str(lost)  # a late answer could be taken for that of another request
            return str(lost)
        return peer if is_whole or not over else STILL_RUNS

    def forward_files(
        self, peer: RemoteNode, ranks: Collection[int], limit: int, limits: Limits | None = None, restarts: int = 0
    ) -> bool:
        """Forward file frames of a node with these ranks to the controller until it has sent all.

        Return whether the node says that there will be no more. `restarts`: of the job. ConnectionLost at a protocol
        error.
        """
        seen: set[str] = set()
        rows: dict[str, OwnRows] = {}
        most, border = limit, Border([peer.name], limits or Limits(0, 0))
        frame = peer.remote.answer(peer.answer_seconds)
        while frame["kind"] != "fetched":
            if self.channel.lost:
                raise ConnectionLost("the controller is gone")
            if forward_artifact(self.channel, frame, border):
                frame = peer.remote.answer(peer.answer_seconds)
                continue
            name, first, data = own_block(frame, ranks, seen, restarts)
            limit -= len(data)
            if limit < 0:
                raise ConnectionLost(f"it sent more than {most:,} bytes (fetch_limit), and did not end")
            if name.endswith(METRICS):  # of the last attempt, or of an earlier one
                first, data = False, rows.setdefault(name, OwnRows(ranks)).take(data)  # they follow those of the head
            elif name == "launcher.out":
                name = f"launcher.{peer.name}.out"
            self.channel.send({"kind": "file", "name": name, "first": first, "data": data})
            frame = peer.remote.answer(peer.answer_seconds)
        return not frame["missing"]


def runs_unwatched(job: JobDir) -> bool:
    """Whether processes of a job are here that nobody looks after: guard and supervisor were killed together."""
    return not job.running() and any(mark.job_dir == job.path for _process, mark in processes.marked())


def restarts_of(order: orders.Order) -> int:
    """Return how often a job was started again, whoever wrote its order."""
    return min(field(order, "restarts", int) or 0, RESTARTS_MOST)


def limits_of(frame: Fetch) -> Limits | None:
    """Return what a node may send of what ranks wrote, None if nothing of it is asked for."""
    found = frame.get("artifacts")
    return Limits(*found) if found else None
