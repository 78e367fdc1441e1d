"""Reports of real runs on four nodes, in a real browser: what can be judged is, and people look at the pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.pictures import runs
from tests.pictures.browser import Browser
from tests.pictures.judge import SCREENS, faults_of, first_screenful, titles_of

pytestmark = pytest.mark.timeout(3600)  # the first test makes the runs


@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("name", [*runs.JOBS, "compared"])
def test_nothing_is_wrong_with_a_report_on_any_screen(
    pages: dict[str, Path], shown: Browser, name: str, screen: str
) -> None:
    faults = faults_of(shown, pages[name], SCREENS[screen])
    shown.picture(runs.PLACE / f"{name}-{screen}.png")
    assert faults == []


@pytest.mark.parametrize("name", runs.JOBS)
def test_a_phone_shows_the_verdict_and_the_next_step_first(pages: dict[str, Path], shown: Browser, name: str) -> None:
    assert first_screenful(shown, pages[name]) == []


@pytest.mark.parametrize("name", runs.JOBS)
def test_a_report_has_all_parts_that_its_run_has_data_for(pages: dict[str, Path], shown: Browser, name: str) -> None:
    faults_of(shown, pages[name], SCREENS["laptop-light"])
    assert titles_of(shown) == expected(runs.RUNS / name)


def expected(run_dir: Path) -> list[str]:
    """Return the titles in order, from the files of a run alone."""
    result = json.loads((run_dir / "result.json").read_text())
    proof = {link["from"] for link in json.loads(runs.PROOF.read_text())["links"]}
    state, hosts = result["state"], {row["host"] for row in result["ranks"]}
    there = {
        "Curves": (run_dir / "metrics.jsonl").stat().st_size > 0,
        "The last look": (run_dir / "diagnosis" / "look.txt").exists() or state == "timed_out",
        "Timeline": any(run_dir.glob("ranks/*/record.json")),
        "The end": state != "succeeded",
        "What the ranks took": (run_dir / "usage.json").exists(),
        "Ranks": True,
        "Time": bool((result.get("profile") or {}).get("budget")),
        "Links": bool(proof & hosts),
        "Versions": True,
        "Command": True,
    }
    return [title for title, is_there in there.items() if is_there]


SAID: dict[str, list[str]] = {
    "success": ["All 8 ranks succeeded in", "links are less than half as fast as the median"],
    "straggler": ["The others waited for rank 5 on n3", "it is slow in its data loader"],
    "failure": ["Rank 5 on n3 failed first after", "ValueError: the loss was no number 12 times", "were no number"],
    "hang": [
        "Rank 5 on n3 is sleeping or waiting at trains.py:",
        "The time limit of 80.0 s passed, and",
        "all_reduce #",
    ],
    "cut": ["The job was lost", "n3 is lost", "ansible-playbook verify.yml"],
    "hostile": ["Rank 37 on gpu-worker-0003.rack-17b.training.eu-central.example.org failed first", "64"],
    "compared": ["2 runs, which differ in"],
}


@pytest.mark.parametrize("name", SAID)
def test_a_report_says_what_happened(pages: dict[str, Path], shown: Browser, name: str) -> None:
    shown.show(pages[name], SCREENS["laptop-dark"])
    text: Any = shown.value("document.body.innerText.replace(/\\s+/g, ' ')")
    assert [words for words in SAID[name] if words not in text] == []


def test_the_picture_of_the_documents_is_that_of_a_failure(pages: dict[str, Path], shown: Browser) -> None:
    """It is taken from .cache/pictures to docs/report.png by hand, when it is better than that one."""
    assert faults_of(shown, runs.page_of_docs(), SCREENS["laptop-light"]) == []
    shown.picture(runs.PLACE / "docs.png", height=1330, scale=0.75)
    assert (runs.PLACE / "docs.png").stat().st_size < 300_000
