# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is the same in requests for nodes that a scheduler brings: pods, or nodes of Slurm."""

from __future__ import annotations

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request

NODES_MOST = 10_000
NOTHING = ("false", "none", "0", "[]", "()", "")  # values that ask for nothing


def size_of(nodes: int | None, request: Request, gpus: int, units: str) -> tuple[int, int]:
    """Return the number of nodes and of the ranks in each. InputError if np is another number.

    `units`: what people call them.
    """
    ranks = request.ranks_per_node or gpus or (request.np if nodes is None and request.np else None)
    if ranks is None:
        ranks = request.np // nodes if request.np and nodes and request.np >= nodes else 1
    count = nodes or max(1, -(-(request.np or ranks) // ranks))
    if request.np not in (None, count * ranks):
        advice = f"{count} {units} with {ranks} ranks each are {count * ranks} ranks: -e np={count * ranks}"
        raise InputError("np", request.np, f"torchrun needs as many ranks in each of the {units}; {advice}")
    if count > NODES_MOST:
        raise InputError("np", request.np, f"at most {NODES_MOST} {units}: give more ranks_per_node")
    return count, ranks
