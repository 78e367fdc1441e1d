"""The list of jobs as people read it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.job_list import (
    detached_line,
    duration,
    job_table,
    last_lines,
    seconds_left,
    told_row,
    waits_line,
)

ROW: Any = {
    "job_id": "run7", "state": "running", "owner": "alice@laptop", "own": True,
    "fetched": False, "seconds": 100.0, "position": 0, "ranks": 4,
    "restarts": 0, "hosts": ["n1", "n2"],
    "launcher": "openmpi", "backend": "gloo", "values": {"step": 1, "steps": 4, "loss": 0.5},
    "before": {"step": 0, "steps": 4}, "paced_seconds": 90.0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59.6, "1 min 0 s"), (61, "1 min 1 s"), (7500, "2 h 5 min"), (273600, "3 d 4 h"), (-3, "0 s")],
)
def test_a_time_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_time_that_is_left_comes_from_what_ranks_report() -> None:
    assert seconds_left(ROW) == 270.0
    for unknown in ({"loss": 1.0}, {"step": 5e-324, "steps": 1}, {"step": 0, "steps": 4}):  # the second once overflowed
        assert seconds_left({**ROW, "values": unknown}) is None
    assert seconds_left({**ROW, "before": {}, "paced_seconds": 0.0}) is None


def test_a_job_that_resumed_half_way_has_its_own_pace() -> None:
    resumed = {**ROW, "values": {"epoch": 51, "epochs": 100}, "before": {"epoch": 50, "epochs": 100}}
    assert seconds_left(resumed) == pytest.approx(90.0 * 49)  # and not 96 s


def test_what_the_task_returns_has_owner_progress_and_the_time_that_is_left() -> None:
    running, waits, over = (told_row({**ROW, "state": state}) for state in ("running", "waiting", "failed"))
    assert (running["owner"], running["progress"], running["seconds_left"]) == ("alice@laptop", 0.25, 270.0)
    assert (over["progress"], over["seconds_left"], waits["seconds_left"]) == (0.25, None, None)
    assert not {"before", "paced_seconds"} & running.keys()


def test_the_table_says_what_runs_and_what_waits_to_be_fetched() -> None:
    rows = [ROW, {**ROW, "job_id": "old", "state": "failed", "owner": "bob@desk", "own": False, "seconds": 3600.0}]
    text = " ".join(job_table(rows, "n1", 200).split())
    assert "run7 running alice@laptop, you 4 n1 n2 1 min 40 s, 4 min 30 s left 25% step 1/4 loss 0.5" in text
    assert "old failed bob@desk 4 n1 n2 1 h 0 min ago, not fetched 25% step 1/4" in text
    again = " ".join(job_table([{**ROW, "restarts": 2}], "n1", 200).split())
    assert "run7 running, restart 2 alice@laptop, you 4" in again
    assert job_table([], "n1", 80).startswith("n1 knows no job")
    assert "-e job_id=run7 -e do=attach" in detached_line("run7", "n1")


def test_jobs_that_wait_have_their_place_and_say_whom_they_wait_for() -> None:
    rows = [{**ROW, "job_id": "later", "state": "waiting", "values": {}, "position": 2}]
    assert "later waiting alice@laptop, you 4 n1 n2 1 min 40 s, place 2" in " ".join(job_table(rows, "n1", 200).split())
    ahead: Any = {"job_id": "run5", "owner": "alice", "state": "waiting", "seconds": 61.0}
    told = "job run7 waits: 3 ahead, the first is run5 of alice, which"
    assert waits_line("run7", 3, ahead) == f"{told} has waited for 1 min 1 s"
    assert waits_line("run7", 3, {**ahead, "state": "running", "seconds": 0.0}) == f"{told} runs"
    assert waits_line("run7", 0, None) == "job run7 waits: none is ahead, its nodes are looked at"
    assert detached_line("run7", "n1", waits=True).startswith("job run7 waits in the queue of n1 without this terminal")


def test_names_and_states_are_whole_in_a_narrow_terminal() -> None:
    job_id = "20261125-201615-train-066295"
    rows = [{**ROW, "job_id": job_id, "seconds": 90061.0}, {**ROW, "job_id": job_id, "state": "succeeded"}]
    table = job_table(rows, "n1", 80)
    words = table.split()
    assert words.count(job_id) == 2 and {"running", "succeeded", "owner", "ranks"} < set(words)
    assert max(map(len, table.splitlines())) <= 80


def test_the_end_of_what_ranks_wrote_is_shown_without_what_moves_a_terminal(tmp_path: Path) -> None:
    for rank, text in (("0", "".join(f"line {number}\n" for number in range(20))), ("1", "\x1b[2Jgone\n")):
        (tmp_path / "ranks" / rank).mkdir(parents=True)
        (tmp_path / "ranks" / rank / "stdout").write_text(text)
    (tmp_path / "ranks" / "1" / "stderr").symlink_to("/etc/passwd")
    placement = [(0, "n1"), (1, "n2")]
    lines = last_lines(tmp_path, placement, (0,))
    assert lines[0] == "[0@n1] line 10" and len(lines) == 10
    assert last_lines(tmp_path, placement, None)[-1] == "[1@n2] [2Jgone"
