# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The axis of time: round moments below curves and lanes, so few that they fit on a phone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from .markup import Html, tag

MOST = 4  # steps of the axis
MINUTE, HOUR, DAY = 60, 3600, 86400
# Seconds between moments: below a minute 1, 2 or 5 times a power of ten, then parts of what clocks and calendars have.
STEPS = (10, 20, 30, *(MINUTE * n for n in (1, 2, 5, 10, 20, 30)), *(HOUR * n for n in (1, 2, 3, 6, 12)),
         *(DAY * n for n in (1, 2, 5, 10, 20, 50, 100)))  # fmt: skip
LETTER, NARROW, SHORT = 6.7, 270, 5  # pixels of a letter and of the narrowest picture; letters of a short name


def moments_of(first: float, last: float) -> list[float]:
    """Return round moments from `first` to `last`, at equal steps; both in seconds since the start of a job."""
    seconds = last - first
    if not seconds > 0:
        return [first]
    wanted = seconds / MOST
    power = 10.0 ** math.floor(math.log10(wanted))
    small = (size * power for size in (1, 2, 5, 10))
    step = next(step for step in (small if wanted <= 5 else (*STEPS, 10.0 * wanted)) if step >= wanted)
    return [place * step for place in range(math.ceil(first / step - 1e-9), math.floor(last / step + 1e-9) + 1)]


def names_of(moments: Sequence[float]) -> list[str]:
    """Return what moments are called; all of them in seconds if one is between two seconds."""
    if any(abs(at - round(at)) > 1e-6 for at in moments):
        return [f"{at:.6g} s" for at in moments]
    return [moment(at) for at in moments]


def moment(seconds: float) -> str:
    """Return a round moment: "0 s", "0.5 s", "40 s", "1 min 20 s", "3 h"."""
    if seconds < MINUTE:
        return f"{seconds:.6g} s"
    size, unit, rest, less = next(
        row for row in ((DAY, "d", HOUR, "h"), (HOUR, "h", MINUTE, "min"), (MINUTE, "min", 1, "s")) if seconds >= row[0]
    )
    whole, over = divmod(round(seconds), size)
    return f"{whole} {unit}" + (f" {over // rest} {less}" if over // rest else "")


def time_axis(first: float, last: float, y: float) -> Iterable[Html]:
    """Yield the moments below a picture whose sides are `first` and `last`, with their marks above them.

    A name that would stick out is written inwards from its mark if it is short, and else left out.
    """
    moments = moments_of(first, last)
    for at, name in zip(moments, names_of(moments), strict=True):
        part = min(1.0, max(0.0, (at - first) / (last - first))) if last > first else 0.0
        half = len(name) * LETTER / 2 / NARROW
        anchor = "start" if part < half else "end" if part > 1 - half else "middle"
        yield tag("line", x1=f"{part:.2%}", x2=f"{part:.2%}", y1=y - 16, y2=y - 12, class_="mark-of-time")
        if anchor == "middle" or len(name) <= SHORT or len(moments) == 1:
            yield tag("text", name, x=f"{part:.2%}", y=y, text_anchor=anchor, class_="tick")
