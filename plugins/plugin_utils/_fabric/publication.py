# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The published fabric of a node: fabric.json, and the environment that makes every library use it."""

from __future__ import annotations

import ipaddress
import json
import shlex
from collections.abc import Collection, Iterable, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Fabric, FabricSeat
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import Port as Rail

from .choice import Choice, daemons_of
from .constraints import Constraints
from .fabric_types import NetworkSeat, Published
from .networks import VERSION, Ip, Network, NodeNet, Port
from .rails import OTHERS, Rails, gid_of, netdev_of, rails_of
from .ranking import Candidate
from .rejections import rejected_of

HEADER = "# The fabric of this node, written by torchfleet.cluster.fabric. Use: set -a; . fabric.env; set +a\n"


def fabric_of(
    choice: Choice, nodes: Sequence[NodeNet], constraints: Constraints, rails: Rails | None = None
) -> dict[str, Published]:
    """Return the fabric.json of every node: its present one, if that is still valid."""
    if choice.chosen is None or choice.daemons is None:
        return {node.name: node.published for node in nodes}
    rails = rails or rails_of(nodes, [ipaddress.ip_address(text) for text in choice.broken])
    usable = sorted(str(candidate.network) for candidate in choice.usable)
    preferred = {seat.address.ip for candidate in choice.usable for seat in candidate.seats.values()}
    return {
        node.name: {
            "version": VERSION,
            **own_network(choice, node.name),
            "rdma": [rail_row(port, preferred) for port in rails.ports.get(node.name, ())],
            "rdma_off": rails.off if node.worker else "",
            "other_rdma": next((port.kind for port in node.ports if port.kind in OTHERS and not port.use), ""),
            "nccl_gid": constraints.nccl_gid,
            "why": choice.why,
            "usable": usable,
            "digest": choice.digest,
            "rejected": rejected_of(choice.rejections, node.name),
        }
        for node in nodes
    }


def own_network(choice: Choice, name: str) -> Published:
    """Return the network of a node: that of the ranks, with that of the daemons if it is another, or only the latter.

    A head that runs no ranks may not be in the network of the ranks.
    """
    if choice.chosen is None or choice.daemons is None:
        raise ValueError("no network was chosen")
    if name not in choice.chosen.seats:
        return with_mtu(seat_of(choice.daemons, name), choice.daemons_mtu)
    own = with_mtu(seat_of(choice.chosen, name), choice.mtu)
    if choice.daemons is not choice.chosen:
        own["daemons"] = seat_of(choice.daemons, name)
    return own


def with_mtu(seat: NetworkSeat, mtu: int) -> Published:
    """Return a seat as the first part of fabric.json. `mtu`: bytes."""
    return {
        "nic": seat["nic"],
        "address": seat["address"],
        "network": seat["network"],
        "speed_mbit": seat["speed_mbit"],
        "same_name": seat["same_name"],
        "mtu": mtu,
    }


def seat_of(candidate: Candidate, name: str) -> NetworkSeat:
    """Return NIC and address of a node in a network, and whether that NIC has one name on all nodes there."""
    seat = candidate.seats[name]
    return {
        "nic": seat.nic.name,
        "address": str(seat.address.ip),
        "network": str(candidate.network),
        "speed_mbit": seat.nic.speed_mbit,
        "same_name": len({each.nic.name for each in candidate.seats.values()}) == 1,
    }


def rail_row(port: Port, preferred: Collection[Ip]) -> Rail:
    """Return a rail for fabric.json. InfiniBand needs no GID of its own choice."""
    gid = gid_of(port, preferred) if port.kind == "RoCE" else None
    return {
        "device": port.device,
        "port": port.port,
        "gid_index": gid.index if gid else None,
        "address": str(gid.ip) if gid else None,
        "netdev": netdev_of(port, gid),
        "rate_gbit": port.rate_gbit,
    }


def fabric_environment(fabric: Fabric) -> dict[str, str]:
    """Return the environment of the processes of one node, from its fabric.json."""
    nic, daemons = str(fabric["nic"]), str(daemons_of(fabric)["nic"])
    network = ipaddress.ip_network(fabric["network"])
    rdma = rails_in_use(fabric)
    ports = [f"{port['device']}:{port['port']}" for port in rdma]
    values = {
        # To NCCL a bare name is a prefix, so eth1 matches eth10; = means exactly (NCCL docs, nccl-tests#9).
        "NCCL_SOCKET_IFNAME": f"={nic}",
        "NCCL_SOCKET_FAMILY": f"AF_INET{'6' * (network.version == 6)}",
        "GLOO_SOCKET_IFNAME": nic,
        # Else TensorPipe listens where the host name leads: on Debian that is 127.0.1.1, where no other node gets to.
        "TP_SOCKET_IFNAME": nic,
        # UCX needs a TCP device beside the RDMA ports, to connect them and as a fallback.
        "UCX_NET_DEVICES": ",".join([*ports, nic]),
        "FI_TCP_IFACE": nic,
        "FI_SOCKETS_IFACE": nic,
        # With only one of these, Intel MPI and MPICH hang on a dead second NIC: one is for the ranks, one for the
        # daemons that start them.
        "I_MPI_HYDRA_IFACE": daemons,
        "HYDRA_IFACE": daemons,
        "CCL_KVS_IFACE": nic,
        **open_mpi(fabric, network),
        **nccl_rdma(fabric, network),
    }
    if any(port["netdev"] == nic for port in rdma):
        values["FI_VERBS_IFACE"] = nic  # its default is the prefix "ib", which no RoCE device has: fi_verbs(7)
    return dict(sorted(values.items()))


