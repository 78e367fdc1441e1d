"""Runs that cannot be compared: which reasons there are, and that what one compares by is none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.comparable import obstacles
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.compare import cautions, comparison
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.run import Run
from tests.unit.report_pages import checked

ONE = Run("run7", "/r/run7", "succeeded", program=("/a/train.py", "--lr", "1"), world_size=2, metrics={"loss": 0.1})


def other(**given: Any) -> Run:
    return replace(ONE, job_id="run8", run_dir="/r/run8", **given)


@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        ({"state": "timed_out"}, "state", "not all of them succeeded: succeeded in run7; timed out in run8"),
        ({"state": ""}, "state", "not all of them succeeded: succeeded in run7; unknown in run8"),
        ({"program": ("b.py",)}, "program", "they ran different programs: train.py in run7; b.py in run8"),
        ({"program": ()}, "program", "they ran different programs: train.py in run7; unknown in run8"),
        ({"world_size": 4}, "ranks", "they had different numbers of ranks: 2 in run7; 4 in run8"),
        (
            {"program": ("train.py", "--dtype", "bfloat16")},
            "format",
            "they computed in different number formats (dtype): not given in run7; bfloat16 in run8",
        ),
        (
            {"program": ("train.py", "--bf16")},
            "format",
            "they computed in different number formats (bf16): not given in run7; yes in run8",
        ),
        (
            {"metrics": {"loss": 0.1, "accuracy": 0.9}},
            "metrics",
            "not all of them reported the same: accuracy in run8",
        ),
        ({"metrics": {"f1": 0.1}}, "metrics", "they reported nothing of the same name: loss in run7; f1 in run8"),
        ({"metrics": {"step": 3.0}}, "silent", "nothing was reported by run8"),
    ],
)
def test_one_reason(given: dict[str, Any], code: str, said: str) -> None:
    runs = [ONE, other(**given)]
    assert obstacles(runs) == [(code, said)]
    assert f"! Not comparable: {said}" in checked(comparison(runs)).text


def test_what_one_compares_by_is_no_reason() -> None:
    runs = [
        ONE,
        other(
            program=("/b/train.py", "--lr", "2", "--dtypes", "--x=dtype"),
            backend="nccl",
            launcher="mpich",
            code="0" * 16,
            data="other",
        ),
    ]
    assert obstacles(runs) == cautions(runs) == [] and "Not comparable" not in checked(comparison(runs)).text


def test_what_a_run_reports_of_its_number_format_counts() -> None:
    """One gives the default, the other does not: both report the same. One that reports none of it has not said so."""
    told: dict[str, Any] = {"metrics": {"loss": 0.1, "dtype": "float32"}}
    given = other(program=("train.py", "--dtype=float32"), **told)
    assert obstacles([replace(ONE, **told), given]) == []
    changed = replace(given, metrics={"loss": 0.1, "dtype": "bfloat16"})
    said = "they computed in different number formats (dtype): float32 in run7; bfloat16 in run8"
    assert obstacles([replace(ONE, **told), changed]) == [("format", said)]
    silent = other(metrics={"loss": 0.1, "dtype": "float32"})
    assert [code for code, _said in obstacles([ONE, silent])] == ["metrics"]


def test_of_many_runs_few_are_named() -> None:
    runs = [replace(ONE, job_id=f"r{number}", world_size=1 + number % 7) for number in range(50)]
    (found,) = obstacles(runs)
    assert found.text.endswith(
        "1 in r0, r7, r14, r21 and 4 more; 2 in r1, r8, r15, r22 and 3 more; 3 in r2, r9, r16, "
        "r23 and 3 more; 4 in r3, r10, r17, r24 and 3 more; and 3 more"
    )
