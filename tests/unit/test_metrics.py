"""What ranks report: whose value the result has, and what is in the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job import output_follower
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.metrics import Metrics


@pytest.fixture
def metrics(tmp_path: Path) -> Metrics:
    job = JobDir(str(tmp_path / "one"))
    job.create([])
    return Metrics(job)


def test_of_ranks_that_report_the_same_name_the_lowest_is_believed(metrics: Metrics) -> None:
    for rank, loss in ((3, 0.3), (1, 0.1), (2, 0.2), (1, 0.05), (3, 0.0)):
        metrics.add(rank, {"loss": loss})
    assert metrics.last == {"loss": 0.05} and metrics.rank_of == {"loss": 1}


def test_what_was_not_read_of_a_flood_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reports in it are in no metric: whoever reads the result has to know."""
    job = JobDir(str(tmp_path / "flood"))
    job.create([0])
    order = {"ranks": [0], "show_ranks": []}
    (tmp_path / "flood" / "ranks" / "0" / "stdout").write_bytes(b"torchfleet: loss=1\n" * 100_000)
    monkeypatch.setattr(output_follower, "LAST_SECONDS", -1.0)
    following = output_follower.OutputFollower(job, order)
    following.look(last=True)
    assert following.metrics.last["loss"] == 1 and following.metrics.last["bytes_not_read"] > 10**6


def test_the_file_has_every_report_of_every_rank(metrics: Metrics, tmp_path: Path) -> None:
    for rank in (1, 0):
        metrics.add(rank, {"loss": rank + 0.5, "step": 7})
    metrics.flush()
    rows = [json.loads(line) for line in (tmp_path / "one" / "metrics.jsonl").read_text().splitlines()]
    assert [(row["rank"], row["loss"], row["step"]) for row in rows] == [(1, 1.5, 7), (0, 0.5, 7)]
    assert all(row["time"] > 0 for row in rows)
    assert (tmp_path / "one" / "metrics.jsonl").stat().st_mode & 0o777 == 0o600
