# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Curves: SVG whose text keeps its size at any width, for coordinates are parts of the width."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from .markup import Html, folded, number, span, table, tag
from .run import Points

LINES_MOST = 8  # as many as have a colour and a dash of their own; of more there is a band and the median
TOP, DEEP, FOOT = 16, 168, 22  # pixels: above the plot, its height, and the time below it
WIDE = 1000  # steps of the plot's width
COLUMNS = 800  # of all curves of a chart together: least and most of each column are drawn
ROWS = 10  # of the table that says the same
TICKS = 4
LARGEST = 1e300  # values beyond it are no numbers that one could draw a scale of
LEAST_REACH = 1e-300  # less between two values counts as nothing: no power of ten is as small as its steps


@dataclass(frozen=True)
class Line:
    """One curve. `points`: seconds since the start, and value, in order of time."""

    label: str
    points: Points

    @cached_property
    def drawn(self) -> Points:
        """Return the points that are numbers."""
        return tuple(point for point in self.points if abs(point[1]) < LARGEST)  # no comparison is true of NaN


@dataclass(frozen=True)
class Scale:
    """From values and seconds to the plot. `first` and `last`: the seconds at its sides."""

    ticks: tuple[float, ...]
    first: float
    last: float

    @property
    def seconds(self) -> float:
        """Return what the width of the plot is."""
        return self.last - self.first

    def y(self, value: float) -> float:
        """Return the pixels from the top of the plot."""
        return round(DEEP * (self.ticks[-1] - value) / (self.ticks[-1] - self.ticks[0]), 1)

    def x(self, at: float) -> float:
        """Return steps from the left, 0 to WIDE."""
        return round(WIDE * min(1.0, max(0.0, (at - self.first) / self.seconds)), 1) if self.seconds > 0 else 0.0


def chart(title: str, lines: Sequence[Line], unit: str = "") -> Html:
    """Return a figure with the curves of one metric, and a table that says the same; nothing if there is no number.

    Its width is from the first report to the last.
    """
    shown = [line for line in lines if line.drawn]
    if not shown:
        return Html("")
    values = [value for line in shown for _at, value in line.drawn]
    moments = [at for line in lines for at, _value in line.points]
    scale = Scale(ticks_of(min(values), max(values)), min(moments), max(moments))
    last = shown[0].drawn[-1][1]
    reach = f"{number(min(values))} to {number(max(values))}"
    of = f" of {shown[0].label}" if len(shown) > 1 else ""
    odd = sum(len(line.points) - len(line.drawn) for line in lines)
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("span", title, class_="name"),
            tag("span", number(last), tag("small", f" {unit}") if unit else "", class_="last"),
            tag("span", f"last{of}; {reach}", class_="reach"),
        ),
        plot(title, f"{title}: last{of} {number(last)}, from {reach}, in {span(scale.seconds)}", shown, lines, scale),
        legend(shown),
        tag("p", "✕ ", f"{odd:,} reported values were no number", class_="warn") if odd else "",
        folded("The numbers", values_table(title, shown, scale)),
        class_="chart",
    )


