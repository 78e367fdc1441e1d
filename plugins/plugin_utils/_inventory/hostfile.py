# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Host files: the addresses on which a launcher starts ranks, and the number of ranks of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .cluster import Cluster, Facts, slots_of

# The line of one node. Open MPI gets a file and never `-H`, in which 5.x does not find this node's own address
# (prrte#2258). MPICH and Intel MPI both use Hydra's form.
SPELLINGS = {"openmpi": "{address} slots={slots}", "hydra": "{address}:{slots}"}
ADDRESS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]*[A-Za-z0-9])?\Z")


def hostfile_lines(kind: str, entries: Iterable[tuple[str, int]]) -> tuple[str, ...]:
    """Return the lines of a host file, without line ends, in the order of `entries` (address, slots).

    `kind` is a key of SPELLINGS. Raise InputError for an address that a launcher would misread, a duplicate address,
    and slots that are not a whole number of at least 1.
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
    """Raise InputError for an entry that a launcher would read differently."""
    if not ADDRESS.match(address):
        raise InputError("hostfile", address, "give a host name or an address, without user, port or white space")
    if kind == "hydra" and ":" in address:  # Hydra reads the number of processes after the first colon
        raise InputError(
            "hostfile", address, "MPICH and Intel MPI accept no IPv6 address: give an IPv4 address or a name"
        )
    if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
        raise InputError("slots", slots, f"give a whole number of at least 1 for {address}: slots: 2")


def entries_of(cluster: Cluster, facts: Mapping[str, Facts]) -> list[tuple[str, int]]:
    """Return address and slots of every worker in the order of the inventory, as a job would use them.

    `facts` by node name, as survey() returns them; they include the address in the proven network.
    """
    slots = slots_of(cluster.workers, facts)
    if cluster.local:
        return [("localhost", slots[node.name]) for node in cluster.workers]
    fabrics = {node.name: facts[node.name]["fabric"] for node in cluster.workers}
    return [
        (fabric["address"] if (fabric := fabrics[node.name]) else node.address, slots[node.name])
        for node in cluster.workers
    ]


def unknown_nodes(cluster: Cluster, facts: Mapping[str, Facts]) -> str:
    """Return a line with the nodes that reported nothing, and what to do; empty if all reported."""
    names = dict.fromkeys(node.name for node in (*cluster.workers, cluster.head))
    missing = [name for name in names if name not in facts]
    if not missing:
        return ""
    why = f"are unknown (failed before, or excluded by --limit): fix that, or do without: -e away={','.join(missing)}"
    return f"hostfile: slots and address of {', '.join(missing)} {why}"


def hostfiles(cluster: Cluster, facts: Mapping[str, Facts]) -> dict[str, str]:
    """Return the host files for users who start an MPI launcher themselves: text by name. InputError as above."""
    entries = entries_of(cluster, facts)
    home = facts[cluster.head.name]["home"]
    count = sum(slots for address, slots in entries)
    return {
        kind: "".join(
            line + "\n" for line in (*usage(kind, home, count, cluster.local), *hostfile_lines(kind, entries))
        )
        for kind in SPELLINGS
    }


def usage(kind: str, home: str, count: int, local: bool) -> tuple[str, ...]:
    """Return the comment at the top of a host file: how to use it with the SSH mesh and the network of this cluster."""
    path = f"{home}/hostfiles/{kind}"
    ssh = "" if local else f"-F {home}/ssh/config"
    if kind == "openmpi":
        agent = f' --mca plm_rsh_agent "ssh {ssh}"' if ssh else ""
        commands = [f"{home}/openmpi/bin/mpirun --hostfile {path} --np {count} --bind-to none{agent} hostname"]
    else:
        mpich, intel = (f'HYDRA_LAUNCHER_EXTRA_ARGS="{ssh}" ', f' -bootstrap-exec-args "{ssh}"') if ssh else ("", "")
        commands = [
            f"{mpich}{home}/mpich/bin/mpiexec.hydra -f {path} -n {count} hostname",
            f"{home}/intelmpi/bin/mpiexec.hydra -f {path} -n {count}{intel} hostname",
        ]
    made = "# Written by torchfleet.cluster.hostfile from the inventory: do not edit. Use on the head:"
    network = f"#   set -a; . {home}/fabric.env; set +a" if ssh else "#"
    return (made, network, *(f"#   {command}" for command in commands))
