"""The page of the fault matrix fits its table and what was recorded; each cell that is wrong is explained."""

from __future__ import annotations

import json

from tests.driver import REPO
from tests.faults.explained import EXPLAINED
from tests.faults.rows import GROUPS, ROWS
from tests.programs import load

fault_matrix = load(REPO / "docs/fault_matrix.py")
RECORDED = json.loads(fault_matrix.RECORDED.read_text())


def test_the_page_is_that_of_the_table() -> None:
    assert fault_matrix.PAGE.read_text() == fault_matrix.page(RECORDED), "run python docs/fault_matrix.py"


def test_recorded_cells_are_of_the_table() -> None:
    assert sum(map(len, GROUPS.values())) == len(ROWS)  # no two have one name
    cells = {f"{launcher} {row.id}" for row in ROWS.values() for launcher in row.launchers}
    assert set(RECORDED) <= cells
    assert {name.rpartition(" ")[2] for name in EXPLAINED} <= set(ROWS)


def test_each_cell_that_is_wrong_is_explained_and_no_other() -> None:
    wrong = {name for name, row in RECORDED.items() if row["wrong"]}
    explained = {name for name in RECORDED if name in EXPLAINED or name.partition(" ")[2] in EXPLAINED}
    assert wrong == explained, wrong ^ explained


def test_a_cell_that_is_wrong_is_seen_on_the_page() -> None:
    outcome = {"gone": None, "wrong": [["left", "17 python"]], "following": None}
    text = fault_matrix.page({"mpich exit": outcome})
    assert "| not played | not played | **left** (1) | not played | not played | not played |\n" in text
    assert "1. not explained yet: left: 17 python\n" in text
