# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Why runs cannot be compared: what they did is not the same thing, or not the same amount of it.

Other versions, launchers, backends, networks and other arguments are no such reason: by these one compares.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .reading import PROGRESS
from .run import Run

NAMED_MOST = 4  # runs with the same value, or names of metrics; the others are counted
FORMATS = ("amp_dtype", "dtype", "mixed_precision", "precision", "torch_dtype")  # options, and metrics, with a value
FORMAT_FLAGS = ("bf16", "fp16", "tf32")  # options without one, as Hugging Face's Trainer has them
UNKNOWN, NOT_GIVEN = "unknown", "not given"


class Obstacle(NamedTuple):
    """A reason. `code`: for programs; `text`: what differs in which run."""

    code: str
    text: str


def obstacles(runs: Sequence[Run]) -> list[Obstacle]:
    """Return why these runs cannot be compared; nothing if they can."""
    return [
        *states(runs),
        *different("program", "they ran different programs", runs, list(map(program_of, runs))),
        *different("ranks", "they had different numbers of ranks", runs, [str(run.world_size or "") for run in runs]),
        *formats(runs),
        *metrics(runs),
    ]


def states(runs: Sequence[Run]) -> Iterator[Obstacle]:
    """Yield whether some did not succeed: their times and last values are those of a part of the work."""
    if any(run.state != "succeeded" for run in runs):
        values = [run.state.replace("_", " ") for run in runs]
        yield Obstacle("state", f"not all of them succeeded: {by_value(runs, values)}")


def program_of(run: Run) -> str:
    """Return the name of the script or module. Where a script lies does not matter."""
    return run.program[0].rpartition("/")[2] if run.program else ""


def different(code: str, what: str, runs: Sequence[Run], values: Sequence[str]) -> Iterator[Obstacle]:
    """Yield a reason if not all values are the same."""
    if len(set(values)) > 1:
        yield Obstacle(code, f"{what}: {by_value(runs, values)}")


def formats(runs: Sequence[Run]) -> Iterator[Obstacle]:
    """Yield the number formats that differ. What a run reports counts, not what it was asked for."""
    asked = [options(run.program[1:]) for run in runs]
    told = [{name: text for name, text in run.metrics.items() if isinstance(text, str)} for run in runs]
    for name in (*FORMATS, *FORMAT_FLAGS):
        values = [said.get(name) or given.get(name, "") for said, given in zip(told, asked, strict=True)]
        if not any(name in given for given in asked):  # a default that only some report
            kept = [(run, value) for run, value in zip(runs, values, strict=True) if value]
        else:
            kept = [(run, value or NOT_GIVEN) for run, value in zip(runs, values, strict=True)]
        what = f"they computed in different number formats ({name})"
        yield from different("format", what, [run for run, _value in kept], [value for _run, value in kept])


def options(words: Sequence[str]) -> dict[str, str]:
    """Return the number formats that a command line asks for, by name: "--dtype bf16", "--dtype=bf16", "--bf16"."""
    found = {}
    for place, word in enumerate(words):
        name, has_value, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if not word.startswith("--"):
            continue
        if name in FORMAT_FLAGS:
            found[name] = value if has_value else "yes"
        elif name in FORMATS:
            found[name] = value if has_value else "".join(words[place + 1 : place + 2])
    return found


def metrics(runs: Sequence[Run]) -> Iterator[Obstacle]:
    """Yield which runs reported nothing, and what only some of the others reported."""
    names = [({*run.metrics, *run.series} - set(PROGRESS)) for run in runs]
    silent = [run.job_id for run, found in zip(runs, names, strict=True) if not found]
    if silent:
        yield Obstacle("silent", f"nothing was reported by {few(silent)}")
    told = [(run, found) for run, found in zip(runs, names, strict=True) if found]
    if len(told) > 1 and not set.intersection(*(found for _run, found in told)):
        values = [few(sorted(found)) for _run, found in told]
        yield Obstacle(
            "metrics", f"they reported nothing of the same name: {by_value([run for run, _found in told], values)}"
        )
        return
    some = sorted({name for _run, found in told for name in found if any(name not in each for _other, each in told)})
    parts = [f"{name} in {few([run.job_id for run, found in told if name in found])}" for name in some[:NAMED_MOST]]
    if some:
        more = f"; and {len(some) - NAMED_MOST} more" if len(some) > NAMED_MOST else ""
        yield Obstacle("metrics", f"not all of them reported the same: {'; '.join(parts)}{more}")


def by_value(runs: Sequence[Run], values: Sequence[str]) -> str:
    """Return which runs have which value: "2 in run7, run9; 4 in run8"."""
    which: dict[str, list[str]] = {}
    for run, value in zip(runs, values, strict=True):
        which.setdefault(value or UNKNOWN, []).append(run.job_id)
    parts = [f"{value} in {few(ids)}" for value, ids in which.items()]
    more = [f"and {len(parts) - NAMED_MOST} more"] if len(parts) > NAMED_MOST else []
    return "; ".join([*parts[:NAMED_MOST], *more])


def few(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - NAMED_MOST} more" if len(names) > NAMED_MOST else ""
    return ", ".join(names[:NAMED_MOST]) + more
