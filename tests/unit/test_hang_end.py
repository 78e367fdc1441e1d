"""When a job is ended because it hangs (hang_end): only after two looks that found the same. No time passes here."""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics import bootstrap
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head import hang_end
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.hang_end import HangEnd
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.head_job import HeadJob
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import Verdict, VerdictCode
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import processes
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.evidence import ABSENT, ALL_EVIDENCE
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import runtime_archive
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from tests.unit.laid_runtime import share_runtime
from tests.unit.watched import Clock

# Three ranks on n1; rank 1 matches a regular expression in C, and the others wait for it in their fourth collective.
LOOK = json.loads((Path(__file__).parent / "recorded/look.json").read_text())
RECORDED: list[Any] = list(ALL_EVIDENCE(LOOK["evidence"]))
ORDER: Any = {
    "placement": [{"rank": rank, "local_rank": rank, "host": "n1"} for rank in range(3)],
    "hang_look": 60.0,
    "hang_end": True,
}


def changed(rank: int, **fields: Any) -> list[Any]:
    rows = copy.deepcopy(RECORDED)
    rows[rank].update(fields)
    return rows


def moved(rank: int) -> list[Any]:
    rows = copy.deepcopy(RECORDED)
    rows[rank]["threads"][0][0]["line"] += 1
    return rows


def later(rank: int) -> list[Any]:
    rows = copy.deepcopy(RECORDED)
    rows[rank]["groups"][0]["sequence"] += 1
    rows[rank]["groups"][0]["before"] += 1
    return rows


ASLEEP = {"cpu": 0.0, "state": "S"}
LAUNCHER = {"name": "openmpi", "version": "5"}
WORKER = {"pid": 77, "state": "S", "command": "preprocess", "frames": []}


