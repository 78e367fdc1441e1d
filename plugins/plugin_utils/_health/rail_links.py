# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""verify.yml: findings about single rails between two nodes, from the test of each between each pair. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.unreached import BY_FIREWALL, UnreachedCode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.fabric_types import RailMeasured
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.firewalls import OPEN
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.link_matrix import slow_links
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.rail_matrix import Untested
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from .findings import Finding, Rule, found

Rows = Mapping[str, Sequence[RailMeasured]]  # by the node that measured
WAYS = {"rdma": "RDMA", "tcp": "TCP"}
ONE_RAIL = "an all-reduce uses all rails, and waits for the slowest"
RULES: Mapping[str, Rule] = {
    "TF-RAIL-LINK": Rule(
        "error",
        "a rail does not join two nodes",
        "NCCL would hang, or end with error 12 (retry exceeded)",
        "each rail tested between each two nodes: by ib_write_bw of perftest, else by TCP over its NIC",
        "check cable and switch port between them, and that both are in one VLAN or InfiniBand partition",
    ),
    "TF-RAIL-FIREWALL": Rule(
        "error",
        "a firewall stops two nodes over a rail",
        "RoCE is UDP, which it may stop as well",
        "each rail tested between each two nodes by TCP; the machine answers on the link, or an ICMP error arrived",
        OPEN,
    ),
    "TF-RAIL-MTU": Rule(
        "error",
        "a rail loses full packets between two nodes",
        "small messages pass, and the first tensor hangs",
        "packets of the full MTU that no router may split",
        "set the MTU of the switch ports between them, or a smaller one on both NICs: ip link set <NIC> mtu 1500",
    ),
    "TF-RAIL-LINK-SLOW": Rule(
        "warning",
        "a rail is much slower between two nodes than others",
        ONE_RAIL,
        "measured against the median of all rails",
        "check the cable and the errors of the port, on the node: ethtool -S <NIC>, or perfquery",
    ),
    "TF-RAIL-UNTESTED": Rule(
        "info",
        "rails were not tested one by one",
        "one that is cut between two nodes only would not be found",
        "RDMA is tested by perftest, TCP only where the kernel sends by the NIC of the rail",
        "install perftest on all nodes: ansible-playbook setup.yml (role prerequisites), with root",
    ),
}
# Of rows whose rail was not tried: what kept the test from it is another finding, or none.
NOT_TRIED = (
    UnreachedCode.NOT_READY,
    UnreachedCode.NO_TOOL,
    UnreachedCode.OTHER_NIC,
    UnreachedCode.OTHER_ADDRESS,
)
RULE_OF: Mapping[str, str] = {
    UnreachedCode.SMALL_MTU: "TF-RAIL-MTU",
    **dict.fromkeys(BY_FIREWALL, "TF-RAIL-FIREWALL"),
}


def end(node: str, rail: str) -> str:
    """Return "mlx5_0:1 of n1"."""
    return f"{rail} of {node}"


def judge_rail_links(
    measured: Rows, untested: Sequence[Untested] = (), left_out: int = 0, silent: Iterable[str] = ()
) -> Iterator[Finding]:
    """Yield the findings. `silent`: nodes that are found to be unreachable anyway; `left_out`: pairs of nodes."""
    gone = set(silent)
    rows = [(name, row) for name, own in measured.items() for row in own if not gone & {name, row["node"]}]
    failed = [(name, row) for name, row in rows if row["code"] and row["code"] not in NOT_TRIED]
    yield from faults(failed, rows)
    for way in WAYS:
        yield from slow(rows, way)
    yield from not_tested(rows, untested, left_out)


