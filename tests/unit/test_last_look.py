"""The look before a job is ended, brought home: from what nodes noted to the diagnosis in the run directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.result import write_result
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks import last_look
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.metrics import Metrics
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.fetched_files import (
    LAST_LOOK,
    files_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.outcome import keep, result_of
from tests.unit.test_frames import Head, brings
from tests.unit.test_hang_watch import RECORDED
from tests.unit.test_pod_manifest import made, script
from tests.unit.test_result import STAGING, order_of, place

__all__ = ["script"]  # a fixture
PLACES = [place(rank) for rank in range(3)]
PLANNED = [(rank, "n1") for rank in range(3)]
SAID = "rank 1 on n1 is computing at __init__.py:166 in match (hangs.py:34)"


def sent(**changed: Any) -> bytes:
    """Return the file of a head."""
    return json.dumps({**last_look.looked_at_end(PLACES, RECORDED), **changed}).encode()  # type: ignore[arg-type]


def bring(monkeypatch: pytest.MonkeyPatch, run_dir: Path, data: bytes, planned: Any = PLANNED) -> list[str]:
    """Fetch it as any file of the job, and return the names that are in the run directory then."""
    head = Head(monkeypatch, brings(LAST_LOOK, data), ("fetched", b"", {"missing": []}))
    assert head.session.fetch("run7", run_dir, planned, 1 << 30) == []
    assert any('"received"}' in text for text in head.sent)
    return sorted(path.name for path in run_dir.rglob("*"))


def test_the_head_keeps_what_nodes_told_of_their_ranks_before_the_end(tmp_path: Path) -> None:
    job, order = JobDir(str(tmp_path / "job")), order_of("n1", "n1", "n1", "n2")
    job.create([0, 1, 2, 3])
    job.write(last_look.FILE, RECORDED)
    job.claim_end("timed_out", "job_timeout of 5 s")
    assert LAST_LOOK not in files_of(job)
    result = write_result(job, order, STAGING, Metrics(job), {})
    found: Any = job.read(LAST_LOOK)
    assert LAST_LOOK in files_of(job) and [row["rank"] for row in found["evidence"]] == [0, 1, 2]
    assert found["missing"] == ["n2: it told nothing when the job was ended"]
    assert result["state"] == "timed_out"


def test_a_job_that_nobody_looked_at_has_no_last_look(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "job"))
    job.create([0])
    job.write(last_look.FILE, RECORDED[:1])
    job.claim_end("rank_failed", "rank 0 failed")
    write_result(job, order_of("n1"), STAGING, Metrics(job), {})
    assert LAST_LOOK not in files_of(job)


@pytest.mark.parametrize("planned", [PLANNED, None])
def test_its_evidence_comes_home_as_that_of_any_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planned: Any
) -> None:
    assert bring(monkeypatch, tmp_path, sent(), planned) == ["diagnosis", "fetched.json", "look.json", "look.txt"]
    assert (tmp_path / "diagnosis" / "look.txt").read_text().startswith(f"job run7: {SAID}")
    found = json.loads((tmp_path / "diagnosis" / "look.json").read_text())
    assert (found["verdict"]["ranks"], len(found["evidence"])) == ([1], 3)


def test_a_last_look_that_found_no_hang_takes_no_other_ones_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bring(monkeypatch, tmp_path, sent())
    bring(monkeypatch, tmp_path, sent(evidence=[]))
    assert SAID in (tmp_path / "diagnosis" / "look.txt").read_text()


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense",
        b'{"kind": "beat"}',
        b"[" * 10_000,
        sent(placement=[place(0, "n9")]),
        sent(evidence=[{"rank": -1}]),
    ],
)
def test_what_is_no_look_at_this_job_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    assert bring(monkeypatch, tmp_path, data) == ["fetched.json"]


def test_that_of_pods_lies_there_too(script: Path, tmp_path: Path) -> None:
    hosts = ("tf-demo-0", "tf-demo-1")
    nothing: dict[str, Any] = {"records": {}, "lines": {}, "leftovers": [], "launcher": {}, "metrics": []}
    reports: Any = {
        host: {**nothing, "evidence": [{**RECORDED[rank], "host": host}]} for rank, host in enumerate(hosts)
    }
    end: Any = {"reason": "timed_out", "detail": "job_timeout of 5 s", "at": 105.0}
    result = result_of(made(script, pods=2).order["job"], reports, end, 100.0)
    assert result["first_failure"] and result["first_failure"]["rank"] == 1
    keep(tmp_path, result, reports)
    found = json.loads((tmp_path / "diagnosis" / "look.json").read_text())
    assert [(row["rank"], row["host"]) for row in found["evidence"]] == list(enumerate(hosts))
    assert found["verdict"]["ranks"] == [1]
