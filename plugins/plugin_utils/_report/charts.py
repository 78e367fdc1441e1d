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
from itertools import pairwise

from .axis import LETTER, time_axis
from .markup import Html, folded, join, number, span, table, tag
from .run import Points

LINES_MOST = 8  # as many as have a colour and a dash of their own; of more there is a band and the median
TOP, DEEP, FOOT = 16, 168, 22  # pixels: above the plot, its height, and the time below it
WIDE = 1000  # steps of the plot's width
COLUMNS = 800  # of all curves of a chart together: least and most of each column are drawn
ROWS = 10  # of the table that says the same
TICKS = 4
CROSSES = 20  # places for crosses along a chart
FAINT = "faint"  # the class of a curve below its medians
GROUPS, RESTLESS = 40, 5.0  # of medians, and see smoothed()
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

    @cached_property
    def medians(self) -> Points:
        """Return the points of a curve that jumps to and fro, smoothed; nothing if it is calm."""
        return smoothed(self.drawn) if self.drawn else ()


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


def charts(found: Sequence[tuple[str, Sequence[Line], str]]) -> Html:
    """Return the figures of several metrics: title, curves and unit of each. Keys that all share are told once."""
    names = {tuple(line.label for line in lines if line.drawn) for _title, lines, _unit in found}
    shared = len(names) == 1 and len(found) > 1
    figures = [chart(title, lines, unit, keyed=not shared) for title, lines, unit in found]
    most = max((lines for _title, lines, _unit in found), key=restless)
    keys = legend([line for line in most if line.drawn]) if shared else ""
    return join([keys, tag("div", *figures, class_="charts")])


def restless(lines: Sequence[Line]) -> bool:
    """Whether curves jump to and fro, so that their last value says little: their medians are drawn over them."""
    return bool(lines and lines[0].medians)


def middle(lines: Sequence[Line]) -> float:
    """Return where curves end that jump to and fro: the median of the ends of their medians."""
    return statistics.median(line.medians[-1][1] for line in lines if line.medians)


def chart(title: str, lines: Sequence[Line], unit: str = "", keyed: bool = True) -> Html:
    """Return a figure with the curves of one metric, and a table that says the same; nothing if there is no number.

    Its width is from the first report to the last. `keyed`: which line is whose is told below it.
    """
    shown = [line for line in lines if line.drawn]
    if not shown:
        return Html("")
    values = [value for line in shown for _at, value in line.drawn]
    moments = [at for line in lines for at, _value in line.points]
    scale = Scale(ticks_of(min(values), max(values)), min(moments), max(moments))
    main, of = shown[0].drawn[-1][1], f"last of {shown[0].label}" if len(shown) > 1 else "last"
    if restless(shown):
        main, of = middle(shown), "at the end, smoothed"
    reach = f"{number(min(values))} to {number(max(values))}"
    odd = sum(len(line.points) - len(line.drawn) for line in lines)
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("span", title, class_="name"),
            tag("span", number(main), tag("small", f" {unit}") if unit else "", class_="last"),
            tag("span", f"{of}; {reach}", class_="reach"),
        ),
        plot(title, f"{title}: {of} {number(main)}, from {reach}, in {span(scale.seconds)}", shown, lines, scale),
        legend(shown) if keyed else "",
        tag("p", "✕ ", f"{odd:,} reported values were no number", class_="warn") if odd else "",
        folded("The numbers", values_table(title, shown, scale)),
        class_="chart",
    )


