# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The rails: which RDMA ports of the workers carry their collectives, apart from the network that TCP uses. Pure.

RDMA does not follow the kernel's routes: a queue pair leaves by the port that it was made on. So the rule for TCP, one
NIC per network, is not the rule for rails: eight may be in one subnet, each in a /31 of its own, or without addresses.
The head is no part of this unless it is a worker too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.codes import Code
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .networks import Gid, Ip, NodeNet, Port, netdevs_of, some

NONE = "none"  # of fabric_rdma: no RDMA
KINDS = ("InfiniBand", "RoCE")
# What other devices are, and what a job needs to use them.
OTHERS = {
    "EFA": "EFA of AWS: NCCL uses it by the plugin aws-ofi-nccl, MPI by libfabric's provider efa",
    "MANA": "MANA of Azure: NCCL does not use it as RDMA",
    "iWARP": "iWARP: NCCL does not use it",
    "unknown": "neither InfiniBand nor RoCE: NCCL does not use it",
}


class RailCode(Code):
    """What is odd about rails."""

    RDMA_OFF = "rdma-off"
    OTHER_RDMA = "other-rdma"
    LEFT_OUT = "left-out"
    RAIL_DOWN = "rail-down"
    RAIL_MISSING = "rail-missing"
    RAIL_SLOW = "rail-slow"
    RAIL_COUNT = "rail-count"


class Note(NamedTuple):
    """What is odd about the rails of some nodes: a code for programs (docs/nics.md lists all) and a line for people."""

    code: RailCode
    nodes: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Rails:
    """The rails of every worker. `off`: why they are not used on all together, empty if they are or if none has any."""

    ports: Mapping[str, tuple[Port, ...]]
    off: str = ""
    notes: tuple[Note, ...] = ()


def check_rails(node: NodeNet) -> None:
    """Raise InputError for a pattern of fabric_rdma that fits no port of the node, or one that can be no rail."""
    if NONE in node.required_rdma and len(node.required_rdma) > 1:
        given = ", ".join(node.required_rdma)
        raise InputError(f"fabric_rdma of {node.name}", given, "none turns RDMA off: give it alone, or give devices")
    for pattern in node.required_rdma:
        found = [port for port in node.ports if fits(port, pattern)]
        able = some([port.device for port in node.ports if port.kind in KINDS and not port.use])
        there = f"give some of {able}" if able else "the node has none"
        if pattern != NONE and not found:
            raise InputError(f"fabric_rdma of {node.name}", pattern, f"there is no such RDMA device; {there}")
        for port in found:
            why = OTHERS.get(port.kind) or USES.get(port.use)
            if why:
                raise InputError(f"fabric_rdma of {node.name}", pattern, f"{port.device} is no rail: {why}; {there}")


USES = {
    "nvswitch": "it controls the NVSwitches",
    "virtual": "a virtual function, for a guest of this machine",
}


def fits(port: Port, pattern: str) -> bool:
    """Whether a pattern of fabric_rdma names a port: mlx5_0, mlx5_0:1, mlx5_[0-3]."""
    return fnmatchcase(port.device, pattern) or fnmatchcase(port.name, pattern)


def gid_of(port: Port, preferred: Collection[Ip] = ()) -> Gid | None:
    """Return the GID that a RoCE port is used with: RoCE v2 with an address, a preferred or an IPv4 one if there is."""
    usable = [gid for gid in port.gids if gid.kind == "RoCE v2" and not gid.ip.is_link_local]
    return min(usable, key=lambda gid: (gid.ip not in preferred, gid.ip.version), default=None)


def rails_of(nodes: Sequence[NodeNet], broken: Collection[Ip] = ()) -> Rails:
    """Return the rails of the workers.

    `broken`: addresses in networks that were tested and do not connect all nodes. Raise InputError for InfiniBand and
    RoCE mixed: the two do not reach each other.
    """
    workers = [node for node in nodes if node.worker]
    survey = Survey(workers, broken)
    kind = kind_of_all(survey)
    chosen, notes = survey.chosen(kind)
    notes = [*notes, *survey.shortfalls(chosen, kind), *others(workers)]
    without = [name for name, ports in chosen.items() if not ports]
    off = ""
    if any(NONE in node.required_rdma for node in workers):
        off = f"fabric_rdma is none on {some([node.name for node in workers if NONE in node.required_rdma])}"
    elif without and len(without) < len(workers):
        verb = "has" if len(without) == 1 else "have"
        off = f"{some(without)} {verb} none"
        notes.insert(0, Note(RailCode.RDMA_OFF, tuple(without), f"RDMA is off because {off}"))
    return Rails(chosen, off, tuple(notes))


