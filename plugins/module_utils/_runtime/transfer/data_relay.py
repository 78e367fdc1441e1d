# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A data set on its way through the cluster: from the controller to the head once, and on from node to node as a tree.

Each node takes what is for it, and passes on what the nodes below it are missing, block by block as it comes. What a
node has already it sends itself, so a node that was added gets its data from its neighbours.
"""

from __future__ import annotations

from typing import Callable, NamedTuple, Sequence

from ..nodes.remote_node import ANSWER_SECONDS, RemoteNode, in_parallel
from ..stores.data_manifest import MOST_BYTES, numbers_in, ranges_of, read_manifest
from ..types.file_messages import DataOffer, DataWanted, File
from ..types.orders import Route
from ..wire.channel import BLOCK, Channel, SupervisorChannel
from ..wire.link import ConnectionLost
from ..wire.protocol import ToSupervisor
from .data_laying import Laying

SILENT_SECONDS = 300.0  # in which a controller sends nothing of some files, or a head takes nothing: it is gone
SENT_AT_A_TIME = 2  # by one node: its network is shared by those that it sends to
LAY_TIMES = 144  # WORK_SECONDS, a day: a slow network takes its time, as long as signs of life come
LIST = "manifest"  # the name under which the list of files is sent
Reach = Callable[[Route], RemoteNode]  # ConnectionLost


class Child(NamedTuple):
    """A node that is sent to, and those that it sends on to."""

    peer: RemoteNode
    below: Sequence[Route]


class Relay:
    """One node's part of laying a data set."""

    def __init__(
        self, channel: SupervisorChannel, offer: DataOffer, home: str, reach: Reach, silence: float | None = None
    ) -> None:
        """`home`: of this node; `reach`: connects to another; `silence`: seconds after which the other end is gone."""
        self.channel, self.offer, self.home, self.reach, self.silence = channel, offer, home, reach, silence
        self.reasons: list[str] = []
        self.unreached: list[Route] = []
        self.children: list[Child] = []
        self.wants: dict[str, set[int]] = {}  # pieces, by child: for it and those below it
        self.own: Laying | None = None
        self.mine: list[int] = []  # pieces that others are missing and this node had already

    def run(self) -> None:
        """Take the data set and pass it on. EOFError if the other end goes away: what came stays."""
        try:
            text = self.take_list()
            self.ask(text)
            if self.reasons:
                return
            self.take_pieces()
            self.send_own()
            self.finish()
        finally:
            if self.own:
                self.own.close()

    # --- who is missing what ------------------------------------------------------------------------------------------

    def take_list(self) -> bytes:
        """Return the list of files, which comes first. EOFError."""
        text = bytearray()  # bytes would be copied as a whole with each block
        while len(text) < min(self.offer["list_bytes"], MOST_BYTES):
            frame = self.next_frame()
            if frame["kind"] != "file" or frame["name"] != LIST:
                break
            text += frame["data"]
        return bytes(text)

    def next_frame(self) -> ToSupervisor:
        """Return what comes next from above. EOFError if that is gone, or silent for too long."""
        frame = self.channel.receive(self.silence)
        if frame is None:
            raise EOFError(f"silent for {self.silence:g} s")
        return frame

    def ask(self, text: bytes) -> None:
        """Find out what is missing here and below, and ask for that."""
        self.connect(self.offer["nodes"])
        for child in self.children:
            self.send_offer(child, text)
        if self.offer["here"]:
            self.own = Laying(self.home, self.offer["name"], text, self.offer["token"], self.offer["keep"])
            self.reasons += [f"{self.offer['here']}: {self.own.reason}"] if self.own.reason else []
        self.collect(self.children, text)
        orphans, self.unreached = self.unreached, []
        adopted = [Child(peer, ()) for peer in filter(None, map(self.adopt, orphans))]
        for child in adopted:
            self.send_offer(child, text)
        self.collect(adopted, text)
        self.children += adopted
        wanted: set[int] = set().union(*self.wants.values())
        if self.own:
            self.mine = sorted(filter(self.own.has, wanted))
            wanted = wanted.difference(self.mine) | self.own.wanted
        unreached = [route["host"] for route in self.unreached]
        ranges = [] if self.reasons else ranges_of(wanted)
        self.channel.send(
            {"kind": "data_wanted", "wanted": ranges, "unreached": unreached, "reason": "; ".join(self.reasons)}
        )

    def connect(self, routes: Sequence[Route]) -> None:
        """Connect to the first node of each branch that can be reached. It relays to the rest of its branch."""
        branches = [list(routes[first::SENT_AT_A_TIME]) for first in range(min(SENT_AT_A_TIME, len(routes)))]

        def connect_one(branch: list[Route]) -> Child | None:
            while branch:
                route = branch.pop(0)
                peer = self.adopt(route)
                if peer:
                    return Child(peer, branch)
            return None

        self.children = [child for child in in_parallel(connect_one, branches) if child]

    def adopt(self, route: Route) -> RemoteNode | None:
        """Return a node that is connected now; one that cannot be reached from here is noted."""
        try:
            return self.reach(route)
        except ConnectionLost:
            self.unreached.append(route)
            return None

    def send_offer(self, child: Child, text: bytes) -> None:
        """Send a node the list, and which nodes are below it."""
        peer, offer = child.peer, self.offer
        peer.channel.send({**offer, "home": peer.home, "here": peer.name, "nodes": list(child.below)})
        send_list(peer.channel, text)

    def collect(self, children: Sequence[Child], text: bytes) -> None:
        """Collect what each branch is missing, and which of its nodes were not reached."""
        most = read_manifest(text).pieces if children else 0
        for child, answer in zip(children, in_parallel(answer_of, children)):
            name = child.peer.name
            if isinstance(answer, str):
                self.reasons.append(f"{name}: {answer}")
                continue
            self.reasons += [answer["reason"]] if answer["reason"] else []
            self.unreached += [route for route in child.below if route["host"] in answer["unreached"]]
            try:
                self.wants[name] = numbers_in(answer["wanted"], most)
            except ValueError as error:
                self.reasons.append(f"{name}: {error}")

    # --- the pieces ---------------------------------------------------------------------------------------------------

    def take_pieces(self) -> None:
        """Take what comes from above, until all is sent. EOFError."""
        own = frozenset(self.own.wanted) if self.own else frozenset()
        frame = self.next_frame()
        while frame["kind"] == "file":
            number = int(frame["name"])
            if self.own and number in own:
                self.own.take(frame)
            self.pass_on(number, frame["data"], frame["first"])
            frame = self.next_frame()

    def pass_on(self, number: int, block: bytes, first: bool) -> None:
        """Send a block to the nodes that are missing its piece, or have nodes below that do."""
        for child in self.children:
            if number in self.wants.get(child.peer.name, ()):
                child.peer.channel.send({"kind": "file", "name": str(number), "first": first, "data": block})

    def send_own(self) -> None:
        """Send what nodes below are missing and this one had already. It was not asked for above."""
        for number in self.mine:
            first = True
            try:
                for block in self.own.read(number) if self.own else ():
                    self.pass_on(number, block, first)
                    first = False
            except OSError as error:
                self.reasons.append(f"{self.offer['here']}: {error.strerror or error}")
                return

    def finish(self) -> None:
        """Send why the data set cannot be used here or below, or nothing: every reason names its node."""
        for child in self.children:
            child.peer.channel.send({"kind": "files_sent", "beats": True})
        reason = self.own.finish() if self.own else ""
        self.reasons += [f"{self.offer['here']}: {reason}"] if reason else []
        self.reasons += filter(None, in_parallel(outcome_of, self.children))
        self.channel.send({"kind": "data_laid", "reason": "; ".join(self.reasons)})


