# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A data set on its way from this machine to the head, which sends it on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.data_manifest import numbers_in
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.data_relay import (
    LAY_TIMES,
    SILENT_SECONDS,
    send_list,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.file_messages import DataOffer
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import Route
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import WORK_SECONDS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import FromHead
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .connection import HeadLost
from .data_set import DataSet
from .progress import Progress, Say, silent
from .session import Session


def lay(
    session: Session,
    data: DataSet,
    names: Sequence[str],
    nodes: Mapping[str, Route],
    keep: int,
    check: Callable[[], None],
    say: Say = silent,
) -> int:
    """Bring a data set to the nodes of these names; return how many bytes of files were sent.

    `nodes`: all of the job, one of which may be the head, by name: it sends what it has. `say` shows how far it is.
    InputError if a node cannot take it, or it changes meanwhile. HeadLost. What was sent stays there if this is
    interrupted; `check`, which is asked now and then, may do that by an exception.
    """
    channel, usual, head = session.remote.channel, session.remote.channel.send_timeout, session.head.name
    routes = [nodes[name] for name in names if name != head]
    here = head if head in nodes else ""
    token, size = os.urandom(8).hex(), len(data.text)
    channel.send_timeout = SILENT_SECONDS  # a node below the head may be slow, or lost
    offer: DataOffer = {
        "kind": "data_set",
        "beats": True,
        "home": session.home,
        "here": here,
        "name": data.name,
        "list_bytes": size,
        "token": token,
        "keep": keep,
        "nodes": routes,
    }
    channel.send(offer)
    send_list(channel, data.text)
    wanted = believed_wants(head, answer_of(session, check), data)
    sent = send_pieces(session, data, sorted(wanted), check, say)
    channel.send({"kind": "files_sent", "beats": True})
    answer = answer_of(session, check)
    if answer["kind"] != "data_laid":
        raise session.other_question()
    if answer["reason"]:
        raise InputError("data", data.path, f"cannot be copied to the nodes: {answer['reason']}")
    channel.send_timeout = usual
    return sent


def answer_of(session: Session, check: Callable[[], None]) -> FromHead:
    """Return the next answer of the head, which may be at work for days. HeadLost."""

    def go_on() -> bool:
        check()
        return False

    return session.answer(go_on, work=LAY_TIMES * WORK_SECONDS)


def send_pieces(session: Session, data: DataSet, numbers: Sequence[int], check: Callable[[], None], say: Say) -> int:
    """Send pieces; return how many bytes that were. InputError if they change, HeadLost if nobody takes them."""
    channel = session.remote.channel
    total = sum(data.manifest.piece(number).size for number in numbers)
    progress = Progress(f"data {data.path}", "sent", total, say)
    for number, block, first in data.blocks(numbers):
        check()
        channel.send({"kind": "file", "name": str(number), "first": first, "data": block})
        if channel.deaf and session.remote.process.poll() is None:  # its signs of life may go on for a day
            raise HeadLost(f"the head {session.head.name} is lost: it took nothing for {SILENT_SECONDS:g} s")
        if channel.lost:  # the answer says why
            break
        progress.add(len(block))
    return progress.bytes


def believed_wants(head: str, answer: FromHead, data: DataSet) -> set[int]:
    """Return the pieces that nodes are missing. InputError if one cannot take them, HeadLost for an odd answer."""
    if answer["kind"] != "data_wanted":
        raise HeadLost(f"invalid answer from head {head}: it does not match the request")
    unreached = ", ".join(answer["unreached"])
    reason = answer["reason"] or (unreached and f"not reached from another node: {unreached[:500]}")
    if reason:
        raise InputError("data", data.path, f"cannot be copied to the nodes: {reason}")
    try:
        return numbers_in(answer["wanted"], data.manifest.pieces)
    except ValueError as error:
        raise HeadLost(f"invalid answer from head {head}: {error}") from None
