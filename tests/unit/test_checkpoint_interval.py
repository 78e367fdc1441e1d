"""How often a job should save, from what a checkpoint took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes.checkpoint_interval import (
    best_interval,
    interval_of,
    told,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes.explanation import explained


def result(state: str = "succeeded", seconds: float = 60.0, hosts: int = 2, **metrics: Any) -> Any:
    placement = [{"host": f"n{number}"} for number in range(hosts)]
    return {"state": state, "seconds": seconds, "placement": placement, "metrics": metrics, "first_failure": None}


def record(runs: Path, name: str, found: Any) -> None:
    (runs / name).mkdir(parents=True)
    (runs / name / "result.json").write_text(found if isinstance(found, str) else json.dumps(found))


def test_the_formula_is_that_of_daly() -> None:
    """The best of all intervals, by what is lost: half an interval for each failure, and a checkpoint in each."""

    def lost(every: float) -> float:
        return 30.0 / every + every / 2 / 86400

    best = best_interval(30.0, 86400.0)
    assert best == pytest.approx((2 * 30 * 86400) ** 0.5, rel=0.02) and best == pytest.approx(2257, abs=1)
    assert lost(best) < min(lost(best * 0.7), lost(best * 1.4))
    assert best_interval(50.0, 20.0) == 20.0


def test_it_is_told_with_an_assumption_and_kept(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    found = explained(result(checkpoint_seconds=4.1), tmp_path / "run")
    assert found["checkpoint"] and found["checkpoint"]["assumed"]
    line = "a checkpoint took 4.1 s; with a failure every 24 h (assumed) save every 14 min"
    assert told(found["checkpoint"]) == line
    assert json.loads((tmp_path / "run" / "result.json").read_text())["checkpoint"] == found["checkpoint"]


@pytest.mark.parametrize("value", ["soon", float("inf"), float("nan"), 0, -1.0, 10**400])
def test_what_is_no_time_is_left_out(tmp_path: Path, value: Any) -> None:
    assert interval_of(result(checkpoint_seconds=value), tmp_path / "run") is None
    assert interval_of(result(), tmp_path / "run") is None


@pytest.mark.parametrize("seconds", ["1" + "0" * 400, "1e308", "-5", "NaN", '"x"', "[]"])
def test_no_record_of_another_run_can_keep_a_job_from_its_outcome(tmp_path: Path, seconds: str) -> None:
    """Reproduced before: a number of 401 digits in one result ended every later job in a traceback."""
    for number in range(4):
        record(tmp_path, f"old-{number}", {})
        text = f'{{"state": "failed", "seconds": {seconds}, "placement": [{{"host": "n1"}}]}}'
        (tmp_path / f"old-{number}" / "result.json").write_text(text)
    found = interval_of(result(checkpoint_seconds=4.0), tmp_path / "now")
    assert found and found["assumed"] and found["save_every"] < 1e6


def test_enough_failures_on_record_replace_the_assumption(tmp_path: Path) -> None:
    """On 4 nodes something fails twice as often as on 2."""
    for name in ("a", "b"):
        record(tmp_path, name, result("lost", 36000.0))
    record(tmp_path, "tried", result("failed", 5.0))
    record(tmp_path, "torn", "{")
    record(tmp_path, "odd", '{"state": "lost", "seconds": "x", "placement": [1]}')
    few = interval_of(result(checkpoint_seconds=4.1), tmp_path / "run")
    assert few and few["assumed"]
    record(tmp_path, "c", result("failed", 35995.0))
    found = interval_of(result(hosts=4, checkpoint_seconds=4.1), tmp_path / "run")
    assert found and (found["failure_every"], found["assumed"]) == (18000.0, False)
    assert told(found).startswith(
        "a checkpoint took 4.1 s; with a failure every 5 h (by the runs beside this one) save"
    )


def test_each_start_of_a_run_that_was_started_again_counts(tmp_path: Path) -> None:
    """Reproduced before: the failures of a job that torchrun, or the head, started again were on no record."""
    record(tmp_path, "a", result("succeeded", 6000.0))
    for number, state in enumerate(("failed", "saved", "failed", "lost")):
        record(tmp_path / "a" / "attempts", str(number), result(state, 36000.0))
    record(tmp_path / "a" / "attempts", "odd", result("lost", 1.0))
    found = interval_of(result(checkpoint_seconds=4.1), tmp_path / "run")
    assert found and (found["failure_every"], found["assumed"]) == (50000.0, False)
