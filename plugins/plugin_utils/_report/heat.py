# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The heat map of links between nodes: each cell has its number, so that colour only helps."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

from .markup import Html, tag
from .run import Link, Links

NODES_MOST = 16  # in the table; of more nodes the slowest links are listed
SLOWEST = 20
STEPS = (0.5, 0.8, 0.95, 1.05)  # parts of the median at which the colour changes


def heat_map(links: Links) -> Html:
    """Return the table of links, from the node of the row to that of the column; of many nodes only the slowest."""
    names = sorted({name for link in links.pairs for name in (link.source, link.target)})
    median = statistics.median(link.mbit for link in links.pairs)
    summary = tag("p", f"{len(links.pairs)} links; median {speed(median)}. Marked ▼: less than half of it.")
    if len(names) > NODES_MOST:
        return tag("div", summary, slowest(links, median))
    found = {(link.source, link.target): link for link in links.pairs}
    head = tag("tr", tag("th", "from ↓ to →", scope="col"), *(tag("th", name, scope="col") for name in names))
    rows = [
        tag("tr", tag("th", source, scope="row"), *(cell(found, source, target, median) for target in names))
        for source in names
    ]
    caption = tag("caption", "bandwidth from the node of the row to that of the column", class_="unseen")
    inner = tag("table", caption, tag("thead", head), tag("tbody", *rows), class_="heat")
    return tag("div", summary, tag("div", inner, class_="wide", tabindex="0", role="region", aria_label="links"))


def cell(found: Mapping[tuple[str, str], Link], source: str, target: str, median: float) -> Html:
    """Return the cell of one link."""
    link = found.get((source, target))
    if link is None:
        return tag("td", "" if source == target else "?")
    trip = f", {link.rtt_us:g} µs there and back" if link.rtt_us is not None else ""
    mark = "▼ " if slow(link, median) else ""
    return tag(
        "td", f"{mark}{speed(link.mbit)}", class_=f"h{step_of(link, median)}", title=f"{source} to {target}{trip}"
    )


def step_of(link: Link, median: float) -> int:
    """Return the step of colour of a link, 0 for the slowest."""
    part = link.mbit / median if median else 1.0
    return sum(part >= step for step in STEPS)


def slow(link: Link, median: float) -> bool:
    """Whether a link is less than half as fast as the median, as verify.yml judges."""
    return link.mbit * 2 < median


def slowest(links: Links, median: float) -> Html:
    """Return the slowest links as a list."""
    rows = sorted(links.pairs, key=lambda link: link.mbit)[:SLOWEST]
    words = [f"{'▼ ' if slow(link, median) else ''}{link.source} to {link.target}: {speed(link.mbit)}" for link in rows]
    return tag("ol", *(tag("li", text) for text in words))


def slow_links(links: Links) -> str:
    """Return how many links are slow, and which is the slowest, in a sentence; nothing if none is."""
    median = statistics.median(link.mbit for link in links.pairs)
    found = [link for link in links.pairs if slow(link, median)]
    if not found:
        return ""
    worst = min(found, key=lambda link: link.mbit)
    which = f"the slowest is {worst.source} to {worst.target} with {speed(worst.mbit)}"
    return f"{len(found)} of {len(links.pairs)} links are less than half as fast as the median: {which}."


def speed(mbit: float) -> str:
    """Return "9.4 Gbit/s", "940 Mbit/s"."""
    return f"{mbit / 1000:.1f} Gbit/s" if mbit >= 1000 else f"{mbit:.0f} Mbit/s"