class Job:
    """A job that is looked at; `answers` are what its looks find, the last again and again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: list[Any], **order: Any) -> None:
        self.clock, self.answers, self.looks = Clock(), list(answers), list[float]()
        self.in_midst: Callable[[], None] = lambda: None
        monkeypatch.setattr(hang_end, "time", self.clock)
        self.hangs = HangEnd({**ORDER, **order}, self.look)
        self.began = self.clock.now

    def look(self) -> list[Any]:
        self.looks.append(self.clock.now - self.began)
        self.in_midst()
        if not self.answers:
            raise OSError("no node answers")
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def pass_time(self, seconds: int) -> Verdict | None:
        """Let seconds pass one by one, and each look come to its end."""
        for _second in range(seconds):
            self.clock.now += 1
            self.hangs.tick()
            if self.hangs.thread:
                self.hangs.thread.join()
            if found := self.hangs.tick():
                return found
        return None


def test_two_looks_that_find_the_same_hang_end_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, RECORDED)
    assert job.pass_time(1000) is None and job.looks == []  # its ranks have not begun
    job.hangs.hear()
    found = job.pass_time(1000)
    assert found is not None and (found.code, found.ranks) == (VerdictCode.BLAMED, [1])
    assert job.looks == [1065.0, 1125.0] and job.hangs.silent == 125.0
    assert reasons.hung(job.hangs.silent) == (
        "hung",
        "two looks found the same hang, 125 s without a sign of life (hang_end)",
    )


def test_a_mismatch_ends_a_job_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = copy.deepcopy(RECORDED)
    rows[1] = {**copy.deepcopy(rows[0]), "rank": 1}
    rows[1]["groups"][0]["operation"] = "broadcast"
    for frame in rows[1]["threads"][0]:
        frame["function"] = frame["function"].replace("all_reduce", "broadcast")
    job = Job(monkeypatch, rows)
    job.hangs.hear()
    found = job.pass_time(1000)
    assert found is not None and found.code == VerdictCode.MISMATCH, found


@pytest.mark.parametrize(
    "answers",
    [
        [RECORDED, moved(1), RECORDED, moved(1), RECORDED],
        [RECORDED, later(0), RECORDED, later(2), RECORDED],
        [RECORDED, changed(1, pid=4711), RECORDED, changed(1, pid=4712), RECORDED],
        [changed(1, state="D")],
        [changed(1, state="t", threads=[], cpu=0.0)],
        [changed(1, state="S", cpu=0.1)],
        [changed(1, workers=[WORKER])],
        [changed(1, **ASLEEP, workers=[{**WORKER, "state": "D"}])],
        [changed(0, wrote=True)],
        [RECORDED[:2]],
        [changed(1, host="n9")],
        [],
    ],
    ids=["another place", "another collective", "another process", "waits for a disk", "is debugged",
         "computes a little", "has started what computes", "its worker waits for a disk", "writes",
         "one is missing", "a lie", "no answer"],
)  # fmt: skip
def test_what_may_be_slow_is_never_ended(monkeypatch: pytest.MonkeyPatch, answers: list[list[Any]]) -> None:
    job = Job(monkeypatch, *answers)
    job.hangs.hear()
    assert job.pass_time(290) is None and len(job.looks) >= 2, job.looks


@pytest.mark.parametrize("state", ["S", "T"])
def test_a_rank_that_sleeps_or_is_stopped_ends_a_job(monkeypatch: pytest.MonkeyPatch, state: str) -> None:
    job = Job(monkeypatch, changed(1, state=state, cpu=0.0, workers=[WORKER]))
    job.hangs.hear()
    assert job.pass_time(290) is not None


def test_a_sign_of_life_begins_the_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, RECORDED)
    job.hangs.hear()
    assert job.pass_time(120) is None
    job.hangs.hear()
    assert job.pass_time(124) is None and job.looks == [65.0, 185.0]
    assert job.pass_time(1) is not None


def test_a_look_in_whose_midst_the_job_went_on_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, RECORDED)
    job.hangs.hear()
    job.in_midst = job.hangs.hear
    assert job.pass_time(1000) is None and len(job.looks) == 15


def test_looks_that_find_nothing_come_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, changed(0, wrote=True))
    job.hangs.hear()
    assert job.pass_time(1000) is None
    assert job.looks == [65.0, 185.0, 425.0, 905.0]


@pytest.mark.parametrize("order", [{"hang_end": False}, {"hang_look": 0.0}])
def test_nobody_looks_where_nothing_is_to_be_ended(monkeypatch: pytest.MonkeyPatch, order: dict[str, Any]) -> None:
    job = Job(monkeypatch, RECORDED, **order)
    job.hangs.hear()
    assert job.pass_time(1000) is None and job.looks == []
    assert job.hangs.is_quiet == (order != {"hang_look": 0.0})


def test_an_order_of_an_earlier_version_ends_nothing() -> None:
    hangs = HangEnd({"placement": []}, list)  # type: ignore[typeddict-item]
    hangs.hear()
    assert not hangs.ends and not hangs.is_quiet and hangs.tick() is None


def test_who_asks_for_it_without_looks_is_refused() -> None:
    assert parse_request({"hang_end": "true"}).hang_end and not parse_request({}).hang_end
    with pytest.raises(InputError, match=r"hang_end: got true; with hang_look=0 no job is looked at: -e hang_look=60"):
        parse_request({"hang_end": True, "hang_look": 0})


def test_the_head_looks_at_other_nodes_over_connections_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runtime_lib: Path
) -> None:
    """A real supervisor answers for n2, whose home is on this machine, behind a program called ssh."""
    monkeypatch.setattr(bootstrap, "own_digest", runtime_archive.digest)
    monkeypatch.setattr(bootstrap, "own_archive", runtime_archive.archive)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text('#!/bin/sh\nfor command; do :; done\nexec /bin/sh -c "$command"\n')
    (tmp_path / "bin" / "ssh").chmod(0o755)
    share_runtime(runtime_lib, tmp_path / "n2")
    places = [{"rank": rank, "local_rank": 0, "host": f"n{rank + 1}"} for rank in range(2)]
    locks = []
    for rank, host in enumerate(("n1", "n2")):
        job = JobDir(str(tmp_path / host / "jobs" / "j"))
        job.create([rank])
        locks.append(job.lock())
        texts = dict.fromkeys(("controller", "run_dir", "backend"), "")
        whole = {**texts, "job_id": "j", "home": str(tmp_path / host), "host": host, "head": "n1", "world_size": 2}
        job.write(
            "order.json", {**whole, "placement": places, "ranks": [rank], "launcher": LAUNCHER, "shown_command": []}
        )
    (tmp_path / "n1" / "ssh").mkdir()
    (tmp_path / "n1" / "ssh" / "config").touch()
    n1 = JobDir(str(tmp_path / "n1" / "jobs" / "j"))
    n1.write("routes.json", [{"host": "n2", "home": str(tmp_path / "n2"), "interpreter": sys.executable}])
    head_job: Any = object.__new__(HeadJob)
    head_job.order, head_job.node_job = n1.order(), SimpleNamespace(job=n1, excluded_pids=[1])
    found = head_job.look()
    for lock in locks:
        os.close(lock)
    assert sorted((row["rank"], row["host"], row["status"]) for row in found) == [(0, "n1", ABSENT), (1, "n2", ABSENT)]
    _first, ssh = head_job.node_job.excluded_pids
    assert not processes.is_running(ssh), "the guard's work would take it for a process of the job"