def others(workers: Sequence[NodeNet]) -> list[Note]:
    """Return a note for each kind of device that is no rail, as what it is."""
    found = []
    for kind, text in OTHERS.items():
        names = tuple(node.name for node in workers if any(port.kind == kind and not port.use for port in node.ports))
        if names:
            found.append(Note(RailCode.OTHER_RDMA, names, text))
    gvnic = tuple(node.name for node in workers if any(nic.driver == "gve" for nic in node.nics))
    if gvnic:
        found.append(Note(RailCode.OTHER_RDMA, gvnic, "gVNIC of Google Cloud: no RDMA; NCCL uses it over TCP"))
    return found


class Survey:
    """The RDMA ports of the workers, and what can be said of each beside the others."""

    def __init__(self, workers: Sequence[NodeNet], broken: Collection[Ip]) -> None:
        self.workers = workers
        self.broken = broken

    def live(self, node: NodeNet, kind: str) -> list[Port]:
        """Return the ports of a kind that work; none beside EFA: what else AWS shows controls NVSwitches."""
        if any(port.kind == "EFA" for port in node.ports):
            return []
        return [port for port in node.ports if port.kind == kind and not port.use and not self.flaw(port)]

    def able(self, node: NodeNet, kind: str) -> list[Port]:
        """Return the ports of a kind that would be its rails: the fastest that work, or those that were asked for."""
        live = self.live(node, kind)
        return [port for port in live if port in named(node)] if node.required_rdma else fastest(live)

    def flaw(self, port: Port) -> str:
        """Return why a port cannot work, or an empty string."""
        if not port.active:
            return "down"
        if port.kind == "RoCE" and not gid_of(port):
            return "no address (RoCE v2)"
        if port.kind == "RoCE" and any(gid.ip in self.broken for gid in port.gids):
            return "in a network that does not connect all nodes"
        return ""

    def chosen(self, kind: str) -> tuple[dict[str, tuple[Port, ...]], list[Note]]:
        """Return the rails of each worker, and what was left out although it works."""
        rails: dict[str, tuple[Port, ...]] = {}
        left: dict[tuple[str, str], list[str]] = {}
        for node in self.workers:
            if node.required_rdma:
                asked = named(node) if NONE not in node.required_rdma else []
                rails[node.name] = tuple(port for port in asked if not self.flaw(port))
                continue
            ports = fastest(self.live(node, kind))
            for rule, why in FILTERS:
                kept = rule(ports, node)
                out = ", ".join(port.name for port in ports if port not in kept)
                if out:
                    left.setdefault((out, why), []).append(node.name)
                ports = kept
            rails[node.name] = tuple(ports)
        rails, more = self.without_strangers(rails)
        notes = [
            Note(RailCode.LEFT_OUT, tuple(names), f"{ports} left out: {why}; fabric_rdma says otherwise")
            for (ports, why), names in left.items()
        ]
        return rails, [*notes, *more]

    def without_strangers(
        self, rails: Mapping[str, tuple[Port, ...]]
    ) -> tuple[dict[str, tuple[Port, ...]], list[Note]]:
        """Return the rails without those that most nodes lack, as of a node that also has cards for storage."""
        usual, names = usual_rails(rails)
        kept, notes = dict(rails), []
        for node in self.workers:
            extra = [port for port in rails[node.name] if port.name not in names]
            surplus = len(rails[node.name]) - usual
            if node.required_rdma or surplus <= 0 or len(extra) != surplus:
                continue
            kept[node.name] = tuple(port for port in rails[node.name] if port not in extra)
            text = f"{', '.join(port.name for port in extra)} left out: most nodes have {in_rails(usual)} without it"
            notes.append(Note(RailCode.LEFT_OUT, (node.name,), f"{text}; fabric_rdma says otherwise"))
        return kept, notes

    def shortfalls(self, rails: dict[str, tuple[Port, ...]], kind: str) -> list[Note]:
        """Return what is dead, slow or missing beside the other nodes. A slow rail joins the `rails` of its node."""
        usual, names = usual_rails(rails)
        best = usual_rate(rails)
        notes = []
        for node in self.workers:
            if NONE in node.required_rdma:
                continue
            own = {port.name for port in rails[node.name]}
            lacking = [name for name in names if name not in own][: max(0, usual - len(own))]
            lacking = lacking if not node.required_rdma else [port.name for port in named(node) if port.name not in own]
            slow = [port for port in self.live(node, kind) if port.name in lacking]
            rails[node.name] = tuple(port for port in node.ports if port.name in own or port in slow)
            lacking = [name for name in lacking if name not in {port.name for port in slow}]
            notes += [*self.lacks(node, lacking, usual), *too_slow(node, rails[node.name], best)]
            if node.required_rdma and not lacking and len(own) != usual:
                text = f"fabric_rdma names {in_rails(len(own))}, where most nodes have {usual}"
                notes.append(Note(RailCode.RAIL_COUNT, (node.name,), text))
        return notes

    def lacks(self, node: NodeNet, lacking: Sequence[str], usual: int) -> list[Note]:
        """Return the notes about rails that a node lacks, one for each reason."""
        present = {port.name: port for port in node.ports if not port.use}
        reasons: dict[tuple[RailCode, str], list[str]] = {}
        for name in lacking:
            port = present.get(name)
            why = (RailCode.RAIL_DOWN, self.flaw(port) or port.kind) if port else (RailCode.RAIL_MISSING, "not there")
            reasons.setdefault(why, []).append(name)
        return [
            Note(code, (node.name,), f"{some(names)}: {flaw}, where most nodes have {in_rails(usual)}")
            for (code, flaw), names in reasons.items()
        ]