def open_mpi(fabric: Fabric, network: Network) -> dict[str, str]:
    """Return the variables that keep Open MPI on the network: btl for ranks, oob (4.x) and prte (5.x) for daemons.

    mpirun passes its own values to all nodes, so NIC names work only if they are the same on all. Otherwise the network
    is given, but not for IPv6 (split_and_resolve of the btl reads IPv4), and for the daemons of 5.0 not on a NIC that
    has an IPv6 address too (openpmix#4031): there the name is used if possible. More than one entry crashes 5.0
    (prrte#2553).
    """
    if network.is_loopback:
        return {"OMPI_MCA_btl_tcp_if_include": str(network)}  # prterun refuses loopback, and one node does not need it
    of_daemons = daemons_of(fabric)
    subnet = subnet_or_nic(of_daemons)
    return {
        "OMPI_MCA_btl_tcp_if_include": subnet_or_nic(fabric),
        "OMPI_MCA_oob_tcp_if_include": subnet,
        "PRTE_MCA_prte_if_include": str(of_daemons["nic"]) if of_daemons.get("same_name") else subnet,
    }


def subnet_or_nic(fabric: Fabric | FabricSeat) -> str:
    """Return the network as the btl reads it: IPv4 as such, else by the NIC."""
    return str(fabric["network"] if ipaddress.ip_network(fabric["network"]).version == 4 else fabric["nic"])


def nccl_rdma(fabric: Fabric, network: Network) -> dict[str, str]:
    """Return which RDMA ports NCCL and RCCL use, and how they find the GID.

    NCCL 2.21 and newer finds it by family, range and RoCE version (NCCL docs, NCCL_IB_GID_INDEX). The index is for
    older ones, and only if it is the same for all ports, because there is one variable. A range must contain all ports.
    """
    rdma = rails_in_use(fabric)
    if not rdma:
        return {"NCCL_IB_DISABLE": "1"} if fabric.get("rdma_off") else {}
    values = {"NCCL_IB_HCA": "=" + ",".join(f"{port['device']}:{port['port']}" for port in rdma)}
    mode, roce = fabric.get("nccl_gid", "auto"), [port for port in rdma if port["gid_index"] is not None]
    if not roce or mode == "never":
        return values
    addresses = [ipaddress.ip_address(text) for port in roce if (text := port.get("address"))]
    version = addresses[0].version if addresses else network.version
    values["NCCL_IB_ADDR_FAMILY"] = f"AF_INET{'6' * (version == 6)}"
    if len(addresses) == len(rdma) and all(address in network for address in addresses):
        values["NCCL_IB_ADDR_RANGE"] = str(network)
    if mode == "always" and len({port["gid_index"] for port in rdma}) == 1:
        values["NCCL_IB_GID_INDEX"] = str(roce[0]["gid_index"])
    return values


def fabric_files(fabric: Fabric) -> dict[str, str]:
    """Return the files of a node: fabric.json for programs, fabric.env for a shell (also `docker run --env-file`)."""
    lines = [f"{name}={shlex.quote(value)}\n" for name, value in fabric_environment(fabric).items()]
    return {
        "fabric.json": json.dumps(fabric, indent=1, sort_keys=True) + "\n",
        "fabric.env": HEADER + "".join(lines),
    }


def rails_in_use(fabric: Fabric) -> list[Rail]:
    """Return the rails that a job uses: none if RDMA is off."""
    return [] if fabric.get("rdma_off") else fabric.get("rdma", [])


def all_have_rails(fabrics: Iterable[Fabric | None]) -> bool:
    """Whether each of these nodes has rails: a job on them uses RDMA, whatever other nodes lack."""
    return all(fabric and fabric.get("rdma") for fabric in fabrics)


def reason_of(fabric: Fabric, name: str) -> str:
    """Return why a variable of fabric_environment() has its value."""
    rails = rails_in_use(fabric)
    if name == "NCCL_IB_DISABLE":
        return f"RDMA is off because {fabric['rdma_off']}"
    if name == "NCCL_IB_HCA":
        return f"the {len(rails)} rail{'s' * (len(rails) != 1)} of this node, as role fabric chose them (docs/nics.md)"
    daemons = daemons_of(fabric)
    of_daemons = ("I_MPI_HYDRA_IFACE", "HYDRA_IFACE", "OMPI_MCA_oob_tcp_if_include", "PRTE_MCA_prte_if_include")
    seat = daemons if name in of_daemons else fabric
    return f"{seat['nic']} in {seat['network']} was proven by role fabric"
