# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What the ranks took of their nodes, as a report shows it: usage.json, read, and a lane for each value of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.fetched_files import USAGE as FILE
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.codes import known
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import BadFrame
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.run_usage import (
    FIGURES,
    HOST,
    Finding,
    FindingCode,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.usage import USAGE, NodeUsage, Series
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.usage.usage_figures import busiest, mean, most
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.usage.usage_findings import size
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.usage.usage_series import narrowed
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.usage_view import finding_lines

from .axis import moment
from .files import Fields, Unreadable, read_json, text_of
from .lanes import Lane, lanes_table
from .markup import Html, count, tag
from .run import Run, Taken

NODES_MOST = 16  # that have lanes
POINTS_OF_ALL, POINTS_MOST = 2400, 100  # of all lanes of a page, and of one: some 40 bytes each
LANES_OF_NODE = 5
HIGH, WIDE = 26, 1000  # pixels of a lane, and steps of its width
FINDINGS_SHOWN = 12


def taken_of(run_dir: Path, missing: list[str]) -> tuple[Taken, ...]:
    """Return what was read of the nodes of a run. A node whose values are nonsense is named in `missing`."""
    try:
        nodes = read_json(run_dir / FILE).of("nodes").value
    except Unreadable as error:
        if (run_dir / FILE).exists():  # else nothing was read: the run is an old one, or was short
            missing.append(f"{FILE}: {error}")
        return ()
    found = []
    for host, value in list(nodes.items())[:10_000]:
        try:
            found.append(Taken(HOST(host), narrowed(USAGE(value), POINTS_MOST)))
        except (BadFrame, ValueError, OverflowError) as error:
            missing.append(f"{FILE}: {text_of(host)}: {error}")
    return tuple(found)


def figures_of(result: Fields) -> dict[str, dict[str, float]]:
    """Return the figures of nodes that are numbers, by node."""
    nodes = result.of("usage").of("nodes")
    return {
        text_of(host): {
            name: value for name in FIGURES.names if (value := nodes.of(host).number(name, 0.0)) is not None
        }
        for host in list(nodes.value)[:10_000]
    }


def findings_of(result: Fields) -> tuple[Finding, ...]:
    """Return what the result says of the usage."""
    rows = result.of("usage").rows("findings", 1000)
    return tuple(
        {"code": code, "host": row.text("host"), "text": row.text("text")}
        for row in rows
        if (code := known(FindingCode, row.text("code", 40)))
    )


def taken(run: Run) -> Html:
    """Return what the ranks took of their nodes: what is out of the ordinary, and lanes of the values."""
    notes = [tag("p", f"! {line}", class_="warn") for line in finding_lines(run.findings)[:FINDINGS_SHOWN]]
    named = {row["host"] for row in run.findings}
    known = [row for row in run.taken if row.host in run.hosts]
    shown = sorted(known, key=lambda row: row.host not in named)[:NODES_MOST]
    points = max(12, min(POINTS_MOST, POINTS_OF_ALL // (LANES_OF_NODE * max(1, len(shown)))))
    lanes = [lane for row in known if row in shown for lane in lanes_of(row.host, narrowed(row.usage, points), run)]
    if not lanes:
        return tag("section", tag("h2", "What the ranks took"), *notes) if notes else Html("")
    left = len(known) - len(shown)
    steps = dict.fromkeys(moment(round(narrowed(row.usage, points)["bucket"], 2)) for row in shown)
    return tag(
        "section",
        tag("h2", "What the ranks took"),
        *notes,
        lanes_table(lanes, run.start, run.end - run.start, "what the ranks took of their nodes over time"),
        tag("p", f"A point is the mean of {' or '.join(steps)}, the area from the least to the most.", class_="facts"),
        tag("p", f"{count(left, 'more node')}: usage.json has them all") if left else "",
    )


def lanes_of(host: str, usage: NodeUsage, run: Run) -> list[Lane]:
    """Return the lanes of one node: its name, then CPU, memory, network, swap and GPUs as far as there are values."""
    series, limits = usage["series"], usage["limits"]
    carrier = busiest(usage)
    gpus = [found for name, found in series.items() if name.startswith("gpu.")]
    cores = limits.get("cpu") or float(usage["cores"])
    memory = limits.get("memory")
    way = "sent" if carrier and carrier.sends else "received"
    rate = f" of {bits(carrier.rate)}" if carrier and carrier.rate else ""
    rows: list[tuple[str, Series | None, float | None, Callable[[float], str], str]] = [
        ("CPU", series.get("cpu"), cores, lambda value: f"{value:.2g}", f" of {count(round(cores), 'core')}"),
        ("memory", series.get("memory"), memory, size, f" of {size(memory)}" if memory else ""),
        (f"{carrier.name} {way}" if carrier else "", carrier.series if carrier else None, None, bits, rate),
        ("swap", series.get("swap") if most(series.get("swap")) else None, None, size, " a second"),
        (count(len(gpus), "GPU"), average(gpus), 1.0, lambda value: f"{value:.0%}", ""),
    ]
    lanes = []
    for name, found, top, show, of in rows:
        if found is not None and most(found) is not None:
            said = f"{show(mean(found) or 0.0)}, peak {show(most(found) or 0.0)}{of}"
            lanes.append(Lane(name, (), said, picture=sketch(f"{name} of {host}", found, usage, run, top)))
    return [Lane(host, (), heading=True), *lanes] if lanes else []


def bits(rate: float) -> str:
    """Return bytes/s as "9.1 Gbit/s", "450 kbit/s"."""
    amount = rate * 8
    prefix, one = next((row for row in (("G", 1e9), ("M", 1e6), ("k", 1e3)) if amount >= row[1]), ("", 1.0))
    return f"{amount / one:.3g} {prefix}bit/s"


def average(rows: Sequence[Series]) -> Series | None:
    """Return one series of several: their mean, from the least to the most of any."""
    if not rows:
        return None

    def every(key: str, of: Callable[[list[float]], float]) -> list[float | None]:
        columns = zip(*(cast("dict[str, list[float | None]]", row)[key] for row in rows), strict=False)
        found = [[value for value in column if value is not None] for column in columns]
        return [of(values) if values else None for values in found]

    return {
        "least": every("least", min),
        "mean": every("mean", lambda values: sum(values) / len(values)),
        "most": every("most", max),
    }


def sketch(title: str, series: Series, usage: NodeUsage, run: Run, top: float | None) -> Html:
    """Return a small picture: the mean as a line, in the area from the least to the most. `top`: what its height is."""
    seconds = run.end - run.start
    highest = max(top or 0.0, most(series) or 0.0) or 1.0

    def at(place: int, value: float) -> str:
        when = usage["began"] + (place + 0.5) * usage["bucket"] - run.start
        x = WIDE * min(1.0, max(0.0, when / seconds)) if seconds > 0 else 0.0
        return f"{x:.0f} {(HIGH - 2) * (1 - value / highest) + 1:.1f}"

    rows = zip(series["least"], series["mean"], series["most"], strict=False)
    known = [
        (place, low, middle, high)
        for place, (low, middle, high) in enumerate(rows)
        if low is not None and middle is not None and high is not None
    ]
    upper = [at(place, high) for place, _low, _middle, high in known]
    lower = [at(place, low) for place, low, _middle, _high in reversed(known)]
    line = [at(place, middle) for place, _low, middle, _high in known]
    return tag(
        "svg",
        tag("path", d=f"M0 {HIGH - 1}H{WIDE}", class_="grid", vector_effect="non-scaling-stroke"),
        tag("path", d="M" + "L".join([*upper, *lower]) + "Z", class_="band"),
        tag("path", tag("title", title), d="M" + "L".join([*line, line[-1]]), class_="line l0 thin",
            vector_effect="non-scaling-stroke"),
        width="100%", height=HIGH, viewBox=f"0 0 {WIDE} {HIGH}", preserveAspectRatio="none", aria_hidden="true",
        focusable="false",
    )  # fmt: skip
