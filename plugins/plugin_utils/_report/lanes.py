# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Lanes: when something ran, as bars over the time of a run, and the list of what happened at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import signal_name
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from .axis import time_axis
from .markup import Html, count, ranks_named, span, tag
from .run import RankRun, Run

HIGH = 18  # pixels of a lane
SIGNS = {"succeeded": "✓", "failed": "✕", "ended": "■", "saved": "◆", "silent": "○"}  # by the state of a rank
NAME_MOST = 24  # letters of a name that is written on one line
EVENTS_MOST = 6  # of ranks that are told one by one
LEFTOVERS_MOST = 24


@dataclass(frozen=True)
class Bar:
    """A part of a lane. `kind`: a class of the style; `said`: what it is."""

    began: float
    ended: float
    kind: str
    said: str


@dataclass(frozen=True)
class Lane:
    """What runs beside others: who, bars, and what became of it."""

    who: str
    bars: tuple[Bar, ...]
    what: str = ""
    heading: bool = False  # of the lanes below
    node: bool = False  # a node whose ranks have no lanes
    picture: Html | None = None  # in place of bars


@dataclass(frozen=True)
class Event:
    """Something that happened at the end. `at`: None if the moment is not recorded; `first`: what all else followed."""

    at: float | None
    sign: str
    who: str
    what: str
    first: bool = False
    until: float | None = None  # of several that are told as one


def lanes_table(lanes: Iterable[Lane], start: float, seconds: float, caption: str, since: float | None = None) -> Html:
    """Return a row for each lane. `start` and `seconds`: what the width of the bars is; `since` times are counted."""
    after = 0.0 if since is None else start - since
    rows = [
        tag(
            "tr",
            tag("th", lane.who, scope="row", class_="long" if len(lane.who) > NAME_MOST else None),
            tag("td", lane.picture or strip(lane.bars, start, seconds), class_="strip"),
            tag("td", lane.what, class_="what"),
            class_="heading" if lane.heading else "node" if lane.node else None,
        )
        for lane in lanes
    ]
    moments = time_axis(after, after + seconds, 17)
    axis = tag("svg", *moments, width="100%", height=20, aria_hidden="true", focusable="false")
    ruler = tag("tr", tag("td"), tag("td", axis, class_="strip"), tag("td"), class_="ruler", aria_hidden="true")
    return tag("table", tag("caption", caption, class_="unseen"), tag("tbody", *rows, ruler), class_="lanes")


def strip(bars: Sequence[Bar], start: float, seconds: float) -> Html:
    """Return the picture of one lane; the text of its row says the same."""
    shapes = []
    for bar in bars:
        left, right = (
            min(1.0, max(0.0, (at - start) / seconds)) if seconds > 0 else 0.0 for at in (bar.began, bar.ended)
        )
        place = {"x": f"{left:.3%}", "width": f"{max(right - left, 0.003):.3%}", "y": 2, "height": HIGH - 4}
        title = tag("title", bar.said)
        shapes.append(tag("rect", title, **place, class_=f"bar {bar.kind}"))
        if bar.kind in PATTERNS:
            shapes.append(tag("rect", title, **place, fill=f"url(#{bar.kind})"))
    track = tag("rect", x=0, y=HIGH / 2, width="100%", height=1, class_="track")
    return tag("svg", track, *shapes, width="100%", height=HIGH, aria_hidden="true", focusable="false")


def hatch(name: str, path: str) -> Html:
    """Return a pattern of 6 by 6 pixels, so that states differ without colour."""
    stroke = tag("path", d=path, class_="hatch")
    return tag("pattern", stroke, id=name, width=6, height=6, patternUnits="userSpaceOnUse")


PATTERNS = {
    "failed": "M-1 1L1 -1M0 6L6 0M5 7L7 5",
    "saved": "M0 3H6",
    "silent": "M1 1L5 5M5 1L1 5",
}


def patterns() -> Html:
    """Return the patterns of the page, which its pictures use."""
    defs = tag("defs", *(hatch(name, path) for name, path in PATTERNS.items()))
    return tag("svg", defs, width=0, height=0, class_="defs", aria_hidden="true", focusable="false")


def job_lane(run: Run) -> Lane:
    """Return the phases of the job as far as they are known: starting, running, ending."""
    begins = [row.began for row in run.ranks if row.began is not None]
    ends = [row.ended for row in run.ranks if row.ended is not None]
    moments = [("starting", run.began), ("running", min(begins, default=None)), ("ending", min(ends, default=None))]
    known = [(name, at) for name, at in moments if at is not None]
    bars, words = [], []
    for (name, at), (_next, until) in zip(known, [*known[1:], ("", run.end)], strict=True):
        if until is not None and until > at:
            bars.append(Bar(at, until, name, f"{name}: {span(until - at)}"))
            words.append(f"{name} {span(until - at)}")
    return Lane("job", tuple(bars), ", ".join(words))


def epochs_lane(run: Run) -> Lane | None:
    """Return the epochs as the lowest rank that reports them does, or nothing."""
    points = next(iter(run.series.get("epoch", {}).values()), ())
    moments: list[tuple[float, float]] = []
    for at, epoch in points:
        if not moments or epoch > moments[-1][1]:
            moments.append((at, epoch))
    if len(moments) < 2:
        return None
    until = [at for at, _epoch in moments[1:]] + [points[-1][0]]
    bars = tuple(
        Bar(at, then, f"epoch{place % 2}", f"epoch {epoch:g}: from {span(at - run.start)}")
        for place, ((at, epoch), then) in enumerate(zip(moments, until, strict=True))
    )
    return Lane("epochs", bars, f"{moments[0][1]:g} to {moments[-1][1]:g}")