def faults(failed: Sequence[tuple[str, RailMeasured]], rows: Sequence[tuple[str, RailMeasured]]) -> Iterator[Finding]:
    """Yield the rails that fail. One that fails with every other node is reported once, not for each of them."""
    told: set[tuple[str, str, str, str]] = set()
    of_rail: dict[tuple[str, str], list[RailMeasured]] = {}
    for name, row in rows:
        of_rail.setdefault((name, row["rail"]), []).append(row)
    for node, rail in sorted({(name, row["rail"]) for name, row in failed}):
        own = of_rail[node, rail]
        bad = [row for row in own if row["code"] and row["code"] not in NOT_TRIED]
        if len(own) > 1 and len(bad) == len(own) and len({row["code"] for row in bad}) == 1:
            others = fold_names([row["node"] for row in bad])
            seen = f"{end(node, rail)} -> all others ({others}): {bad[0]['error']}"
            yield found(RULES, RULE_OF.get(bad[0]["code"], "TF-RAIL-LINK"), [node], seen)
            told |= {(node, rail, row["node"], row["peer"]) for row in bad}
            told |= {(row["node"], row["peer"], node, rail) for row in bad}
    for name, row in failed:
        if (name, row["rail"], row["node"], row["peer"]) not in told:
            seen = f"{end(name, row['rail'])} -> {end(row['node'], row['peer'])}: {row['error']}"
            yield found(RULES, RULE_OF.get(row["code"], "TF-RAIL-LINK"), [name, row["node"]], seen)


def slow(rows: Sequence[tuple[str, RailMeasured]], way: str) -> Iterator[Finding]:
    """Yield the rails that are slow, of those that were measured in one way."""
    owner = {end(node, rail): node for name, row in rows for node, rail in ends(name, row)}
    rates = {
        (end(name, row["rail"]), end(row["node"], row["peer"])): float(row["mbit"])
        for name, row in rows
        if row["by"] == way and not row["code"]
    }
    for each in slow_links(rates):
        nodes = [owner[side] for side in (each.source, each.target) if side]
        yield found(RULES, "TF-RAIL-LINK-SLOW", nodes, f"{each} ({WAYS[way]})")


def links(measured: Rows) -> list[dict[str, object]]:
    """Return every test of a rail as plain values for JSON; rates in Mbit/s, MTU in bytes."""
    return [
        {
            "from": {"node": name, "rail": row["rail"]},
            "to": {"node": row["node"], "rail": row["peer"]},
            "by": row["by"],
            **figures_of(row),
        }
        for name, own in measured.items()
        for row in own
    ]


def figures_of(row: Mapping[str, object]) -> dict[str, object]:
    """Return what a test found, or why it failed."""
    return {key: row[key] for key in ("code", "error", "mbit", "mtu") if key in row}


def summary(measured: Rows) -> list[str]:
    """Return a line for each way in which rails were measured: how many links, the median, and the slowest."""
    lines = []
    for way, title in WAYS.items():
        rows = [(float(row["mbit"]), name, row) for name, own in measured.items() for row in own if "mbit" in row]
        rows = [row for row in rows if row[2]["by"] == way]
        if rows:
            least, name, row = min(rows, key=lambda each: each[0])
            slowest = f"{end(name, row['rail'])} -> {end(row['node'], row['peer'])}"
            median = statistics.median(rate for rate, _name, _row in rows)
            pace = f"median {median / 1000:,.4g} Gbit/s, slowest {least / 1000:,.4g} ({slowest})"
            lines.append(f"rails, {len(rows)} links by {title}: {pace}")
    return lines


def ends(name: str, row: RailMeasured) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return both ends of a rail: node and rail."""
    return (name, row["rail"]), (row["node"], row["peer"])


def not_tested(
    rows: Sequence[tuple[str, RailMeasured]], untested: Sequence[Untested], left_out: int
) -> Iterator[Finding]:
    """Yield why rails were not tested: one finding for each reason."""
    reasons: dict[str, set[str]] = {}
    for each in untested:
        reasons.setdefault(each.why, set()).update((each.node, each.other))
    for name, row in rows:
        if row["code"] in NOT_TRIED:
            reasons.setdefault(row["error"], set()).update((name, row["node"]))
    for why, nodes in reasons.items():
        yield found(RULES, "TF-RAIL-UNTESTED", sorted(nodes), why)
    if left_out:
        seen = f"{left_out} links between nodes: there are too many for the time of the test"
        yield found(RULES, "TF-RAIL-UNTESTED", [], seen)
