"""A job that is started again: when, under which name, and with which checkpoint directory."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.restart_rule import (
    ended_of,
    goes_on,
    kept_out,
    pause_before_next,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.restarting import (
    Restarts,
    node_of_attempt,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.restarts import Ended
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.attempts import (
    ONLY,
    attempt_of,
    id_of,
    note_attempts,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request, parse_request
from tests.unit.nodes import plan_on_two

FACT: Any = {"home": "/h"}


def ended(*states: str) -> list[Ended]:
    return [over(id_of("j", number), state, f"exit {number}") for number, state in enumerate(states)]


def over(
    job_id: str,
    state: str,
    failure: str = "",
    progress: list[float] | None = None,
    seconds: float = 1,
    node: str = "",
) -> Ended:
    ended: Ended = {
        "job_id": job_id,
        "state": state,
        "failure": failure,
        "progress": progress,
        "seconds": seconds,
        "node": node,
    }
    return ended


@pytest.mark.parametrize(
    ("states", "again"),
    [
        (("saved",), True),
        (("failed",), True),
        (("lost",), True),
        (("timed_out",), False),
        (("cancelled",), False),
        (("succeeded",), False),
        (("saved", "saved"), True),
        (("saved", "saved", "saved"), False),
    ],
)
def test_when_a_job_is_started_again(states: tuple[str, ...], again: bool) -> None:
    assert goes_on(ended(*states), Request("mnist", max_restarts=2).restart_rule) == again


def test_the_user_says_after_what_it_is_started_again() -> None:
    request = parse_request({"max_restarts": "1", "restart_on": "timed_out"})
    rule = request.restart_rule
    assert goes_on(ended("timed_out"), rule) and not goes_on(ended("failed"), rule)


@pytest.mark.parametrize(
    ("before", "last", "again"),
    [
        (over("j", "failed", "1 E"), over("j", "failed", "1 E"), False),
        (over("j", "failed", "1 E"), over("j", "failed", "1 E", seconds=600), True),  # it says nothing, but worked
        (over("j", "failed", "1 E"), over("j", "failed", "1 F"), True),
        (over("j", "failed", "1 E", [1, 5]), over("j", "failed", "1 E", [2, 1], 600), True),
        (over("j", "failed", "1 E", [1, 5]), over("j", "failed", "1 E", [1, 5], 600), False),
        (over("j", "failed", "1 E", [1, 5]), over("j", "failed", "1 E", None, 600), False),
        (over("j", "failed", "1 E"), over("j", "failed", "1 E", [0, 1]), True),
        (over("j", "saved"), over("j", "saved"), True),
        (over("j", "lost", "1 E"), over("j", "lost", "1 E"), True),
        (over("j", "saved"), over("j", "failed", "1 E"), True),
    ],
)
def test_the_same_failure_without_progress_is_not_tried_a_third_time(before: Ended, last: Ended, again: bool) -> None:
    assert goes_on([before, last], {"most": 9, "states": ["saved", "failed", "lost"]}) == again


@pytest.mark.parametrize(
    ("states", "seconds"),
    [
        (("saved",), 0),
        (("failed",), 1),
        (("failed", "lost"), 2),
        (("failed", "failed", "saved"), 0),
        (("failed", "failed", "saved", "failed"), 1),
        (("lost",) * 5, 16),
        (("lost",) * 999, 300),
    ],
)
def test_the_pause_before_the_next_attempt_doubles(states: tuple[str, ...], seconds: float) -> None:
    assert pause_before_next(ended(*states)) == seconds


def test_an_attempt_that_came_further_is_followed_soon() -> None:
    rows = [over("j", "failed", progress=[0, step]) for step in (1.0, 1.0, 1.0, 5.0)]
    assert [pause_before_next(rows[:count]) for count in (1, 2, 3, 4)] == [1, 2, 4, 1]


@pytest.mark.parametrize(
    ("state", "signal", "message", "hosts", "node"),
    [
        ("lost", None, "", ("n1", "n2"), "n2"),
        ("failed", 9, "", ("n1", "n2"), "n2"),
        ("failed", None, "torch.AcceleratorError: CUDA error: uncorrectable ECC error", ("n1", "n2"), "n2"),
        ("failed", None, "ValueError: loss is not a number", ("n1", "n2"), ""),
        ("timed_out", 9, "", ("n1", "n2"), ""),
        ("lost", None, "", ("n2",), ""),
    ],
)
def test_which_node_is_to_blame(
    state: str, signal: int | None, message: str, hosts: tuple[str, ...], node: str
) -> None:
    row = {"rank": 1, "rc": 1, "signal": signal, "state": "failed"}
    result: Any = {"state": state, "seconds": 2.0, "rc": 1, "ranks": [row], "metrics": {}}
    result["first_failure"] = {"rank": 1, "host": "n2", "message": message}
    result["placement"] = [{"host": host} for host in hosts]
    assert ended_of("j", result)["node"] == node


def test_a_node_that_failed_twice_is_kept_out() -> None:
    rows = [over("j", "lost", node=node) for node in ("n2", "n3", "", "n2")]
    assert kept_out(rows[:3]) == [] and kept_out(rows) == ["n2"]


@pytest.mark.parametrize(
    ("message", "failure"),
    [
        ("[rank1]: ValueError: loss is not a number", "1 ValueError"),
        ("torch.distributed.DistBackendError: at 10.0.0.1:4711", "1 torch.distributed.DistBackendError"),
        ("KeyboardInterrupt", "1 KeyboardInterrupt"),
        ("the disk is full", "1"),
    ],
)
def test_what_of_a_failure_is_compared(message: str, failure: str) -> None:
    row = {"rank": 1, "rc": 1, "signal": None, "state": "failed"}
    blamed = {"rank": 1, "host": "n2", "message": message}
    result: Any = {"state": "failed", "seconds": 2.0, "rc": 1, "ranks": [row], "first_failure": blamed}
    result["placement"] = [{"host": "n1"}, {"host": "n2"}]
    result["metrics"] = {"step": 3, "loss": 0.5}
    assert ended_of("j", result) == over("j", "failed", failure, [0, 3], 2.0)
    result["metrics"] = {"step": "no number", "epoch": float("inf")}
    assert ended_of("j", result)["progress"] is None


def test_all_attempts_have_one_checkpoint_directory_and_ids_of_their_own() -> None:
    request = Request("mnist", max_restarts=2)
    attempts = [attempt_of(request, "j", ended(*["failed"] * count)) for count in range(3)]
    assert [attempt.directory_on(FACT) for attempt in attempts] == ["/h/checkpoints/j"] * 3
    assert [attempt.restarts for attempt in attempts] == [0, 1, 2]
    assert [attempt.job_id for attempt in attempts] == ["j", "j-r1", "j-r2"]
    own = attempt_of(Request("mnist", max_restarts=2, checkpoint_dir="/data/c"), "j", [])
    assert own.directory_on(FACT) == "/data/c"
    assert attempt_of(Request("mnist"), "j", []).directory_on(FACT) == ONLY.directory_on(FACT) == ""


def test_the_list_of_attempts_is_private(tmp_path: Path) -> None:
    note_attempts(tmp_path, ended("failed", "saved"))
    path = tmp_path / "attempts.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["attempts"][1] == over("j-r1", "saved", "exit 1")


def test_programs_find_the_directory_and_their_restarts_in_the_environment() -> None:
    plan = plan_on_two(checkpoint_dir="/data/c", job_timeout=600)
    for node in plan.nodes:
        found = {setting.name: setting for setting in node.environment}
        assert found["TORCHFLEET_CHECKPOINT_DIR"].value == node.checkpoint_dir == "/data/c"
        assert found["TORCHFLEET_RESTART_COUNT"].value == "0"
        assert "TORCHFLEET_SECONDS_LEFT" in {setting.name for setting in node.wrapper_environment}
    other = plan_on_two().nodes[0]
    names = {setting.name for setting in (*other.environment, *other.wrapper_environment)}
    assert not names & {"TORCHFLEET_CHECKPOINT_DIR", "TORCHFLEET_SECONDS_LEFT"} and other.checkpoint_dir == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"checkpoint_dir": "~/c"},
            'checkpoint_dir: got "~/c"; give the absolute path of a directory on the nodes: '
            "-e checkpoint_dir=/data/checkpoints",
        ),
        (
            {"checkpoint_dir": "/data/../etc"},
            'checkpoint_dir: got "/data/../etc"; give the absolute path of a directory on the nodes: '
            "-e checkpoint_dir=/data/checkpoints",
        ),
        ({"notice": 60}, "notice: got 60; it needs a longer job_timeout: -e job_timeout=3600 -e notice=120"),
        (
            {"notice": 60, "job_timeout": 60},
            "notice: got 60; it needs a longer job_timeout: -e job_timeout=3600 -e notice=120",
        ),
        (
            {"restart_on": "saved,cancelled"},
            'restart_on: got "cancelled"; choose from saved, failed, lost, timed_out: -e restart_on=saved,lost',
        ),
        ({"min_nodes": 2}, "min_nodes: got 2; it is for jobs that are started again: add -e max_restarts=10"),
        (
            {"min_nodes": 2, "max_restarts": 1, "detach": True},
            "min_nodes: got 2; the head starts a detached job again as it was planned: leave one out",
        ),
        (
            {"max_restarts": 1, "job_id": "j" * 95},
            f"job_id: got \"{'j' * 95}\"; use letters, digits, '.', '_' and '-', at most 94, and not latest: "
            "-e job_id=first-try",
        ),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_request(given)
    assert str(caught.value) == message
    assert parse_request({"job_id": "j" * 95}).job_id == "j" * 95


def test_a_detached_job_whose_node_failed_twice_is_over_and_names_it(tmp_path: Path) -> None:
    """The head cannot plan it without the node."""
    head: Any = SimpleNamespace(signalled="", facts={})
    restarts = object.__new__(Restarts)
    restarts.head, restarts.rule = head, {"most": 9, "states": ["lost"]}
    restarts.ended = [over("j", "lost", node="n2")]
    running: Any = SimpleNamespace(cancelled=False, node_job=SimpleNamespace(job=JobDir(str(tmp_path))))
    result: Any = {"job_id": "j", "state": "lost", "seconds": 1.0, "metrics": {}, "ranks": [], "rc": 1, "notes": []}
    result["first_failure"] = {"rank": None, "host": "n2", "message": ""}
    result["placement"] = [{"host": "n1"}, {"host": "n2"}]
    assert not restarts.decide(running, result)
    assert [note["text"] for note in result["notes"]] == [
        "it was not started again: n2 failed 2 times (lost, or a signal or a GPU's error ended a rank there); "
        "look at it, and start the job again without it"
    ]


def test_a_later_attempt_is_told_why_there_is_one() -> None:
    environment = {"TORCHFLEET_RESTART_COUNT": "0"}
    node: Any = {"environment": environment, "known_jobs": [], "ranks": [0]}
    found = node_of_attempt(node, "j", [over("j", "saved"), over("j", "lost")])["environment"]
    assert found == {"TORCHFLEET_RESTART_COUNT": "2", "TORCHFLEET_RESTART_REASON": "lost"}
    node = {**node, "environment": {"TORCHFLEET_RESTART_COUNT": "7", "TORCHFLEET_RESTART_REASON": "mine"}}
    assert node_of_attempt(node, "j", [over("j", "saved")])["environment"] == node["environment"]
    assert node_of_attempt({**node, "ranks": []}, "j", [over("j", "saved")])["environment"] == node["environment"]


@pytest.mark.parametrize("full", [True, False])
def test_an_attempt_that_cannot_be_noted_is_the_last(tmp_path: Path, full: bool) -> None:
    """On a full disk the head would have died of it, and with it what became of the job."""
    job = JobDir(str(tmp_path / "missing" if full else tmp_path))
    head: Any = SimpleNamespace(signalled="", facts={})
    restarts = object.__new__(Restarts)
    restarts.head, restarts.rule, restarts.ended = head, {"most": 3, "states": ["failed"]}, []
    running: Any = SimpleNamespace(cancelled=False, node_job=SimpleNamespace(job=job))
    result: Any = {"job_id": "j", "state": "failed", "seconds": 1.0, "metrics": {}, "first_failure": None, "notes": []}
    assert restarts.decide(running, result) is not full
    texts = ["it was not started again: attempts.json cannot be written: No such file or directory"]
    assert [note["text"] for note in result["notes"]] == (texts if full else [])
    assert not job.read("attempt.json") if full else job.read("attempt.json") == result