def rank_lane(row: RankRun, end: float) -> Lane:
    """Return the lane of one rank; `end` of one that has no recorded end."""
    what = f"{SIGNS.get(row.state, '?')} {row.state or 'unknown'}"
    if row.began is None:
        return Lane(f"rank {row.rank}", (), what)
    until = end if row.ended is None else row.ended
    said = f"rank {row.rank} on {row.host}: {row.state}, {span(max(0.0, until - row.began))}"
    return Lane(f"rank {row.rank}", (Bar(row.began, until, row.state or "silent", said),), what)


def node_lane(host: str, rows: Sequence[RankRun], end: float, facts: str, alone: bool) -> Lane:
    """Return the lane of a node. `alone`: its ranks have no lanes of their own, so it has a bar for each state.

    `facts`: what the node is.
    """
    states = {state: [row for row in rows if row.state == state] for state in dict.fromkeys(row.state for row in rows)}
    what = ", ".join(f"{SIGNS.get(state, '?')} {len(found)} {state or 'unknown'}" for state, found in states.items())
    bars = []
    for state, found in states.items() if alone else ():
        begins = [row.began for row in found if row.began is not None]
        if begins:
            until = max(end if row.ended is None else row.ended for row in found)
            bars.append(Bar(min(begins), until, state or "silent", f"{host}: {len(found)} {state}"))
    words = " · ".join(filter(None, (what, facts))) if alone else facts
    return Lane(host, tuple(bars), words, heading=not alone, node=alone)


def how_it_ended(row: RankRun, cause: str) -> str:
    """Return what became of a rank in words. `cause`: what the result says if it is the first that failed."""
    status = f"exit status {row.rc}" if row.rc is not None else "no exit status"
    left = f"died of {signal_name(row.signal)}" if row.signal else status
    if row.state == "ended":
        return f"ended with the job: {left}"
    if row.state == "failed":
        return f"failed: {cause or left}"
    return {"succeeded": "succeeded", "saved": "saved its work: exit status 75"}.get(row.state, "left no record")


def ending(run: Run) -> list[Event]:
    """Return what happened at the end, in order of time; what has no moment is last."""
    first = run.failure.rank if run.failure else None
    timed = run.state == "failed"  # else the result names the rank where to look, and it is no cause
    events = [
        Event(
            row.ended,
            SIGNS.get(row.state, "?"),
            f"rank {row.rank} on {row.host}",
            how_it_ended(row, run.failure.cause if run.failure and row.rank == first and timed else ""),
            row.rank == first and timed,
        )
        for row in run.ranks
    ]
    if len(events) > EVENTS_MOST:
        events = together(run, events)
    for left in run.leftovers[:LEFTOVERS_MOST]:
        how = f"was ended by {left.ended}" if left.ended else "could not be ended"
        events.append(Event(None, "■", f"a leftover on {left.host}", f"pid {left.pid} {left.command}: {how}"))
    events.sort(key=lambda event: (event.at is None, event.at or 0.0))
    return [*before_the_ranks(run), *events]


def before_the_ranks(run: Run) -> list[Event]:
    """Return what ended the ranks and is none of them: a lost node, or job_timeout. Its moment is not noted."""
    if run.state == "lost" and run.failure and run.failure.cause:
        return [Event(None, "!", "the job", f"was lost: {run.failure.cause}", first=True)]
    if run.state == "timed_out" and run.job_timeout:
        return [Event(None, "!", "the job", f"had its job_timeout of {span(run.job_timeout)}", first=True)]
    return []


def together(run: Run, events: Sequence[Event]) -> list[Event]:
    """Return one event for all ranks that came to the same, the first failure apart."""
    groups: dict[tuple[str, str], list[int]] = {}
    found = []
    for place, event in enumerate(events):
        if event.first:
            found.append(event)
        else:
            groups.setdefault((event.sign, event.what), []).append(place)
    for (sign, what), places in groups.items():
        moments = [at for place in places if (at := events[place].at) is not None]
        rows = [run.ranks[place] for place in places]
        nodes = fold_names(dict.fromkeys(row.host for row in rows))
        who = f"{count(len(rows), 'rank')} on {nodes} ({ranks_named([row.rank for row in rows])})"[:400]
        found.append(Event(min(moments, default=None), sign, who, what, until=max(moments, default=None)))
    return found


def events_list(events: Sequence[Event], since: float) -> Html:
    """Return events as a list in order, each with its time after the start of the job."""
    when: Callable[[Event], str] = lambda event: "" if event.at is None else f"+{event.at - since:.3f} s"  # noqa: E731
    rows = []
    for event in events:
        until = f" to +{event.until - since:.3f} s" if event.until and event.at and event.until > event.at else ""
        rows.append(
            tag(
                "li",
                tag("span", when(event) + until or "no time", class_="when"),
                tag("span", event.sign, class_="sign", aria_hidden="true"),
                tag("span", tag("b", event.who), f" {event.what}", tag("em", " first") if event.first else ""),
                class_="first" if event.first else None,
            )
        )
    return tag("ol", *rows, class_="events")
