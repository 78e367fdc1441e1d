# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Who keeps a job from going on, from what looks found of its ranks (evidence.py). Pure functions.

Who does not wait for the others is the culprit, however many they are. If all wait, but for different things, each side
is told. What moves is slow and does not hang. What is not known is said, and nobody is named for it.
"""

from __future__ import annotations

from typing import Callable, Collection, Iterable, Mapping, NamedTuple, Sequence

from ..types.codes import Code
from ..types.evidence import RUNNING, Evidence
from .busy_program import builds, of
from .doing import (
    COMPUTES,
    DATA,
    GONE,
    LEAVES,
    OPAQUE,
    SILENT,
    SLEEPS,
    STOPPED,
    WAITS,
    Doing,
    Doings,
    classify,
    has_own,
    is_busy,
    open_group,
)
from .tensor_sizes import DifferentSizes, different_sizes


class VerdictCode(Code):
    """What a verdict says."""

    BLAMED = "blamed"  # a rank keeps the others waiting
    MISMATCH = "mismatch"  # all wait, in different calls
    ALL_WAIT = "all_wait"  # all wait, in the same call
    SLOW = "slow"  # the job moves
    NO_WAIT = "no_wait"  # no rank waits for another
    UNKNOWN = "unknown"  # too little is known


HUNG = (VerdictCode.BLAMED, VerdictCode.MISMATCH, VerdictCode.ALL_WAIT)
AT_WORK = (COMPUTES, SLEEPS, DATA, LEAVES)  # what a rank may be seen to do that works, and keeps others waiting
# Times the longest pause between two collectives, and seconds: then also a rank at work keeps the others waiting.
OVERDUE, OVERDUE_SECONDS = 10.0, 30.0
WORDS_MOST = 6  # of ranks that do different things, and of calls


class Verdict(NamedTuple):
    """What is to be said of a job."""

    code: VerdictCode
    ranks: list[int]  # those to blame: of a MISMATCH the side that is the smaller one; none if that is not known
    sentence: str


def judge(evidence: Collection[Evidence], placement: Mapping[int, str]) -> Verdict:
    """Return the verdict on a job whose ranks are planned on these hosts, by rank."""
    found = {row["rank"]: row for row in evidence if placement.get(row["rank"]) == row["host"]}
    doings = classify(found)
    for rank in placement:
        doings.setdefault(rank, Doing(SILENT, "unknown: no evidence of it arrived", ""))
    told = Teller(doings, placement)
    waiting = of_kind(doings, WAITS)
    culprits = culprits_of(doings) if waiting else []
    moved = what_moves(found, doings, culprits)
    if moved:
        return Verdict(VerdictCode.SLOW, [], f"slow, not hung: {moved}")
    if waiting:
        different = different_sizes(found, doings)
        return verdict_on_sizes(different, told) if different else verdict_on_calls(doings, waiting, culprits, told)
    silent = of_kind(doings, SILENT)
    if len(silent) == len(doings):
        return Verdict(VerdictCode.UNKNOWN, [], "nothing is known of any rank: none of them could be asked")
    others = [rank for rank in sorted(doings) if rank not in silent]
    left = who_does_not_leave(found, doings)
    if left:
        done = of_kind(doings, GONE, LEAVES)
        return Verdict(VerdictCode.BLAMED, left, "; ".join([told.all(left), told.all(done)]))
    return Verdict(VerdictCode.NO_WAIT, [], "; ".join(["no rank waits for another", told.all(others), *told.unknown()]))


def verdict_on_sizes(different: DifferentSizes, told: Teller) -> Verdict:
    """Return the verdict on ranks that came to one collective with tensors of different sizes: it can never be over."""
    return Verdict(VerdictCode.MISMATCH, different.sides[0][1], told.sizes(different))


def verdict_on_calls(doings: Doings, waiting: list[int], culprits: list[int], told: Teller) -> Verdict:
    """Return the verdict on ranks that wait for `culprits`, or if there are none for each other."""
    if not culprits:
        return verdict_on_waiting(doings, waiting, told)
    whom = plural(culprits, "it", "them")
    told_waiting = f"{told.ranks(waiting)} {plural(waiting, 'waits', 'wait')} for {whom} in {told.calls(waiting)}"
    return Verdict(VerdictCode.BLAMED, culprits, "; ".join([told.all(culprits), told_waiting, *told.unknown()]))


def verdict_on_waiting(doings: Doings, waiting: list[int], told: Teller) -> Verdict:
    """Return the verdict if no rank is known that does anything but wait."""
    silent = of_kind(doings, SILENT)
    if silent:
        texts = [f"{told.ranks(waiting)} {plural(waiting, 'waits', 'wait')} in {told.calls(waiting)}", *told.unknown()]
        return Verdict(VerdictCode.UNKNOWN, [], "; ".join(texts))
    sides = sorted(sides_of(doings, waiting), key=lambda side: (len(side), side))
    if len(sides) > 1:
        text = "; ".join(f"{told.ranks(side, hosts=True)} in {call}" for side, call in told.apart(sides[:WORDS_MOST]))
        return Verdict(VerdictCode.MISMATCH, sides[0], f"ranks wait for each other in different calls: {text}")
    if any(doings[rank].sequence < 0 for rank in waiting):
        text = f"all ranks were in {told.calls(waiting)} at both looks; whether in the same one is not known"
        return Verdict(VerdictCode.UNKNOWN, [], text)
    text = f"all ranks wait in {told.calls(waiting)}: none is missing, so look at the network between them"
    return Verdict(VerdictCode.ALL_WAIT, [], text)


def shows_life(evidence: Collection[Evidence], size: int) -> bool:
    """Whether a job of `size` ranks shows a sign of life: a rank wrote output, or all of its ranks compute."""
    running = [row for row in evidence if row["status"] == RUNNING]
    return any(row["wrote"] for row in running) or (len(running) == size and all(map(is_busy, running)))


def of_kind(doings: Doings, *kinds: str) -> list[int]:
    return sorted(rank for rank, doing in doings.items() if doing.kind in kinds)


def culprits_of(doings: Doings) -> list[int]:
    """Return who does not wait for the others: the surest evidence counts alone."""
    order: list[tuple[str, ...]] = [(STOPPED,), (GONE, LEAVES, DATA, COMPUTES, SLEEPS), (OPAQUE,)]
    return next((found for found in (of_kind(doings, *kinds) for kinds in order) if found), [])


def who_does_not_leave(found: Mapping[int, Evidence], doings: Doings) -> list[int]:
    """Return the ranks whose programs run when those of all others have ended well, if these do nothing but wait.

    Who has no frame of the user's own left may be about to leave.
    """
    gone, leaving, left = of_kind(doings, GONE), of_kind(doings, LEAVES), of_kind(doings, STOPPED, SLEEPS, DATA)
    ended_well = all(found[rank]["rc"] == 0 for rank in gone)
    quiet = not any(works(found[rank], False) for rank in (*leaving, *left))
    own = all(not found[rank]["threads"] or any(map(has_own, found[rank]["threads"])) for rank in left)
    known = len(gone) + len(leaving) + len(left) == len(doings)
    return left if (gone or leaving) and ended_well and quiet and own and known else []


def sides_of(doings: Doings, waiting: Sequence[int]) -> list[list[int]]:
    """Return the ranks that wait by the call that they wait in; without a number a call is the same as with one."""
    sides: dict[tuple[str, int, str], list[int]] = {}
    numbered = all(doings[rank].sequence >= 0 for rank in waiting)
    for rank in waiting:
        doing = doings[rank]
        key = (doing.what, doing.sequence if numbered else 0, doing.group if numbered else "")
        sides.setdefault(key, []).append(rank)
    return list(sides.values())


def what_moves(found: Mapping[int, Evidence], doings: Doings, culprits: Sequence[int]) -> str:
    """Return what moved between the looks, or why a pause is a usual one; an empty text if nothing did."""
    for rank in culprits:
        if rank in found and doings[rank].kind in AT_WORK and builds(found[rank]["busy"]):
            return f"rank {rank} on {found[rank]['host']} builds a program: {of(found[rank]['busy'])} is busy"
    for rank, row in sorted(found.items()):
        for group in row["groups"]:
            if group["sequence"] > group["before"]:
                before, after = group["before"], group["sequence"]
                return f"ranks went from collective #{before} to #{after} in {row['seconds']:.1f} s"
        if doings[rank].kind == WAITS and row["moved"] and not row["groups"]:
            return "ranks that wait for others go on, their stacks change"
    pauses = [group for row in found.values() for group in [open_group(row)] if group and group["longest"] > 0]
    if pauses:
        pause = max(pauses, key=lambda group: group["seconds"])
        seconds, longest = pause["seconds"], pause["longest"]
        if seconds <= longest and not of_kind(doings, STOPPED, GONE):
            return f"ranks have waited for {seconds:.1f} s, and an earlier wait took {longest:.1f} s"
        if seconds > max(OVERDUE * longest, OVERDUE_SECONDS):
            return ""
    candidates = [rank for rank in culprits if doings[rank].kind in AT_WORK]
    at_work = any(works(found[rank], bool(pauses)) for rank in candidates)
    return "the ranks that the others wait for are at work: their stacks or their output change" if at_work else ""


def works(row: Evidence, recorded: bool) -> bool:
    """Whether a rank did something between the looks that a hung one does not.

    One that polls moves as well. Where flight recorders tell what pauses are usual, moving without CPU is no work.
    """
    return row["wrote"] or (row["moved"] and (is_busy(row) or not recorded))


class Teller:
    """Puts what ranks do into words."""

    def __init__(self, doings: Doings, placement: Mapping[int, str]) -> None:
        self.doings, self.placement = doings, placement

    def ranks(self, ranks: Sequence[int], hosts: bool = False) -> str:
        """Return "rank 1", "ranks 0,2-3"; with `hosts` also where they are."""
        names = list(dict.fromkeys(self.placement[rank] for rank in ranks))
        shown = f" on {', '.join(names[:4])}{' and more' if len(names) > 4 else ''}" if hosts else ""
        return f"{plural(ranks, 'rank', 'ranks')} {spans(ranks)}{shown}"

    def all(self, ranks: Sequence[int]) -> str:
        """Return what each of these does, those that do the same together."""
        texts = [
            f"{self.ranks(same, hosts=True)} {plural(same, 'is', 'are')} {self.one(self.doings[same[0]])}"
            for same in together(ranks, lambda rank: (self.doings[rank].what, self.doings[rank].place))
        ]
        return "; ".join(texts[:WORDS_MOST]) + ("; and more" if len(texts) > WORDS_MOST else "")

    @staticmethod
    def one(doing: Doing) -> str:
        known = not doing.place or doing.place in doing.what.split()
        return doing.what if known else f"{doing.what} ({doing.place})"

    def calls(self, ranks: Sequence[int]) -> str:
        """Return the calls in which these wait, each with its place."""
        texts = []
        for same in together(ranks, lambda rank: (self.doings[rank].call, self.doings[rank].place)):
            doing = self.doings[same[0]]
            texts.append(doing.call + (f" at {doing.place}" if doing.place else ""))
        return ", ".join(texts[:WORDS_MOST]) + (" and more" if len(texts) > WORDS_MOST else "")

    def apart(self, sides: Sequence[list[int]]) -> list[tuple[list[int], str]]:
        """Return the sides with the calls of each, and their groups where the calls are the same."""
        calls = [self.calls(side) for side in sides]
        groups = [self.doings[side[0]].group for side in sides]
        named = len(set(calls)) < len(calls) and len(set(groups)) > 1
        return [
            (side, f"{call} of group {group}" if named and group else call)
            for side, call, group in zip(sides, calls, groups)
        ]

    def sizes(self, found: DifferentSizes) -> str:
        """Return which ranks have which tensor in one collective, and where those are that are still in it."""
        texts = []
        for tensor, ranks in found.sides[:WORDS_MOST]:
            places = {self.doings[rank].place for rank in ranks if self.doings[rank].call == found.call}
            where = f" at {', '.join(sorted(places)[:WORDS_MOST])}" if places - {""} else ""
            texts.append(f"{self.ranks(ranks, hosts=True)} {plural(ranks, 'has', 'have')} {tensor}{where}")
        return f"ranks have tensors of different {found.what} in {found.call}: {'; '.join(texts)}"

    def unknown(self) -> list[str]:
        """Return what is not known."""
        silent = of_kind(self.doings, SILENT)
        return [self.all(silent)] if silent else []


def together(ranks: Iterable[int], key: Callable[[int], object]) -> list[list[int]]:
    """Return ranks with the same key together, in the order of their first."""
    found: dict[object, list[int]] = {}
    for rank in ranks:
        found.setdefault(key(rank), []).append(rank)
    return list(found.values())


def plural(ranks: Sequence[int], one: str, many: str) -> str:
    return one if len(ranks) == 1 else many


def spans(numbers: Iterable[int]) -> str:
    """Return "0-2,4" for 0, 1, 2, 4."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
