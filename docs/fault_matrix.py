"""Write docs/fault-matrix.md from tests/faults/rows.py and what `make faults` recorded.

Usage: fault_matrix.py. Whoever changes a row or records a cell runs it; tests/unit/test_fault_matrix.py says where that
was forgotten.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "collections"))

from tests.driver import REPO
from tests.faults.cell import QUEUE_SECONDS
from tests.faults.explained import EXPLAINED, NOT_HERE
from tests.faults.rows import GROUPS, LAUNCHERS, ROWS, Row

PAGE = REPO / "docs/fault-matrix.md"
RECORDED = REPO / "tests/faults/recorded.json"
HEAD = """# Which faults was it tried with?

<!-- Written by docs/fault_matrix.py from tests/faults/rows.py and tests/faults/recorded.json -->

`make faults` starts a job on four [lab nodes](lab.md) under each launcher, does one of the things below to it, and
looks at what is left, and at what the result says. {count}

In every cell each rank ignores SIGTERM, has a child in a session of its own, and a daemon: forked twice, with an empty
environment and closed descriptors. A cell is in order if

- every process of the job is gone from every node in time: 5 seconds, 10 on a full disk, 15 where a lease of 10 seconds
  or a stopped guardian has to be noticed, 25 where the kernel gives up a connection, 75 where it holds a process in
  state D, 5 after the end of `job_timeout`, always with 1 second more for a busy machine. They are counted from outside
  the nodes, by the job's mark in their environment or, for daemons, on their command line;
- the bystanders live: on n1 and n2 a process of the same user that looks like a rank, and another job of that user, in
  another home, with its own supervisor, guard, launcher and ranks; under Slurm also two Slurm jobs;
- state, exit status, host and rank of the first failure, and the [cause](causes.md), are the true ones;
- all that ranks had flushed is in the run directory, line by line and in order; after a power cut or on a full disk
  lines may be missing at the end;
- Slurm has nothing left of the job {queue:.0f} seconds later, or when `clean.yml` is over, where that has to end it;
- the next job starts at once, before anybody has cleaned up, and succeeds.

```
make faults                                               # root; the cells that are not recorded yet
make faults FAULTS='--row cut-n2 power-n1 --launcher mpich --again'
make faults FAULTS='--list'                               # --red: those that were wrong; --keep: the nodes stay
```

Under `srun` and `sbatch` the daemon on a node is its `slurmstepd`. Those nodes have Slurm 22.05, with the same user
and the same home on all nodes, as Slurm requires; under the other launchers nodes differ in both.

Some of it is in `make test` (`tests/lab/test_across_faults.py`). How jobs end, in words: [how a job
ends](how-a-job-ends.md).

The figures are seconds from the fault until nothing was left on any node that was up (n/a: the launcher has no such
thing). Where the job goes on they count from the moment when its ranks were told to finish. Machine: 2 shared cores,
busy with other work, for the four nodes together.
"""


def main() -> None:
    """Write it."""
    PAGE.write_text(page(json.loads(RECORDED.read_text())))


def page(recorded: Mapping[str, Any]) -> str:
    """Return the page."""
    notes: dict[str, int] = {}
    tables = "".join(table(title, rows, recorded, notes) for title, rows in GROUPS.items())
    return (
        HEAD.format(count=counted(recorded), queue=QUEUE_SECONDS)
        + tables
        + explained(notes)
        + following(recorded)
        + not_here()
    )


def counted(recorded: Mapping[str, Any]) -> str:
    """Return how many cells there are, were played and are in order."""
    cells = [f"{launcher} {row.id}" for row in ROWS.values() for launcher in row.launchers]
    played = [name for name in cells if name in recorded]
    right = sum(not recorded[name]["wrong"] for name in played)
    return f"Of {len(cells)} cells {len(played)} were\nplayed, {right} of them were in order."


def table(title: str, rows: tuple[Row, ...], recorded: Mapping[str, Any], notes: dict[str, int]) -> str:
    """Return the table of one group of rows. Numbers of notes go on."""
    head = (
        f"\n## {title}\n\n| row | fault | result | {' | '.join(LAUNCHERS)} |\n|---|---|---|{'---|' * len(LAUNCHERS)}\n"
    )
    lines = []
    for row in rows:
        cells = [cell(row, launcher, recorded.get(f"{launcher} {row.id}"), notes) for launcher in LAUNCHERS]
        lines.append(f"| {' | '.join([f'`{row.id}`', row.what, result(row), *cells])} |\n")
    return head + "".join(lines)


def result(row: Row) -> str:
    """Return what must be true of a row, as its reader types it: states, and whom the first failure names."""
    state = " or ".join(f"`{state}`" for state in row.states)
    who = "a node" if len(row.hosts) > 2 else " or ".join(row.hosts)
    named = f"{f'rank {row.rank} on ' if row.rank not in (-1, None) else ''}{who}"
    return f"{state}, {named}" if row.hosts else state


def cell(row: Row, launcher: str, outcome: Mapping[str, Any] | None, notes: dict[str, int]) -> str:
    """Return the seconds of a cell, or the number of the note that says what was wrong."""
    if launcher not in row.launchers:
        return "n/a"
    if outcome is None:
        return "not played"
    seconds = "left" if outcome["gone"] is None and "refused" not in row.states else f"{outcome['gone'] or 0:.1f}"
    if not outcome["wrong"]:
        return "refused" if "refused" in row.states else seconds
    note = reason(row.id, launcher, outcome)
    return f"**{seconds}** ({notes.setdefault(note, len(notes) + 1)})"


def reason(row: str, launcher: str, outcome: Mapping[str, Any]) -> str:
    """Return why a cell is not in order; what was seen, where nobody has found out."""
    seen = "; ".join(f"{code}: {' '.join(text.split())[:160]}" for code, text in outcome["wrong"])
    return EXPLAINED.get(f"{launcher} {row}") or EXPLAINED.get(row) or f"not explained yet: {seen}"


def explained(notes: Mapping[str, int]) -> str:
    """Return the notes."""
    if not notes:
        return ""
    return "\n## What was not in order\n\n" + "".join(f"{number}. {text}\n" for text, number in notes.items())


def following(recorded: Mapping[str, Any]) -> str:
    """Return what the next job took, by launcher."""
    lines = []
    for launcher in LAUNCHERS:
        took = [
            row["following"] for name, row in recorded.items() if name.startswith(f"{launcher} ") and row["following"]
        ]
        if took:
            lines.append(
                f"| {launcher} | {statistics.median(took):.1f} ({min(took):.1f}..{max(took):.1f}) | {len(took)} |\n"
            )
    head = "\n## The next job\n\nFrom the command until its run is on the controller, seconds: median and extremes.\n\n"
    return f"{head}| launcher | seconds | jobs |\n|---|---|---|\n{''.join(lines)}"


def not_here() -> str:
    """Return which faults have no row, and why."""
    head = "\n## What has no row\n\n| fault | why |\n|---|---|\n"
    return head + "".join(f"| {fault} | {why} |\n" for fault, why in NOT_HERE.items())


if __name__ == "__main__":
    main()
