# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The variables by which a program finds its rank and the others: one table for what sets, shows and tests them.

Which framework reads which of them: docs/frameworks.md.
"""

from __future__ import annotations

from typing import Mapping

from ..software.launchers import LAUNCHERS

# Every program gets the names of both: scripts are written for the one or the other.
GIVEN = ("torchrun", "openmpi")
IDENTITY = ("rank", "world_size", "local_rank", "local_size")  # in the order of Launcher.identity
PLACE: Mapping[str, str] = {
    name: what for launcher in GIVEN for name, what in zip(LAUNCHERS[launcher].identity, IDENTITY)
}
PORT = "MASTER_PORT"
RENDEZVOUS: Mapping[str, str] = {"MASTER_ADDR": "master_addr", PORT: "master_port"}
# It must be the same for all ranks of a job: PyTorch 2.0 makes it part of the names in the store by which they meet.
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
# What torchrun's agents set besides (LocalElasticAgent of torch.distributed.elastic): without it Lightning takes every
# node for node 0.
ELASTIC: Mapping[str, str] = {
    "GROUP_RANK": "node",
    "GROUP_WORLD_SIZE": "nodes",
    "ROLE_RANK": "rank",
    "ROLE_WORLD_SIZE": "world_size",
    "ROLE_NAME": "role",
    "TORCHELASTIC_RUN_ID": "job_id",
    RESTARTS: "restarts",
    "TORCHELASTIC_MAX_RESTARTS": "max_restarts",
}
NODE = "NODE_RANK"  # GROUP_RANK by another name, which Lightning reads where there is no agent, and no agent sets
VARIABLES: Mapping[str, str] = {**PLACE, **RENDEZVOUS, **ELASTIC, NODE: "node"}


def named(names: Mapping[str, str], values: Mapping[str, object]) -> dict[str, str]:
    """Return the variables of a table with a rank's values."""
    return {name: str(values[what]) for name, what in names.items()}
