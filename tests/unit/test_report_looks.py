"""What a report shows first, its axes and its curves. How it looks is judged in a browser: tests/pictures."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.axis import moments_of, names_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.charts import Line, chart, charts, smoothed
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.compare import lines_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.lanes import ending
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.page import report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.reading import read_run
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.taken import bits
from tests.unit.report_pages import RECORDED, checked


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RECORDED / "failure", tmp_path / "run"))


def change(path: Path, how: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    how(content)
    path.write_text(json.dumps(content))


def test_the_first_screen_tells_who_was_waited_for_and_how_to_learn_why(run_dir: Path) -> None:
    change(
        run_dir / "result.json", lambda result: result.update(state="succeeded", skew={"sentence": "rank 3 was late"})
    )
    page = checked(report(read_run(run_dir)))
    assert page.text.index("! Rank 3 was late.") < page.text.index("Curves")
    assert "profile=10s" in page.text and "Nothing is left to do" not in page.text


def test_slow_links_are_told_at_the_top(tmp_path: Path) -> None:
    rows = [{"from": "n1", "to": "n2", "mbit": 9400.0}, {"from": "n2", "to": "n1", "mbit": 940.0}]
    proof = tmp_path / "verify.json"
    proof.write_text(json.dumps({"at": "", "network": "10.201.128.0/24", "links": rows}))
    said = "1 of 2 links are less than half as fast as the median: the slowest is n2 to n1 with 940 Mbit/s."
    assert said in checked(report(read_run(RECORDED / "two-nodes", proof))).text
    rows[1]["mbit"] = 9000.0
    proof.write_text(json.dumps({"at": "", "network": "10.201.128.0/24", "links": rows}))
    assert "as fast as the median" not in checked(report(read_run(RECORDED / "two-nodes", proof))).text


DUMP = """Traceback of something else
Thread 0x00007f5e02ffd6c0 (most recent call first):
  File "/x/_torchfleet_look_note.py", line 99 in answer

Current thread 0x00007f5e277172c0 (most recent call first):
  File "/x/train.py", line {line} in {function}
  File "/x/train.py", line 60 in <module>
"""


def test_where_ranks_were_when_the_time_was_over_is_merged(run_dir: Path) -> None:
    change(run_dir / "result.json", lambda result: result.update(state="timed_out"))
    assert "The last look" not in checked(report(read_run(run_dir))).text
    for rank in range(4):
        place = (40, "load") if rank == 2 else (31, "train")
        (run_dir / "ranks" / str(rank) / "stderr").write_text(DUMP.format(line=place[0], function=place[1]))
    run = read_run(run_dir)
    assert run.failure and run.diagnosis == (
        run.failure.cause,
        "ranks 0-3: <module> train.py:60",
        "  ranks 0-1,3: train train.py:31",
        "  rank 2: load train.py:40",
    )
    (run_dir / "ranks" / "2" / "stderr").write_bytes(b"\xff" * 70_000 + b"\n" + DUMP.encode())
    assert read_run(run_dir).diagnosis[1:] == run.diagnosis[1:3]  # "{line}" is no number: that frame is not read


def test_a_lost_node_is_the_first_that_is_told_of_the_end(run_dir: Path) -> None:
    change(run_dir / "result.json", lambda result: result.update(state="lost"))
    run = read_run(run_dir)
    assert run.failure
    first = ending(run)[0]
    assert first.first and first.at is None and first.what == f"was lost: {run.failure.cause}"
    change(run_dir / "result.json", lambda result: result.update(state="timed_out"))
    change(run_dir / "plan.json", lambda plan: plan.update(job_timeout=50))
    assert [event.what for event in ending(read_run(run_dir)) if event.first] == ["had its job_timeout of 50.0 s"]


@pytest.mark.parametrize(
    ("first", "last", "names"),
    [
        (0.9, 3.4, ["1 s", "2 s", "3 s"]),
        (0.0, 101.0, ["0 s", "30 s", "1 min", "1 min 30 s"]),
        (100.9, 102.1, ["101 s", "101.5 s", "102 s"]),
        (0.0, 7 * 3600.0, ["0 s", "2 h", "4 h", "6 h"]),
        (0.0, 400 * 86400.0, ["0 s", "100 d", "200 d", "300 d", "400 d"]),
        (5.0, 5.0, ["5 s"]),
    ],
)
def test_moments_of_an_axis_are_round_and_few(first: float, last: float, names: list[str]) -> None:
    assert names_of(moments_of(first, last)) == names


@pytest.mark.parametrize("seconds", [1e-9, 0.003, 0.7, 4.0, 21.0, 61.0, 3601.0, 1e5, 1e8])
@pytest.mark.parametrize("first", [0.0, 17.3, 1e6])
def test_an_axis_of_any_length_has_few_moments(first: float, seconds: float) -> None:
    assert 0 <= len(moments_of(first, first + seconds)) <= 6


def test_medians_are_drawn_over_a_curve_that_jumps() -> None:
    calm = tuple((float(at), at / 10) for at in range(400))
    jumps = tuple((float(at), 5.0 + (-1) ** at) for at in range(400))
    assert smoothed(calm) == () and smoothed(jumps[:50]) == ()
    found = smoothed(jumps)
    assert (found[0][0], found[-1][0]) == (0.0, 399.0) and {value for _at, value in found} == {5.0}
    page = chart("loss", [Line("rank 0", jumps)])
    assert "at the end, smoothed" in page and 'class="faint l0"' in page and "faint: each report" in page
    assert "smoothed" not in chart("loss", [Line("rank 0", calm)])


def test_keys_that_charts_share_are_told_once() -> None:
    points = tuple((float(at), float(at)) for at in range(9))
    lines = [Line("rank 0", points), Line("rank 1", points)]
    assert charts([("loss", lines, ""), ("accuracy", lines, "")]).count('<ul class="keys">') == 1
    assert charts([("loss", lines, ""), ("accuracy", [Line("rank 7", points), *lines], "")]).count("<ul") == 2


@pytest.mark.parametrize(("rate", "text"), [(1.2e9, "9.6 Gbit/s"), (57_000, "456 kbit/s"), (0, "0 bit/s")])
def test_rates_have_the_unit_that_fits(rate: float, text: str) -> None:
    assert bits(rate) == text


def test_curves_of_several_runs_begin_with_their_first_reports(run_dir: Path) -> None:
    """Of a run that waited long before it trained, the curve lies over those of the others all the same."""
    change(run_dir / "result.json", lambda result: result.update(started="2026-11-25T00:00:00+00:00"))
    found = lines_of([read_run(RECORDED / "failure"), read_run(run_dir)], "loss")
    assert [0 <= line.points[0][0] < 0.2 for line in found] == [True, True]
