"""`make faults`: every launcher meets every fault of rows.py on four lab nodes. recorded.json keeps what came of it.

Slurm's launchers have nodes of their own, for Slurm wants one user and one home on all.

Usage: run.py [--row ID ...] [--launcher NAME ...] [--again] [--red] [--keep] [--list]. A cell that is recorded is not
played again unless --again is given, or --red for those in which something was wrong. Needs root, for the lab. With
--keep the nodes stay for the next time, else they go. Exit status: 0 all that was played is as it should be, 1 not.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "collections"))

from tests.driver import REPO
from tests.faults.bed import Bed
from tests.faults.cell import CellRun, Outcome
from tests.faults.rows import LAUNCHERS, ROWS, SLURM
from tests.faults.slurm_bed import SlurmBed
from tests.lab.cluster import four_bare_nodes

RECORDED = Path(__file__).parent / "recorded.json"
PLACE = REPO / ".cache" / "faults"
LAB = "faults"


def main() -> int:
    """Play what was asked for."""
    given = arguments()
    cells = wanted(given)
    if given.list:
        print("\n".join(f"{launcher:10} {row:22} {ROWS[row].what}" for launcher, row in cells))
        return 0
    if not cells:
        print("all of these cells are recorded: --again plays them again, --red those in which something was wrong")
        return 0
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("make faults: another one runs here; wait for it, there is one lab for both", file=sys.stderr)
            return 2
        red = 0
        for some in [[cell for cell in cells if (cell[0] in SLURM) is slurm] for slurm in (False, True)]:
            if some:
                with nodes(some[0][0] in SLURM, given.keep) as bed:
                    red += play(bed, some)
        return int(red > 0)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--row", nargs="+", default=list(ROWS), choices=list(ROWS), metavar="ID")
    parser.add_argument("--launcher", nargs="+", default=list(LAUNCHERS), choices=LAUNCHERS)
    for name in ("again", "red", "keep", "list"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args()


def wanted(given: argparse.Namespace) -> list[tuple[str, str]]:
    """Return the cells to play, as launcher and row."""
    known = recorded()
    asked = [(launcher, row) for launcher in given.launcher for row in given.row if launcher in ROWS[row].launchers]
    if given.again or given.list:
        return asked
    return [cell for cell in asked if (found := known.get(key(*cell))) is None or (given.red and found["wrong"])]


def key(launcher: str, row: str) -> str:
    return f"{launcher} {row}"


def recorded() -> dict[str, dict[str, Any]]:
    """Return the outcomes so far."""
    return dict(json.loads(RECORDED.read_text())) if RECORDED.exists() else {}


def record(launcher: str, row: str, outcome: Outcome) -> None:
    """Keep an outcome, one cell a line."""
    rows = recorded() | {key(launcher, row): {**dataclasses.asdict(outcome), "day": time.strftime("%Y-%m-%d")}}
    order = {
        key(launcher, row): number for number, (launcher, row) in enumerate((a, b) for b in ROWS for a in LAUNCHERS)
    }
    lines = [f"{json.dumps(name)}: {json.dumps(rows[name])}" for name in sorted(rows, key=lambda name: order[name])]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


@contextmanager
def nodes(slurm: bool, keep: bool) -> Iterator[Bed]:
    """Have four nodes that took setup.yml: those that an earlier call kept, or new ones."""
    place = PLACE / "slurm" if slurm else PLACE
    place.mkdir(exist_ok=True)
    cluster = four_bare_nodes(f"{LAB}-slurm", place, user="fleet") if slurm else four_bare_nodes(LAB, place)
    made = place / "made"
    try:
        if not (made.exists() and cluster.lab.states()):
            print("four nodes are made and set up: some minutes", flush=True)
            made.unlink(missing_ok=True)
            cluster.lab.down()
            if slurm:
                cluster.set_up_alike()
            else:
                cluster.set_up()
            made.touch()
        bed = SlurmBed(cluster) if slurm else Bed(cluster)
        bed.clear()
        yield bed
        bed.clear()
    finally:
        if not keep:
            made.unlink(missing_ok=True)
            cluster.lab.down()


def play(bed: Bed, cells: list[tuple[str, str]]) -> int:
    """Play cells one after the other, and say what became of each. Return how many are not as they should be."""
    red = 0
    for number, (launcher, row) in enumerate(cells, 1):
        start = time.monotonic()
        job_id = f"f{os.getpid()}-{number:03}"
        outcome = CellRun(bed, ROWS[row], launcher, job_id).play()
        record(launcher, row, outcome)
        red += bool(outcome.wrong)
        print(f"{number}/{len(cells)} {launcher} {row}: {said(outcome)} ({time.monotonic() - start:.0f} s)", flush=True)
    print(f"{len(cells) - red} of {len(cells)} cells are as they should be")
    return red


def said(outcome: Outcome) -> str:
    """Return an outcome in a line."""
    if outcome.wrong:
        return "WRONG " + "; ".join(f"{code}: {seen}" for code, seen in outcome.wrong)
    return (
        f"nothing left after {outcome.gone} s, {outcome.told.get('state', 'refused')}; next job {outcome.following} s"
    )


if __name__ == "__main__":
    sys.exit(main())
