# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The book of causes: what failed jobs say, why, and what to do. Its entries are in entries/*.yml, a file a symptom.

An entry has an id, a cause and a mend (sentences for people), a source, and at least one way to be recognised:

- `signs`: plain texts, each of which is enough; a list of texts must all stand in one line. No patterns, so that no
  output of a rank can make looking for them slow.
- `codes` of the rank's record, `states` of the job (`hung`: hang_end ended it), `signals` that ended the rank.

`native`: a library prints the sign, so it counts wherever it stands; else it must be in what ended the program.
`statuses`: the sign counts only if the rank left with one of them. `launcher`: it is looked for in the launcher's
output too. `follows`: it tells that another rank, or a link, failed first. `made`: programs of tests/causes that fail
so.
"""

from __future__ import annotations

import functools
import signal
from pathlib import Path
from typing import NamedTuple, TypedDict

import yaml

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import RankError

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml has it, in a tenth of the time
PLACE = Path(__file__).parent / "entries"
# The order counts: of two entries that fit the first is taken, so what is more specific comes first.
SYMPTOMS = ("gpu", "nccl", "machine", "network", "packages", "slurm", "launcher", "program", "ended")


class RowLate(TypedDict, total=False):
    signs: list[str | list[str]]
    codes: list[str]
    states: list[str]
    signals: list[str]  # by name: SIGKILL
    statuses: list[int]
    native: bool
    launcher: bool
    follows: bool
    made: str | list[str]


class Row(RowLate):
    """An entry as its file has it."""

    id: str
    cause: str
    mend: str
    source: str


class ChapterLate(TypedDict, total=False):
    launcher: bool  # of all its entries that do not say it themselves


class Chapter(ChapterLate):
    """A file of entries/."""

    symptom: str
    causes: list[Row]


class Entry(NamedTuple):
    """One cause."""

    id: str
    symptom: str  # the heading in docs/causes.md
    cause: str
    mend: str
    source: str
    signs: tuple[tuple[str, ...], ...] = ()
    codes: tuple[RankError, ...] = ()
    states: tuple[str, ...] = ()  # of the job
    signals: tuple[int, ...] = ()
    statuses: tuple[int, ...] = ()
    native: bool = False
    launcher: bool = False
    follows: bool = False
    made: tuple[str, ...] = ()


@functools.cache
def book() -> tuple[Entry, ...]:
    """Return all entries, the most specific first."""
    return tuple(entry for name in SYMPTOMS for entry in chapter(PLACE / f"{name}.yml"))


def chapter(path: Path) -> list[Entry]:
    """Return the entries of one file."""
    read: Chapter = yaml.load(path.read_text(encoding="utf-8"), Loader=LOADER)
    return [entry_of(row, read) for row in read["causes"]]


def entry_of(row: Row, its: Chapter) -> Entry:
    """Return an entry as its file has it; `its`: that file."""
    signs = tuple((sign,) if isinstance(sign, str) else tuple(sign) for sign in row.get("signs", ()))
    made = row.get("made", ())
    return Entry(
        *(row["id"], its["symptom"], row["cause"], row["mend"], row["source"]),
        signs=signs,
        codes=tuple(map(RankError, row.get("codes", ()))),
        states=tuple(row.get("states", ())),
        signals=tuple(int(signal.Signals[name]) for name in row.get("signals", ())),
        statuses=tuple(row.get("statuses", ())),
        native=row.get("native", False),
        launcher=row.get("launcher", its.get("launcher", False)),
        follows=row.get("follows", False),
        made=(made,) if isinstance(made, str) else tuple(made),
    )
