# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Host files: which addresses a launcher starts ranks on, and how many on each. One function writes them all."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError

# How a launcher spells one node. Open MPI gets a file and never `-H`: 5.x does not find this node's own address there
# (prrte#2258). MPICH and Intel MPI share Hydra's.
SPELLINGS = {"openmpi": "{address} slots={slots}", "hydra": "{address}:{slots}"}
ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?\Z")


def hostfile_lines(kind: str, entries: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Return the lines of a host file, without line ends, in the order of `entries` (address, slots).

    `kind` is a key of SPELLINGS. InputError for an address that a launcher would misread, or that stands there twice,
    and for slots that are no whole number of at least 1.
    """
    lines, seen = [], set()
    for address, slots in entries:
        check_entry(kind, address, slots)
        if address in seen:
            raise InputError("hostfile", address, "two nodes have this address: give each its own ansible_host")
        seen.add(address)
        lines.append(SPELLINGS[kind].format(address=address, slots=slots))
    return tuple(lines)


def check_entry(kind: str, address: str, slots: int) -> None:
    """InputError for what would not come out of the file as it went in."""
    if not ADDRESS.match(address):
        raise InputError("hostfile", address, "give a host name or an address, without user, port or white space")
    if kind == "hydra" and ":" in address:  # Hydra takes what follows the first colon for the number of processes
        raise InputError(
            "hostfile", address, "MPICH and Intel MPI take no IPv6 address: give an IPv4 address or a name"
        )
    if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
        raise InputError("slots", slots, f"give a whole number of at least 1 for {address}: slots: 2")
