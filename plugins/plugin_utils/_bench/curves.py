# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Curves over message sizes or numbers of ranks, on an axis where each step doubles. Same look as a report's curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.charts import (
    DEEP,
    FOOT,
    LINES_MOST,
    TOP,
    WIDE,
    Line,
    Scale,
    curve,
    ends,
    legend,
    ticks_of,
    values_axis,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.markup import Html, folded, number, table, tag

TICKS_MOST = 7  # names below the axis: more do not fit on a phone
Words = Callable[[float], str]
Points = Sequence[tuple[float, float]]


def log_chart(title: str, unit: str, curves: Sequence[tuple[str, Points]], words: Words) -> Html:
    """Return a figure with curves from a positive number to a value; nothing if there is none.

    `words`: how a number on the axis is called. Of more than LINES_MOST curves the first are drawn, and a line says so.
    """
    shown = [Line(label, tuple((math.log2(x), y) for x, y in points)) for label, points in curves if points]
    left_out = len(shown) - LINES_MOST
    shown = shown[:LINES_MOST]
    if not shown:
        return Html("")
    values = [value for line in shown for _x, value in line.points]
    places = sorted({x for line in shown for x, _value in line.points})
    scale = Scale(ticks_of(0.0, max(values)), places[0], places[-1])
    best = max(values)
    said = f"{title}: at most {number(best)} {unit}, from {words(2 ** places[0])} to {words(2 ** places[-1])}"
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("span", title, class_="name"),
            tag("span", number(best), tag("small", f" {unit}"), class_="last"),
            tag("span", "the most", class_="reach"),
        ),
        plot(title, said, shown, scale, places, words),
        legend(shown),
        tag("p", f"{left_out} more curves are only in the table", class_="facts") if left_out > 0 else "",
        folded("The numbers", numbers(title, shown, places, words)),
        class_="chart",
    )


def plot(title: str, said: str, lines: Sequence[Line], scale: Scale, places: Sequence[float], words: Words) -> Html:
    """Return the picture of the curves."""
    drawn = [part for place, line in enumerate(lines) for part in curve(place, line, scale, WIDE)]
    inner = tag(
        "svg", *drawn, x=0, y=TOP, width="100%", height=DEEP, viewBox=f"0 0 {WIDE} {DEEP}", preserveAspectRatio="none",
        overflow="visible",
    )  # fmt: skip
    grid = [
        tag("line", x1=0, x2="100%", y1=y, y2=y, class_="grid") for tick in scale.ticks for y in [scale.y(tick) + TOP]
    ]
    field = tag(
        "svg",
        tag("title", title),
        tag("desc", said),
        *grid,
        inner,
        *ends(lines, scale),
        *axis(scale, places, words),
        role="img",
        aria_label=said,
        width="100%",
        height=TOP + DEEP + FOOT,
    )
    return tag("div", values_axis(scale), field, class_="plot")


def axis(scale: Scale, places: Sequence[float], words: Words) -> Iterable[Html]:
    """Yield the names of measured places below the picture: the ends, and some between them."""
    step = max(1, math.ceil((len(places) - 1) / (TICKS_MOST - 1)))
    shown = [*places[:-1:step], places[-1]]
    for place in shown:
        part = scale.x(place) / WIDE
        anchor = "start" if part == 0 else "end" if place == places[-1] else "middle"
        yield tag("text", words(2**place), x=f"{part:.2%}", y=TOP + DEEP + 16, text_anchor=anchor, class_="tick")


def numbers(title: str, lines: Sequence[Line], places: Sequence[float], words: Words) -> Html:
    """Return the table that says the same."""
    values = [dict(line.points) for line in lines]
    rows = [
        [words(2**place), *(number(found[place]) if place in found else "" for found in values)] for place in places
    ]
    return table(["", *(line.label for line in lines)], rows, title)
