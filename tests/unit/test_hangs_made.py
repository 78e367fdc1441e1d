"""What `make hangs` found, as it is kept and as docs/why-it-hangs.md shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import Verdict, VerdictCode
from tests.hangs import run, table
from tests.hangs.cases import CASES, Case, expected

DOCS = Path(__file__).parents[2] / "docs"
OWN_CODE = next(case for case in CASES if case.name == "own_code")
TWO_SIDES = next(case for case in CASES if case.name == "two_sides")
GLOO = run.Setup("openmpi", "gloo", 1)


def test_the_page_has_the_table() -> None:
    """Else print it anew: PYTHONPATH=collections:. python tests/hangs/table.py"""
    assert "\n".join(table.lines()) in (DOCS / "why-it-hangs.md").read_text()


def test_nearly_all_are_right_and_nobody_is_named_who_is_not_to_blame() -> None:
    counts = table.sums(table.found())
    assert counts[run.FALSE_NAME] == 0
    hangs = sum(counts.values()) - counts[run.REFUSED]
    assert hangs >= 60 and counts[run.RIGHT] >= 0.98 * hangs
    assert len({cell["case"] for cell in table.found()}) >= 12


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_every_place_that_a_case_speaks_of_is_there(case: Case) -> None:
    assert all(expected(case, culprit) for culprit in range(case.size))


SENTENCE = " ".join(expected(OWN_CODE, 1))


@pytest.mark.parametrize(
    ("case", "verdict", "outcome"),
    [
        (OWN_CODE, Verdict(VerdictCode.BLAMED, [1], SENTENCE), run.RIGHT),
        (OWN_CODE, Verdict(VerdictCode.BLAMED, [1], SENTENCE.replace("#5", "#6")), run.NOT_SURE),
        (OWN_CODE, Verdict(VerdictCode.BLAMED, [], SENTENCE), run.NOT_SURE),
        (OWN_CODE, Verdict(VerdictCode.BLAMED, [0, 1], SENTENCE), run.FALSE_NAME),
        (OWN_CODE, Verdict(VerdictCode.MISMATCH, [0], SENTENCE), run.FALSE_NAME),
        (TWO_SIDES, Verdict(VerdictCode.MISMATCH, [1, 2], " ".join(expected(TWO_SIDES, 1))), run.RIGHT),
        (TWO_SIDES, Verdict(VerdictCode.MISMATCH, [0, 1], ""), run.FALSE_NAME),
    ],
    ids=["right", "another number", "nobody", "one too many", "another", "either side", "of both sides"],
)
def test_how_a_verdict_is_judged(case: Case, verdict: Verdict, outcome: str) -> None:
    assert run.judge_of(case, GLOO, verdict) == outcome
