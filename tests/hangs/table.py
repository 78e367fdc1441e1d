"""Prints the table of docs/why-it-hangs.md from what `make hangs` found.

Usage, in the repository: PYTHONPATH=collections:. python tests/hangs/table.py
"""

from __future__ import annotations

import json
from typing import Any

from tests.hangs.cases import CASES
from tests.hangs.run import FOUND, OUTCOMES, REFUSED, RIGHT, SETUPS


def found() -> list[dict[str, Any]]:
    """Return the cells."""
    return list(json.loads(FOUND.read_text()))


def sums(cells: list[dict[str, Any]]) -> dict[str, int]:
    """Return how many cells are right, not sure, name somebody who is not to blame, or did not hang."""
    return {outcome: sum(cell["outcome"] == outcome for cell in cells) for outcome in OUTCOMES}


def lines() -> list[str]:
    """Return the lines of the table: a row for each kind of hang, a column for each launcher and backend."""
    outcomes = {(cell["setup"], cell["case"]): cell["outcome"] for cell in found()}
    setups = [setup for setup in SETUPS if any(name == setup.name for name, _case in outcomes)]
    head = " | ".join(f"{setup.launcher} {setup.backend}" for setup in setups)
    rows = [f"| what the culprit does | {head} |", "|---|" + "---|" * len(setups)]
    for case in CASES:
        cells = [outcomes.get((setup.name, case.name), "") for setup in setups]
        rows.append(f"| {case.kind} | {' | '.join(cells)} |".replace("  ", " "))
    counts = sums(found())
    refused = counts.pop(REFUSED)
    others = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if outcome != RIGHT)
    told = f"{counts[RIGHT]} of {sum(counts.values())} hangs are told right; {others}. No hang, but refused: {refused}."
    return [*rows, "", told]


if __name__ == "__main__":
    print("\n".join(lines()))