def plot(title: str, said: str, shown: Sequence[Line], lines: Sequence[Line], scale: Scale) -> Html:
    """Return the picture of curves. `said`: what it shows, for those who do not see it; `lines`: with odd values."""
    curves = band(shown, scale) if len(shown) > LINES_MOST else [
        curve(place, line, scale, max(60, COLUMNS // len(shown))) for place, line in enumerate(shown)
    ]  # fmt: skip
    inner = tag(
        "svg", *curves, x=0, y=TOP, width="100%", height=DEEP, viewBox=f"0 0 {WIDE} {DEEP}", preserveAspectRatio="none",
        overflow="visible",
    )  # fmt: skip
    return tag(
        "svg",
        tag("title", title),
        tag("desc", said),
        *(
            tag("line", x1=0, x2="100%", y1=y, y2=y, class_="grid")
            for tick in scale.ticks
            for y in [scale.y(tick) + TOP]
        ),
        inner,
        *(tag("text", number(tick), x=0, y=scale.y(tick) + TOP - 3, class_="tick") for tick in scale.ticks),
        *ends(shown, scale),
        *odd_marks(lines, scale),
        *time_axis(scale, TOP + DEEP + 16),
        role="img",
        aria_label=said,
        width="100%",
        height=TOP + DEEP + FOOT,
        class_="plot",
    )


def time_axis(scale: Scale, y: float) -> Iterable[Html]:
    """Yield the times below a picture: start, middle and end."""
    for part, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        at = scale.first + scale.seconds * part
        yield tag("text", span(at) if at else "0 s", x=f"{part:.0%}", y=y, text_anchor=anchor, class_="tick")


def curve(place: int, line: Line, scale: Scale, columns: int) -> Html:
    """Return one curve, the n-th of its chart."""
    points = [(scale.x(at), scale.y(value)) for at, value in thinned(line.drawn, scale, columns)]
    path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
    path += f"L{points[0][0]:g} {points[0][1]:g}" if len(points) == 1 else ""
    said = f"{line.label}: {number(line.drawn[0][1])} to {number(line.drawn[-1][1])}"
    return tag("path", tag("title", said), d=path, class_=f"line l{place}", vector_effect="non-scaling-stroke")


def thinned(points: Points, scale: Scale, columns: int) -> Points:
    """Return points of which no more than two, the least and the most, are in one column: peaks stay."""
    if len(points) <= 2 * columns:
        return points
    kept: dict[int, list[tuple[float, float]]] = {}
    for point in points:
        column = kept.setdefault(int(columns * scale.x(point[0]) / WIDE), [point, point])
        column[0] = min(column[0], point, key=lambda found: found[1])
        column[1] = max(column[1], point, key=lambda found: found[1])
    return tuple(point for column in kept.values() for point in sorted(set(column)))


def band(lines: Sequence[Line], scale: Scale) -> list[Html]:
    """Return the area from the least to the most of many curves, and their median."""
    columns = 120
    found: dict[int, list[float]] = {}
    for line in lines:
        for at, value in line.drawn:
            found.setdefault(min(columns - 1, int(columns * scale.x(at) / WIDE)), []).append(value)
    rows = [((column + 0.5) * WIDE / columns, sorted(values)) for column, values in sorted(found.items())]
    edge = [(x, values[-1]) for x, values in rows] + [(x, values[0]) for x, values in reversed(rows)]
    area = "M" + "L".join(f"{x:g} {scale.y(value):g}" for x, value in edge) + "Z"
    middle = "M" + "L".join(f"{x:g} {scale.y(statistics.median(values)):g}" for x, values in rows)
    return [
        tag("path", tag("title", f"least to most of {len(lines)} ranks"), d=area, class_="band"),
        tag("path", tag("title", "median"), d=middle, class_="line l0", vector_effect="non-scaling-stroke"),
    ]


def ends(lines: Sequence[Line], scale: Scale) -> Iterable[Html]:
    """Yield a dot at the end of each curve."""
    for place, line in enumerate(lines if len(lines) <= LINES_MOST else ()):
        at, value = line.drawn[-1]
        yield tag("circle", cx=f"{scale.x(at) / WIDE:.2%}", cy=scale.y(value) + TOP, r=3.5, class_=f"dot l{place}")


def odd_marks(lines: Sequence[Line], scale: Scale) -> Iterable[Html]:
    """Yield a cross at the top where a curve first was no number."""
    for line in lines[:LINES_MOST]:
        at = next((at for at, value in line.points if not math.isfinite(value)), None)
        if at is not None:
            said = tag("title", f"{line.label}: no number at {span(at)}")
            yield tag("text", said, "✕", x=f"{scale.x(at) / WIDE:.2%}", y=11, text_anchor="middle", class_="odd")


def legend(lines: Sequence[Line]) -> Html:
    """Return which line is whose; nothing for one alone."""
    if len(lines) == 1:
        return Html("")
    if len(lines) > LINES_MOST:
        return tag("p", f"the line: median of {len(lines)} ranks; the area: from the least to the most", class_="keys")
    keys = []
    for place, line in enumerate(lines):
        stroke = tag("line", x1=1, x2=27, y1=6, y2=6, class_=f"line l{place}")
        swatch = tag("svg", stroke, width=28, height=12, aria_hidden="true")
        keys.append(tag("li", swatch, line.label))
    return tag("ul", *keys, class_="keys")


def ticks_of(least: float, most: float) -> tuple[float, ...]:
    """Return round numbers at equal steps (1, 2 or 5 times a power of ten) around two values."""
    reach = next(size for size in (most - least, abs(most) * 0.2, 1.0) if size > LEAST_REACH)
    power = 10.0 ** math.floor(math.log10(reach / TICKS))
    step = next((size * power for size in (1, 2, 5) if size * power * TICKS >= reach), 10 * power)
    first = math.floor(least / step)
    last = max(first + 1, math.ceil(most / step))
    found = tuple(place * step for place in range(first, last + 1)) if last - first < 100 else (least, most)
    return found if found[-1] > found[0] else (least - 1.0, least + 1.0 + abs(least))


def values_table(title: str, lines: Sequence[Line], scale: Scale) -> Html:
    """Return a table of values at equal distances in time."""
    lines = lines[:LINES_MOST]
    moments = [scale.first + scale.seconds * step / ROWS for step in range(ROWS + 1)]
    rows = [[span(at) if at else "0 s", *(value_at(line.drawn, at) for line in lines)] for at in moments]
    return table(["time", *(line.label for line in lines)], rows, f"{title} over time")


def value_at(points: Points, at: float) -> str:
    """Return the last value that was reported until then."""
    past = [value for moment, value in points if moment <= at + 1e-6]
    return number(past[-1]) if past else ""
