# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The published fabric of a node: fabric.json, and the environment that makes every library use it."""

from __future__ import annotations

import ipaddress
import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from .choice import (
    Candidate,
    Choice,
    Constraints,
    some,
)
from .networks import (
    VERSION,
    Network,
    NodeNet,
    netdevs_of,
)

HEADER = "# The fabric of this node, written by torchfleet.cluster.fabric. Use: set -a; . fabric.env; set +a\n"


def fabric_of(choice: Choice, nodes: Sequence[NodeNet], constraints: Constraints) -> dict[str, dict[str, Any]]:
    """Return the fabric.json of every node: its present one, if that is still valid."""
    if choice.chosen is None:
        return {node.name: node.published for node in nodes}
    seats = choice.chosen.seats
    ports = {node.name: eligible(node, choice.usable) for node in nodes}
    off = [name for name, rows in ports.items() if not rows] if any(ports.values()) else []
    same_name = len({seat.nic.name for seat in seats.values()}) == 1
    return {
        node.name: {
            "version": VERSION,
            "nic": seats[node.name].nic.name,
            "address": str(seats[node.name].address.ip),
            "network": str(choice.chosen.network),
            "mtu": choice.mtu,
            "speed_mbit": seats[node.name].nic.speed_mbit,
            "same_name": same_name,
            "rdma": [] if off else ports[node.name],
            "rdma_off": f"{some(off)}: no active RDMA port in a network of all nodes" if off else "",
            "nccl_gid": constraints.nccl_gid,
            "why": choice.why,
            "usable": sorted(str(candidate.network) for candidate in choice.usable),
            "digest": choice.digest,
            "rejected": rejected_of(choice, node.name),
        }
        for node in nodes
    }


def rejected_of(choice: Choice, name: str) -> list[dict[str, str]]:
    """Return every rejected address of a node, with the reason as code and text."""
    rows = [(row.nic, row.address, row.reason) for row in choice.rejections if row.node == name]
    return [
        {"nic": nic, "address": address, "code": code, "reason": text} for nic, address, (code, text) in sorted(rows)
    ]


def eligible(node: NodeNet, usable: Sequence[Candidate]) -> list[dict[str, Any]]:
    """Return the usable RDMA ports of a node: active InfiniBand, or RoCE in a usable network.

    A slower port beside faster ones is for management; NCCL would use it as one more rail.
    """
    addresses = {candidate.seats[node.name].address.ip for candidate in usable}
    rows = []
    for port in node.ports:
        netdev = next(iter(sorted(netdevs_of(port))), "")
        if port.active and port.link_layer == "InfiniBand":
            rows.append(
                (port.rate_gbit, {"device": port.device, "port": port.port, "gid_index": None, "netdev": netdev})
            )
            continue
        # The rule for GIDs, RoCE v2 and IPv4 (the type, and ::ffff:a.b.c.d), restricted to a tested address.
        gids = [gid for gid in port.gids if port.active and gid.kind == "RoCE v2" and gid.ip in addresses]
        for gid in gids[:1]:
            row = {"device": port.device, "port": port.port, "gid_index": gid.index, "netdev": gid.netdev or netdev}
            rows.append((port.rate_gbit, row))
    fastest = max((rate or 0.0 for rate, _row in rows), default=0.0)
    return [row for rate, row in rows if (rate or 0.0) == fastest]


def fabric_environment(fabric: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of the processes of one node, from its fabric.json."""
    nic = str(fabric["nic"])
    network = ipaddress.ip_network(fabric["network"])
    rdma = fabric.get("rdma", [])
    ports = [f"{port['device']}:{port['port']}" for port in rdma]
    values = {
        # To NCCL a bare name is a prefix, so eth1 matches eth10; = means exactly (NCCL docs, nccl-tests#9).
        "NCCL_SOCKET_IFNAME": f"={nic}",
        "NCCL_SOCKET_FAMILY": f"AF_INET{'6' * (network.version == 6)}",
        "GLOO_SOCKET_IFNAME": nic,
        # UCX needs a TCP device beside the RDMA ports, to connect them and as a fallback.
        "UCX_NET_DEVICES": ",".join([*ports, nic]),
        "FI_TCP_IFACE": nic,
        "FI_SOCKETS_IFACE": nic,
        # With only one of these, Intel MPI and MPICH hang on a dead second NIC: one is for the ranks, one for the
        # daemons that start them.
        "I_MPI_HYDRA_IFACE": nic,
        "HYDRA_IFACE": nic,
        "CCL_KVS_IFACE": nic,
        **open_mpi(fabric, network),
        **nccl_rdma(fabric, network),
    }
    if any(port["netdev"] == nic for port in rdma):
        values["FI_VERBS_IFACE"] = nic  # its default is the prefix "ib", which no RoCE device has: fi_verbs(7)
    return dict(sorted(values.items()))


def open_mpi(fabric: Mapping[str, Any], network: Network) -> dict[str, str]:
    """Return the variables that keep Open MPI on the network: btl for ranks, oob (4.x) and prte (5.x) for daemons.

    mpirun passes its own values to all nodes, so NIC names work only if they are the same on all. Otherwise the network
    is given, but not for IPv6 (split_and_resolve of the btl reads IPv4), and for the daemons of 5.0 not on a NIC that
    has an IPv6 address too (openpmix#4031): there the name is used if possible. More than one entry crashes 5.0
    (prrte#2553).
    """
    nic = str(fabric["nic"])
    subnet = str(network) if network.version == 4 else nic
    if network.is_loopback:
        return {"OMPI_MCA_btl_tcp_if_include": subnet}  # prterun refuses loopback, and one node does not need it
    return {
        "OMPI_MCA_btl_tcp_if_include": subnet,
        "OMPI_MCA_oob_tcp_if_include": subnet,
        "PRTE_MCA_prte_if_include": nic if fabric.get("same_name") else subnet,
    }


def nccl_rdma(fabric: Mapping[str, Any], network: Network) -> dict[str, str]:
    """Return which RDMA ports NCCL and RCCL use, and how they find the GID.

    NCCL 2.21 and newer finds it by family, range and RoCE version (NCCL docs, NCCL_IB_GID_INDEX). The index is for
    older ones, and only if it is the same for all ports, because there is one variable. A range must contain all ports.
    """
    rdma = fabric.get("rdma", [])
    if not rdma:
        return {"NCCL_IB_DISABLE": "1"} if fabric.get("rdma_off") else {}
    values = {"NCCL_IB_HCA": "=" + ",".join(f"{port['device']}:{port['port']}" for port in rdma)}
    mode, roce = fabric.get("nccl_gid", "auto"), [port for port in rdma if port["gid_index"] is not None]
    if not roce or mode == "never":
        return values
    values["NCCL_IB_ADDR_FAMILY"] = f"AF_INET{'6' * (network.version == 6)}"
    if all(port["netdev"] == fabric["nic"] for port in rdma):
        values["NCCL_IB_ADDR_RANGE"] = str(network)
    if mode == "always" and len({port["gid_index"] for port in rdma}) == 1:
        values["NCCL_IB_GID_INDEX"] = str(roce[0]["gid_index"])
    return values


def fabric_files(fabric: Mapping[str, Any]) -> dict[str, str]:
    """Return the files of a node: fabric.json for programs, fabric.env for a shell (also `docker run --env-file`)."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in fabric_environment(fabric).items()]
    return {
        "fabric.json": json.dumps(fabric, indent=1, sort_keys=True) + "\n",
        "fabric.env": HEADER + "".join(lines),
    }