def plot(title: str, said: str, shown: Sequence[Line], lines: Sequence[Line], scale: Scale) -> Html:
    """Return the picture of curves. `said`: what it shows, for those who do not see it; `lines`: with odd values."""
    curves = band(shown, scale) if len(shown) > LINES_MOST else [
        part
        for place, line in enumerate(shown)
        for part in curve(place, line, scale, max(60, COLUMNS // len(shown)))
    ]  # fmt: skip
    curves.sort(key=lambda part: FAINT not in part)  # below all others
    inner = tag(
        "svg", *curves, x=0, y=TOP, width="100%", height=DEEP, viewBox=f"0 0 {WIDE} {DEEP}", preserveAspectRatio="none",
        overflow="visible",
    )  # fmt: skip
    field = tag(
        "svg",
        tag("title", title),
        tag("desc", said),
        *(tag("line", x1=0, x2="100%", y1=y, y2=y, class_="grid") for y in (scale.y(at) + TOP for at in scale.ticks)),
        inner,
        *ends(shown, scale),
        *odd_marks(lines, scale),
        *time_axis(scale.first, scale.last, TOP + DEEP + 17),
        role="img",
        aria_label=said,
        width="100%",
        height=TOP + DEEP + FOOT,
    )
    return tag("div", values_axis(scale), field, class_="plot")


def values_axis(scale: Scale) -> Html:
    """Return the values at the left of a picture, in a picture of its own: no curve goes through them."""
    names = [number(tick) for tick in scale.ticks]
    wide = math.ceil(LETTER * max(map(len, names))) + 10
    texts = (
        tag("text", name, x=wide - 8, y=round(scale.y(tick) + TOP + 4, 1), text_anchor="end", class_="tick")
        for name, tick in zip(names, scale.ticks, strict=True)
    )
    return tag("svg", *texts, width=wide, height=TOP + DEEP + FOOT, aria_hidden="true", focusable="false")


def curve(place: int, line: Line, scale: Scale, columns: int) -> list[Html]:
    """Return one curve, the n-th of its chart: where it jumps to and fro, faint, and its medians over that."""
    smooth = line.medians
    said = tag("title", f"{line.label}: {number(line.drawn[0][1])} to {number(line.drawn[-1][1])}")
    strong = path_of(smooth or thinned(line.drawn, scale, columns), scale)
    found = [tag("path", said, d=strong, class_=f"line l{place}", vector_effect="non-scaling-stroke")]
    if smooth:
        faint = path_of(thinned(line.drawn, scale, columns), scale)
        found.append(tag("path", d=faint, class_=f"{FAINT} l{place}", vector_effect="non-scaling-stroke"))
    return found


def path_of(points: Points, scale: Scale) -> str:
    """Return a line through points; one alone is a dot."""
    spots = [(scale.x(at), scale.y(value)) for at, value in points]
    spots += spots if len(spots) == 1 else []
    return "M" + "L".join(f"{x:g} {y:g}" for x, y in spots)


def smoothed(points: Points) -> Points:
    """Return medians of points in groups of equal size, from their first moment to their last; nothing if calm.

    A curve is not calm if all its ways up and down together are more than RESTLESS times as long as its reach.
    """
    values = [value for _at, value in points]
    ways = sum(abs(after - before) for before, after in pairwise(values))
    if len(points) < 3 * GROUPS or ways <= RESTLESS * (max(values) - min(values)):
        return ()
    bounds = [len(points) * place // GROUPS for place in range(GROUPS + 1)]
    groups = [points[first:last] for first, last in pairwise(bounds)]
    found = [(group[len(group) // 2][0], statistics.median(value for _at, value in group)) for group in groups]
    return ((points[0][0], found[0][1]), *found, (points[-1][0], found[-1][1]))


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
        at, value = (line.medians or line.drawn)[-1]
        yield tag("circle", cx=f"{scale.x(at) / WIDE:.2%}", cy=scale.y(value) + TOP, r=3.5, class_=f"dot l{place}")


def odd_marks(lines: Sequence[Line], scale: Scale) -> Iterable[Html]:
    """Yield a cross at the top where a curve first was no number."""
    found: dict[int, list[str]] = {}  # by places that are so far apart that crosses do not overlap on a phone
    for line in lines[:LINES_MOST]:
        at = next((at for at, value in line.points if not math.isfinite(value)), None)
        if at is not None:
            found.setdefault(round(scale.x(at) / WIDE * CROSSES), []).append(f"{line.label}: no number at {span(at)}")
    for place, texts in found.items():
        said = tag("title", "; ".join(texts))
        anchor = {0: "start", CROSSES: "end"}.get(place, "middle")
        yield tag("text", said, "✕", x=f"{place / CROSSES:.2%}", y=11, text_anchor=anchor, class_="odd")


def legend(lines: Sequence[Line]) -> Html:
    """Return which line is whose; nothing for one alone that is drawn as it is."""
    if len(lines) == 1 and not lines[0].medians:
        return Html("")
    if len(lines) > LINES_MOST:
        return tag("p", f"the line: median of {len(lines)} ranks; the area: from the least to the most", class_="keys")
    keys = []
    for place, line in enumerate(lines):
        stroke = tag("line", x1=1, x2=27, y1=6, y2=6, class_=f"line l{place}")
        swatch = tag("svg", stroke, width=28, height=12, aria_hidden="true")
        keys.append(tag("li", swatch, line.label))
    if any(line.medians for line in lines):
        keys.append(tag("li", "faint: each report; line: medians"))
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