def in_rails(count: int) -> str:
    """Return a number of rails in words."""
    return f"{count} rail{'s' * (count != 1)}"


def too_slow(node: NodeNet, ports: Sequence[Port], best: float) -> list[Note]:
    """Return the note about rails that are slower than the others', if there are any."""
    slow = [port for port in ports if (port.rate_gbit or 0.0) < best]
    if not slow:
        return []
    rate = f"{slow[0].rate_gbit:g} Gbit/s" if slow[0].rate_gbit else "no known rate"
    text = f"{some([port.name for port in slow])}: {rate}, where rails of most nodes have {best:g} Gbit/s"
    return [Note(RailCode.RAIL_SLOW, (node.name,), text)]


def usual_rate(rails: Mapping[str, tuple[Port, ...]]) -> float:
    """Return the rate of the fastest rail of most nodes in Gbit/s, of a tie the highest; 0 if there are none."""
    rates = Counter(max(port.rate_gbit or 0.0 for port in ports) for ports in rails.values() if ports)
    return max(rates, key=lambda rate: (rates[rate], rate), default=0.0)


def usual_rails(rails: Mapping[str, tuple[Port, ...]]) -> tuple[int, tuple[str, ...]]:
    """Return how many rails most nodes have (of a tie the most), and the names of those."""
    counts = Counter(len(ports) for ports in rails.values() if ports)
    usual = max(counts, key=lambda count: (counts[count], count), default=0)
    full = [ports for ports in rails.values() if len(ports) == usual]
    return usual, tuple(dict.fromkeys(port.name for ports in full for port in ports))


def named(node: NodeNet) -> list[Port]:
    """Return the ports that fabric_rdma names, in the node's order."""
    return [port for port in node.ports if any(fits(port, pattern) for pattern in node.required_rdma)]


