# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A look at all ranks of a job that runs, from its head: on all nodes at the same time."""

from __future__ import annotations

from typing import Callable

from ..basics.job_directory import JobDir, ranks_on
from ..looks.looking import look
from ..nodes.remote_node import ANSWER_SECONDS, RemoteNode, in_parallel
from ..types.evidence import Evidence
from ..types.orders import JobRoute, Order
from ..wire.link import ConnectionLost, wrong_answer
from ..wire.protocol import Look


def look_on_all(
    job: JobDir, order: Order, asks: bool, reach: Callable[[JobRoute], RemoteNode]
) -> tuple[list[Evidence], list[str]]:
    """Return what is known of all ranks, and the nodes of which nothing is known, each with the reason.

    `asks`: ranks are asked for their stacks.
    """

    def look_at(route: JobRoute | None) -> list[Evidence] | str:
        try:
            return look(job, order, asks) if route is None else look_on(reach(route), job, order, asks)
        except (ConnectionLost, OSError) as error:
            return f"{order['host'] if route is None else route['host']}: {error}"

    found = in_parallel(look_at, [None, *job.routes()])
    evidence = [row for rows in found if not isinstance(rows, str) for row in rows]
    return evidence, [reason for reason in found if isinstance(reason, str)]


def look_on(peer: RemoteNode, job: JobDir, order: Order, asks: bool) -> list[Evidence]:
    """Return what another node tells of its own ranks. ConnectionLost."""
    asked = Look(kind="look", beats=True, home=peer.home, job_id=job.job_id, asks=asks)
    answer = peer.remote.ask(asked, ANSWER_SECONDS)
    if answer["kind"] != "looked":
        raise wrong_answer(asked, answer)
    own = ranks_on(peer.name, order["placement"])
    return [row for row in answer["evidence"] if row["rank"] in own and row["host"] == peer.name]
