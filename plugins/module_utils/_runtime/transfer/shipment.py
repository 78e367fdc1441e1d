# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Shipping the folder of a script to the nodes of a job: the missing files, their arrival, the tree made of them."""

from __future__ import annotations

import os
from typing import Sequence

from ..basics.job_directory import JobDir
from ..nodes.remote_node import RemoteNode, in_parallel
from ..stores.file_store import Arrival, Store
from ..stores.job_files import MOST_BYTES, make_tree, tree_of
from ..types.file_messages import File, Listing
from ..wire.channel import SupervisorChannel
from ..wire.link import ConnectionLost


class Shipment:
    """The files shipped to this node for one job. `reason`: why they are refused, or an empty string."""

    def __init__(self, home: str, listing: Listing) -> None:
        self.store = Store(home)
        self.listing = listing
        self.reason = ""
        self.wanted: set[str] = set()  # digests of files that the store is missing
        self.names: dict[str, str] = {}  # the first path of each digest, for people
        self.arrival: Arrival | None = None
        self.room = MOST_BYTES
        self.lock = -1
        try:
            tree_of(listing)
            self.lock = self.store.use()
            self.names = {digest: path for path, digest, _executable in reversed(listing)}
            self.wanted = {digest for digest in self.names if not self.store.has(digest)}
        except (OSError, ValueError) as error:
            self.reason = str(error)

    def take(self, frame: File) -> None:
        """Take one block of a file. An error is kept in `reason` until finish()."""
        if self.reason:
            return
        try:
            if frame["first"]:
                self.close_arrival()
                if frame["name"] not in self.wanted:
                    raise ValueError("a file came that was not requested")
                self.arrival = Arrival(self.store, frame["name"])
            self.room -= len(frame["data"])
            if self.arrival is None or self.arrival.digest != frame["name"] or self.room < 0:
                raise ValueError("more came than was announced")
            self.arrival.take(frame["data"])
        except (OSError, ValueError) as error:
            self.reason = str(error)

    def close_arrival(self) -> None:
        """Put the file that came last into the store. ValueError if it is not what was announced. OSError."""
        arrival, self.arrival = self.arrival, None
        if arrival is not None:
            if not arrival.finish():
                raise ValueError(f"{self.names[arrival.digest]} changed while it was shipped: try again")
            self.wanted.discard(arrival.digest)

    def finish(self) -> str:
        """Return why a tree cannot be made of what came, or nothing."""
        try:
            if not self.reason:
                self.close_arrival()
                if self.wanted:
                    self.reason = f"{self.names[min(self.wanted)]} did not arrive"
        except (OSError, ValueError) as error:
            self.reason = str(error)
        if self.arrival is not None:
            self.arrival.drop()
            self.arrival = None
        return self.reason

    def make_tree(self, job: JobDir) -> None:
        """Make the job's tree, and release the store. OSError."""
        make_tree(job, self.listing, self.store)
        self.release()

    def release(self) -> None:
        """Let others clear the store: what was shipped stays for some days."""
        if self.lock >= 0:
            os.close(self.lock)
            self.lock = -1


def relay(
    channel: SupervisorChannel,
    own: Shipment | None,
    host: str,
    peers: Sequence[RemoteNode],
    listing: Listing,
    silence: float | None = None,
) -> None:
    """Take a folder from the controller for this node, `host` (if it has a shipment), and the peers.

    Sends the digests that are missing, forwards to each peer the files that it is missing, and sends the outcome:
    every reason names its node. `silence`: seconds after which the other end sends no more.
    """
    reasons: list[str] = []
    wants: dict[str, set[str]] = {}
    for peer, answer in zip(peers, in_parallel(lambda peer: ask_peer(peer, listing), peers)):
        if isinstance(answer, set):
            wants[peer.name] = answer
        else:
            reasons.append(answer)
    own_wants = frozenset(own.wanted if own else ())
    channel.send({"kind": "wanted", "wanted": [] if reasons else sorted(own_wants.union(*wants.values()))})
    block = channel.receive(silence)
    while block and block["kind"] == "file":
        if own and block["name"] in own_wants:
            own.take(block)
        for peer in peers:
            if block["name"] in wants.get(peer.name, ()):
                peer.channel.send(block)
        block = channel.receive(silence)
    reasons += [f"{host}: {said}" for said in [own.finish() if own else ""] if said]
    reasons += in_parallel(check_on_peer, [peer for peer in peers if peer.name in wants])
    channel.send({"kind": "files_checked", "reason": "; ".join(filter(None, reasons))})


def ask_peer(peer: RemoteNode, listing: Listing) -> set[str] | str:
    """Return the digests that a node is missing of a folder, or why it cannot be asked."""
    try:
        return peer.ask_for_folder(listing)
    except ConnectionLost as lost:
        return f"{peer.name}: {lost}"


def check_on_peer(peer: RemoteNode) -> str:
    """Return why a node cannot use the folder that it was sent, or an empty string."""
    try:
        said = peer.check_folder()
    except ConnectionLost as lost:
        said = str(lost)
    said = said[len(peer.name) + 2 :] if said.startswith(f"{peer.name}: ") else said
    return f"{peer.name}: {said}" if said else ""
