# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a job took of its nodes, as lines for the terminal: one for each of a few nodes, one for many together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.run_usage import (
    Finding,
    NodeFigures,
    Usage,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.usage.usage_findings import gbit, size
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

NODES_MOST = 4  # that have a line each


def usage_lines(usage: Usage) -> list[str]:
    """Return the figures of the nodes whose samplers read something, and what is out of the ordinary."""
    nodes = {host: found for host, found in usage["nodes"].items() if found["samples"]}
    figures = [f"{host}: {node_line(found)}" for host, found in nodes.items()]
    if len(nodes) > NODES_MOST:
        figures = [f"{len(nodes)} nodes: {all_nodes_line(nodes)}"]
    findings = finding_lines(usage["findings"])
    return [*(f"used on {line}" for line in figures), *(f"! {line}" for line in findings)]


def node_line(found: NodeFigures) -> str:
    """Return the figures of one node."""
    words = [
        f"CPU {found['cpu_efficiency']:.0%} of {cores(found['cores'])}" if found["cpu_efficiency"] is not None else "",
        memory_words(found),
        network_words(found),
        f"GPU{'s' if found['gpus'] > 1 else ''} {found['gpu_share']:.0%}" if found["gpu_share"] is not None else "",
    ]
    return ", ".join(filter(None, words))


def cores(amount: int) -> str:
    return f"{amount} core" + "s" * (amount != 1)


def memory_words(found: NodeFigures) -> str:
    """Return the most memory that was held, and how much there is."""
    if found["memory_peak"] is None:
        return ""
    whole = f" of {size(found['memory_total'])}" if found["memory_total"] else ""
    return f"memory {size(found['memory_peak'])}{whole}"


def network_words(found: NodeFigures) -> str:
    """Return what the NIC carried."""
    if found["nic_mean"] is None or found["nic_peak"] is None:
        return ""
    rate = f" of {gbit(found['nic_rate'])}" if found["nic_rate"] else ""
    return f"{found['nic']} {gbit(found['nic_mean'])} Gbit/s, peak {gbit(found['nic_peak'])}{rate}"


def all_nodes_line(nodes: Mapping[str, NodeFigures]) -> str:
    """Return the mean of each figure over many nodes, with the least and the most of any."""
    parts = [
        spread("CPU", {host: found["cpu_efficiency"] for host, found in nodes.items()}, "{:.0%}".format),
        spread("memory", {host: found["memory_peak"] for host, found in nodes.items()}, size),
        spread(
            "network", {host: found["nic_mean"] for host, found in nodes.items()}, lambda rate: gbit(rate) + " Gbit/s"
        ),
        spread("GPUs", {host: found["gpu_share"] for host, found in nodes.items()}, "{:.0%}".format),
    ]
    return ", ".join(filter(None, parts))


def spread(name: str, values: Mapping[str, float | None], show: Callable[[float], str]) -> str:
    """Return "CPU 80% (31% on n3 to 99% on n7)"; an empty text if no node has a value."""
    known = {host: value for host, value in values.items() if value is not None}
    if not known:
        return ""
    low, high = min(known, key=lambda host: known[host]), max(known, key=lambda host: known[host])
    ends = f" ({show(known[low])} on {low} to {show(known[high])} on {high})" if known[low] < known[high] else ""
    return f"{name} {show(sum(known.values()) / len(known))}{ends}"


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """Return a line for each code: what is so on the first node, and which others have it too."""
    by_code: dict[str, list[Finding]] = {}
    for found in findings:
        by_code.setdefault(found["code"], []).append(found)
    lines = []
    for rows in by_code.values():
        others = fold_names(dict.fromkeys(row["host"] for row in rows[1:]))
        lines.append(f"{rows[0]['host']}: {rows[0]['text']}" + (f"; also on {others}" if others else ""))
    return lines