def send_list(channel: Channel[File, object], text: bytes) -> None:
    """Send the list of files."""
    for at in range(0, len(text), BLOCK):
        channel.send({"kind": "file", "name": LIST, "first": at == 0, "data": text[at : at + BLOCK]})


def answer_of(child: Child) -> DataWanted | str:
    """Return what a node is missing, or why it cannot be asked."""
    try:
        answer = child.peer.remote.answer(ANSWER_SECONDS, LAY_TIMES)
    except ConnectionLost as lost:
        return str(lost)
    return answer if answer["kind"] == "data_wanted" else f"it answered data_set with {answer['kind']}"


def lost_text(peer: RemoteNode) -> str:
    """Return why nothing more could be sent to a node."""
    text = peer.remote.failure_text()
    ended = peer.channel.protocol_error or peer.remote.process.poll() is not None
    return text if ended or not peer.channel.deaf else f"it took nothing for {ANSWER_SECONDS:.0f} s: its disk may hang"


def outcome_of(child: Child) -> str:
    """Return why a node or one below it cannot use the data set, or an empty text."""
    try:
        if child.peer.channel.lost:  # one that takes nothing may send signs of life for a day
            raise ConnectionLost(lost_text(child.peer))
        answer = child.peer.remote.answer(ANSWER_SECONDS, LAY_TIMES)
    except ConnectionLost as lost:
        return f"{child.peer.name}: {lost}"
    if answer["kind"] != "data_laid":
        return f"{child.peer.name}: it answered files_sent with {answer['kind']}"
    return answer["reason"]