def kind_of_all(survey: Survey) -> str:
    """Return the kind of rail of the workers: the one that is faster on all of them together.

    Raise InputError if they have no common one, or two that are equally fast.
    """
    speeds = {kind: {node.name: speed(survey.able(node, kind)) for node in survey.workers} for kind in KINDS}
    # A port that is down still tells what the fabric of its node is, if that kind works on another node.
    works = [kind for kind in KINDS if any(speeds[kind].values())]
    has = {kind: [node.name for node in survey.workers if has_kind(node, kind)] for kind in works}
    all_that_have = {name for names in has.values() for name in names}
    if len(works) > 1 and not any(set(names) == all_that_have for names in has.values()):
        told = ", ".join(f"{kind} on {some(names)}" for kind, names in has.items())
        raise InputError("RDMA", told, f"the two do not reach each other: {REMEDY}")
    sums = {kind: sum(speeds[kind].values()) for kind in works}
    if len(works) > 1 and len(set(sums.values())) == 1:
        told = f"{' and '.join(works)} on {some(sorted(all_that_have))}"
        raise InputError("RDMA", told, f"the two are equally fast: {REMEDY}")
    return max(sums, key=lambda kind: sums[kind], default=KINDS[0])


REMEDY = "name the rails, fabric_rdma: [mlx5_0, mlx5_1], or turn RDMA off, fabric_rdma: [none]"


def has_kind(node: NodeNet, kind: str) -> bool:
    """Whether a node has a port of a kind that may be a rail, up or not."""
    ports = named(node) if node.required_rdma else [port for port in node.ports if not port.use]
    return any(port.kind == kind for port in ports)


def speed(ports: Sequence[Port]) -> float:
    """Return the rates of ports together. A port without a known rate counts a little."""
    return sum(port.rate_gbit or 0.001 for port in ports)


# --- which of the ports that work are rails ---------------------------------------------------------------------------


def fastest(ports: Sequence[Port]) -> list[Port]:
    """Return the fastest ports: a slower one beside them is for management, and NCCL would use it as one more rail."""
    most = max((port.rate_gbit or 0.0 for port in ports), default=0.0)
    return [port for port in ports if (port.rate_gbit or 0.0) == most]


def of_largest_subnet(ports: Sequence[Port], _node: NodeNet) -> list[Port]:
    """Return the ports of the InfiniBand subnet that has most, of all of them if it is a tie (rails may be subnets)."""
    prefixes = {port.name: prefix_of(port) for port in ports}
    counts = Counter(prefixes.values())
    most = max(counts.values(), default=0)
    return [port for port in ports if counts[prefixes[port.name]] == most]


def prefix_of(port: Port) -> int:
    """Return the prefix of the subnet of an InfiniBand port, the upper half of its first GID; 0 if it is not known."""
    return int(port.gids[0].ip) >> 64 if port.kind == "InfiniBand" and port.gids and port.gids[0].index == 0 else 0


def near_gpus(ports: Sequence[Port], node: NodeNet) -> list[Port]:
    """Return the ports that share a PCIe switch with a GPU, if these are the most; else all.

    On machines with eight GPUs each has a switch with a rail; cards for storage and management have other ones. Where
    few or none share one (virtual machines, Grace), the place says nothing.
    """
    near = [port for port in ports if any(shares_switch(port.pci, gpu) for gpu in node.gpus)]
    return near if len(near) * 2 > len(ports) else list(ports)


def shares_switch(one: str, other: str) -> bool:
    """Whether two PCI paths have a bridge in common below the host bridge and its root port."""
    pairs = list(zip(one.split("/")[:-1], other.split("/")[:-1], strict=False))
    common = next((place for place, (mine, theirs) in enumerate(pairs) if mine != theirs), len(pairs))
    return common > 2  # the host bridge, its root port, and the way into a switch


FILTERS: tuple[tuple[Callable[[Sequence[Port], NodeNet], list[Port]], str], ...] = (
    (of_largest_subnet, "in another InfiniBand subnet than most: probably for storage"),
    (near_gpus, "on no GPU's PCIe switch: probably for storage"),
)


def netdev_of(port: Port, gid: Gid | None) -> str:
    """Return the NIC of a rail, empty if it has none."""
    return (gid.netdev if gid else "") or next(iter(sorted(netdevs_of(port))), "")
