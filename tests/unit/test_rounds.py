"""Ranks that torchrun's agents start again while the job runs: who may, when a round ends, and where its files go."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head import rounds
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.rounds import Rounds
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job import round_files
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job.guard import Guard
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job.node_job import NodeJob
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.remote_node import Clock, RemoteNode
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.rank import (
    RankWrapper,
    rank_environment,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.rank_record import rank_state
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.rank_rounds import (
    is_followed,
    wait_for_place,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import EndReason, Reason
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.attempts import note_attempts, rounds_in
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.command import words_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers.registry import render
from tests.unit.nodes import launcher, plan_on_two
from tests.unit.supervisors import order_of_one

GIVEN = {"launcher": "torchrun", "max_restarts": "3", "restart_by": "torchrun"}
RULE = {"most": 3, "states": ["saved", "failed"]}
BY = 'restart_by: got "torchrun"; '


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({**GIVEN, "launcher": None}, BY + "it needs torchrun's agents: add -e launcher=torchrun"),
        ({**GIVEN, "launcher": "mpich"}, BY + "it needs torchrun's agents: add -e launcher=torchrun"),
        ({**GIVEN, "max_restarts": 0}, BY + "say how often: add -e max_restarts=10"),
        ({"restart_by": "slurm"}, 'restart_by: got "slurm"; choose one of torchfleet, torchrun'),
        (
            {**GIVEN, "rendezvous": "static"},
            'rendezvous: got "static"; with static, agents restart only the ranks of one node: with '
            "restart_by=torchrun leave it out (c10d)",
        ),
        (
            {**GIVEN, "ports": "24000-24099"},
            'ports: got "24000-24099"; each start takes a new free port for rank 0, maybe outside these: leave out '
            "ports, or restart_by",
        ),
        (
            {**GIVEN, "min_nodes": 1},
            "min_nodes: got 1; with restart_by=torchrun ranks restart on the same nodes",
        ),
        (
            {**GIVEN, "restart_on": "lost"},
            'restart_on: got "lost"; choose from saved, failed with restart_by=torchrun: -e restart_on=saved,failed',
        ),
    ],
)
def test_what_agents_cannot_do_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_request(given)
    assert str(caught.value).startswith(message)


def test_who_starts_the_ranks_again_is_one_thing() -> None:
    """Else torchfleet would start a job again whose agents had given it up."""
    by_torchrun, by_us = parse_request(GIVEN), parse_request({"max_restarts": "3"})
    assert (by_torchrun.options.rounds, by_torchrun.attempts_rule) == (RULE, None)
    assert (by_us.options.rounds, by_us.attempts_rule) == (None, {"most": 3, "states": ["saved", "failed", "lost"]})
    assert (by_torchrun.options.rendezvous, by_us.options.rendezvous) == ("c10d", "static")


def test_torchrun_is_told_how_often() -> None:
    facts = {"launcher_facts": launcher("/v/bin/python", "2.13.0"), "launcher": "torchrun"}
    for options, most, stores in (({}, "0", []), ({**GIVEN}, "3", ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"])):
        made = render(plan_on_two(**{**facts, **options}))
        for words in map(words_of, made.on.values()):
            assert words[words.index("--max-restarts") + 1] == most and ("c10d" in words) == bool(stores)
        assert [setting.name for setting in made.environment] == ["OMP_NUM_THREADS", *stores]


def test_how_often_ranks_were_started_is_told(tmp_path: Path) -> None:
    answer, request = {"run_dir": str(tmp_path), "state": "failed"}, parse_request(GIVEN)
    assert rounds_in(request, answer) == {"attempts": 1}
    note_attempts(tmp_path, [{}, {}])  # type: ignore[typeddict-item]
    assert rounds_in(request, answer) == {"attempts": 2}
    assert rounds_in(request, {"job_id": "j"}) == rounds_in(parse_request({}), answer) == {}


# --- on a node ------------------------------------------------------------------------------------------------------


@pytest.fixture
def node(tmp_path: Path) -> NodeJob:
    """A job whose round 0 has ended."""
    environment = {"TORCHFLEET_RESTART_COUNT": "0", "A": "b"}
    made = NodeJob(order_of_one(tmp_path, rounds=RULE, environment=environment), {})
    for name in ("begin.json", "end.json", "attempt.json", "metrics.jsonl", "launcher.out", "ranks/0/stdout"):
        Path(made.job.at(name)).write_text("{}")
    return made


def turned(node: NodeJob, number: int = 1) -> Any:
    order = round_files.order_of_round(node.order, number, "failed")
    round_files.turn(node.job, order, {"started": 5.0, "private_tmp": node.private_tmp})
    return order


def test_the_files_of_a_round_are_set_aside_and_those_of_the_agents_stay(node: NodeJob) -> None:
    order = turned(node)
    found = order["environment"]
    assert found == {"TORCHFLEET_RESTART_COUNT": "1", "TORCHFLEET_RESTART_REASON": "failed", "A": "b"}
    assert node.job.read("order.json") == order and node.job.staging() == {
        "started": 5.0,
        "private_tmp": node.private_tmp,
    }
    aside = set(os.listdir(node.job.at("attempts", "0")))
    assert aside == {*("order.json", "staging.json", "begin.json", "end.json", "result.json", "metrics.jsonl", "ranks")}
    assert not aside - {"order.json", "staging.json", "ranks"} & set(os.listdir(node.job.path))
    assert {"launcher.out", "bin", "events", "gate", "lock", "supervisor.json"} <= set(os.listdir(node.job.path))
    assert sorted(os.listdir(node.job.rank(0))) == ["stderr.pipe", "stdout.pipe"]
    assert Path(node.job.at("attempts", "0", "ranks", "0", "stdout")).exists()


def test_work_for_which_there_is_no_thread_waits_for_that_before(
    node: NodeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else output of the next round would be followed before that of the one before was read."""

    def full(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    node.rounds.do(lambda: (time.sleep(0.2), done.append(1)))
    monkeypatch.setattr(threading.Thread, "start", full)
    node.rounds.do(lambda: done.append(2))
    assert done == [1, 2]


def test_a_round_leaves_no_file_open(node: NodeJob) -> None:
    before = len(os.listdir("/proc/self/fd"))
    node.rounds.follow_output()
    node.output.finish()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("begun", [True, False])
def test_a_round_that_never_began_leaves_nothing(node: NodeJob, begun: bool) -> None:
    before = {name: Path(node.job.at(name)).read_text() for name in ("order.json", "end.json", "ranks/0/stdout")}
    order = turned(node)
    if begun:
        node.job.write("begin.json", {"at": 1.0})
    node.job.write("end.json", {"reason": "lost"})
    assert round_files.take_back(node.job, order) is not begun
    found = {name: Path(node.job.at(name)) for name in before}
    assert all(path.exists() and path.read_text() == before[name] for name, path in found.items()) is not begun
    assert os.path.isdir(node.job.at("attempts", "0")) is begun


def test_a_round_whose_files_cannot_be_made_is_taken_back(node: NodeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_given: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(round_files, "make_ranks", full)
    with pytest.raises(OSError, match="no space left"):
        turned(node)
    order = round_files.order_of_round(node.order, 1, "failed")
    assert round_files.take_back(node.job, order) and Path(node.job.rank(0, "stdout")).read_text() == "{}"
    assert node.job.read("order.json") == node.order


def test_a_rank_that_an_agent_starts_too_early_waits_for_its_round(node: NodeJob) -> None:
    first = wait_for_place(node.job, 0)
    assert first == node.order and not is_followed(node.job, node.order)
    found: list[Any] = []
    early = threading.Thread(target=lambda: found.append(wait_for_place(node.job, 0)))
    early.start()
    early.join(0.2)
    assert early.is_alive() and not found, "two processes are one rank"
    order = turned(node)
    early.join(20)
    assert found == [order] and is_followed(node.job, node.order)
    Path(node.job.at("order.json")).write_text("[1]")  # by a program
    assert not is_followed(node.job, node.order)
    os.close(node.lock)  # the job is over
    assert wait_for_place(node.job, 0) is None


def test_ranks_of_a_round_meet_at_the_port_that_their_agents_say(node: NodeJob) -> None:
    """The store of the round before has the addresses of ranks that are gone: reproduced, they wait for ever."""
    given: Any = {"launcher": {"name": "torchrun"}, "master_addr": "n1", "master_port": 1, "restarts": 2}
    order: Any = {**node.order, **given, "tmpdir": "", "path_first": ""}
    agents = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "4711", "TORCHELASTIC_RESTART_COUNT": "1"}
    told = rank_environment(order, (0, 1, 0, 1), agents)
    assert [told[name] for name in agents] == ["n1", "4711", "2"]  # the host is the planned one
    told = rank_environment({**order, "rounds": None}, (0, 1, 0, 1), agents)
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("n1", "1")


def guard_of(job: JobDir, **changed: Any) -> tuple[Guard, int]:
    """Return a guard of two ranks, and the pipe on which it tells."""
    reader, writer = os.pipe()
    order: Any = {"ranks": [0, 1], "launcher": {"name": "torchrun"}, "job_timeout": None, "rounds": RULE, **changed}
    return Guard(job, order, "", from_supervisor=-1, to_supervisor=writer), reader


@pytest.mark.parametrize(
    ("code", "rule", "ends"),
    [
        (EndReason.RANK_FAILED, RULE, False),
        (EndReason.WRAPPER_DIED, RULE, False),
        (EndReason.SAVED, RULE, False),
        (EndReason.RANK_FAILED, None, True),
        (EndReason.LAUNCHER_DIED, RULE, True),
        (EndReason.TIMED_OUT, RULE, True),
        (EndReason.LOST, RULE, True),
        (EndReason.CANCELLED, RULE, True),
    ],
)
def test_what_ends_a_round_is_told_once_and_what_ends_the_job_ends_it(
    tmp_path: Path, code: EndReason, rule: object, ends: bool
) -> None:
    guard, reader = guard_of(JobDir(str(tmp_path)), rounds=rule)
    reason = Reason(code, "why")
    found = [guard.rounds.hold(reason) for _look in range(2)]
    os.close(guard.to_supervisor)
    said = os.read(reader, 4096).splitlines()
    assert (found, len(said)) == (([reason] * 2, 0) if ends else ([None] * 2, 1))


def test_a_rank_that_its_agent_stopped_is_not_the_cause(tmp_path: Path) -> None:
    """Of a rank whose wrapper is killed the agent tells the others at once, and those end before it is noticed."""
    job = JobDir(str(tmp_path / "job"))
    job.create([0, 1])
    started = {"host": "n1", "cpus": [], "started": 1.0, "wrapper_pid": os.getpid(), "local_rank": 0}
    ended = {"ended": 2.0, "finished": False, "error": "", "rc": 143, "signal": 15}
    job.write("ranks/0/record.json", {"rank": 0, **started, **ended, "stopped": True})
    job.write("ranks/1/record.json", {"rank": 1, **started, **ended, "signal": None, "rc": 1})
    guard, _reader = guard_of(job)
    assert guard.check_ranks() == reasons.rank_failed(1)
    end: Any = {"reason": EndReason.RANK_FAILED, "detail": "", "at": 3.0}
    assert [rank_state(job.record(rank), end) for rank in (0, 1)] == ["ended", "failed"]


@pytest.mark.parametrize("rule", [RULE, None])
@pytest.mark.parametrize(("launcher", "stopped"), [("torchrun", True), ("openmpi", None)])
def test_a_rank_that_its_agent_stops_notes_it(
    tmp_path: Path, launcher: str, stopped: bool | None, rule: object
) -> None:
    """mpirun that gets a signal ends with a status of its own, and that ends the job."""
    order: Any = {"host": "n1", "launcher": {"name": launcher}, "rounds": rule}
    wrapper = RankWrapper(JobDir(str(tmp_path)), order, (0, 1, 0, 1))
    program = subprocess.Popen(["sleep", "60"])
    wrapper.program = program.pid
    wrapper.forward(signal.SIGTERM, None)
    assert program.wait() == -signal.SIGTERM
    assert wrapper.record.get("stopped") is stopped


@pytest.mark.parametrize(("rc", "number"), [(143, 15), (0, None)])
def test_ranks_that_their_agent_stopped_are_not_done(tmp_path: Path, rc: int, number: int | None) -> None:
    """Reproduced: programs that save their state on SIGTERM leave with 0, and the job of a killed agent succeeded."""
    job = JobDir(str(tmp_path / "job"))
    job.create([0, 1])
    started = {"host": "n1", "cpus": [], "started": 1.0, "wrapper_pid": os.getpid(), "local_rank": 0}
    ended = {"ended": 2.0, "finished": False, "error": "", "rc": rc, "signal": number, "stopped": True}
    for rank in (0, 1):
        job.write(f"ranks/{rank}/record.json", {"rank": rank, **started, **ended})
    guard, reader = guard_of(job)
    assert guard.rounds.hold(guard.check_ranks()) is None
    guard.launcher_ended = 1.0
    assert not guard.over(), "the head has not said yet what follows"
    os.close(guard.to_supervisor)
    kinds = [json.loads(line)["kind"] for line in os.read(reader, 4096).splitlines()]
    assert kinds == ["placed", "ending"]


# --- on the head ----------------------------------------------------------------------------------------------------


class Head:
    """What rounds need of a job on n1 and n2, and what they had it do."""

    def __init__(self, path: Path, **changed: Any) -> None:
        self.order = {"host": "n1", "rounds": RULE, **changed}
        self.said: list[Any] = []
        note = self.said.append
        self.peers = [SimpleNamespace(name="n2", send=note, over=False)]
        self.work: list[Any] = []  # for a thread
        rounds_here = SimpleNamespace(begin=note, do=self.work.append)
        self.node_job = SimpleNamespace(job=JobDir(str(path)), rounds=rounds_here, guard_gone=False)
        self.audience = SimpleNamespace(send=note)
        self.hangs = SimpleNamespace(hear=lambda: None)
        self.ended, self.unplaced, self.unfinished = False, set[str](), self.hosts()
        self.started = 0.0
        self.timeout_start: float | None = 1.0

    @staticmethod
    def hosts() -> set[str]:
        return {"n1", "n2"}

    def send_to_all(self, message: Any) -> None:
        self.said.append(message)

    def end(self, reason: Reason, host: str) -> None:
        self.said.append((reason.code, host))

    @property
    def kinds(self) -> list[Any]:
        found = [row["kind"] if isinstance(row, dict) else row for row in self.said]
        self.said.clear()
        return found


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def rounds_of(head: Any, monkeypatch: pytest.MonkeyPatch) -> Rounds:
    """Return the rounds of a job, each of which fails by the same exception."""
    row = {"rank": 1, "rc": 1, "signal": None, "state": "failed"}
    blamed = {"rank": 1, "host": "n2", "message": "ValueError: x", "log": ""}
    result = {"job_id": "j", "state": "failed", "seconds": 2.0, "rc": 1, "ranks": [row], "metrics": {"step": 1}}
    found = Rounds(head)
    monkeypatch.setattr(found, "result", lambda: {**result, "first_failure": blamed, "notes": [], "placement": []})
    monkeypatch.setattr(rounds, "FIRST_PAUSE", 60.0)  # no pause
    return found


def fail(found: Rounds) -> None:
    assert found.close(reasons.rank_failed(1), "n2")
    for host in ("n1", "n2"):
        found.take({}, host)  # type: ignore[typeddict-item]
    head: Any = found.job
    head.work.pop()()


def test_a_round_ends_everywhere_before_the_next_one_begins(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rounds_of(head, monkeypatch)
    assert found.close(reasons.rank_failed(1), "n2") and found.close(reasons.rank_failed(0), "n1")
    assert head.kinds == ["end_round"] and head.timeout_start is None
    found.take({}, "n2")  # type: ignore[typeddict-item]
    found.tick()
    assert head.kinds == []
    for _time in range(2):  # a node that tells twice is heard once
        found.take({}, "n1")  # type: ignore[typeddict-item]
    found.tick()
    assert (len(head.work), head.kinds) == (1, []), "the head looked by itself at files on a disk that may hang"
    head.work.pop()()
    found.tick()
    assert head.kinds == ["restarted", "next_round", "next_round"]
    found.take({}, "n1")  # type: ignore[typeddict-item]
    assert not head.work, "no round is over"
    listed: Any = head.node_job.job.read("attempts.json")
    assert [row["state"] for row in listed["attempts"]] == ["failed"], "a head that dies now leaves no list"
    assert (head.unplaced, head.unfinished) == (head.hosts(), head.hosts()) and head.timeout_start
    assert not found.close(reasons.rank_failed(1), "n2"), "it failed before all ranks were there"


def test_the_same_failure_without_progress_ends_the_job(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rounds_of(head, monkeypatch)
    fail(found)
    found.tick()
    head.unplaced.clear()
    found.begun()
    head.said.clear()
    fail(found)
    found.tick()
    assert head.kinds == ["end_round", (EndReason.RANK_FAILED, "n2")] and found.next_at is None
    result: Any = {"job_id": "j", "notes": []}
    assert found.conclude(result, reasons.rank_failed(1)) == result
    listed: Any = head.node_job.job.read("attempts.json")
    assert [row["failure"] for row in listed["attempts"]] == ["1 ValueError"] * 2


def test_a_round_that_does_not_come_ends_the_job_with_the_failure_before(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rounds_of(head, monkeypatch)
    fail(found)
    found.tick()
    result: Any = {"job_id": "j", "state": "lost", "rc": 1, "seconds": 120.0, "ranks": [], "notes": []}
    told = found.conclude(result, reasons.not_started(["n2"], 120.0))
    why = "it was not started again: ranks on n2 not started after 120 s"
    assert (told["state"], [note["text"] for note in told["notes"]]) == ("failed", [why])
    assert (told["seconds"], told["ranks"]) == (2.0, found.result()["ranks"]), "n2 is gone, and tells nothing any more"
    assert len(found.ended) == 1
    told = found.conclude(result, reasons.signalled("SIGINT", "ansible-playbook"))
    assert (told["state"], told["rc"]) == ("cancelled", 130)


def test_a_round_waits_while_there_is_no_progress(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first second of the pause is that of the agents; a job that is ended meanwhile has no next round."""
    found = rounds_of(head, monkeypatch)
    monkeypatch.setattr(rounds, "FIRST_PAUSE", 1.0)
    monkeypatch.setattr(rounds, "pause_before_next", lambda _ended: 300.0)
    fail(found)
    found.tick()
    assert head.kinds == ["end_round", "restarted"], "who follows the job is told before the pause"
    assert found.next_at is not None and found.next_at > time.monotonic() + 200
    found.next_at, head.ended = 0.0, True
    found.tick()
    assert head.kinds == []


def test_a_round_whose_files_cannot_be_read_ends_the_job(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("input/output error")

    found = rounds_of(head, monkeypatch)
    monkeypatch.setattr(found, "result", broken)
    fail(found)
    found.tick()
    assert head.kinds == ["end_round", (EndReason.RANK_FAILED, "n2")]


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_a_node_whose_part_is_over_has_no_other_round(head: Head, monkeypatch: pytest.MonkeyPatch, node: str) -> None:
    """Its ranks were done, and its agent died while those of the other node went on: nobody there ends a round."""
    found = rounds_of(head, monkeypatch)
    head.peers[0].over, head.node_job.guard_gone = node == "n2", node == "n1"
    found.tick()
    assert head.kinds == []
    assert found.close(reasons.rank_failed(0), "n1")
    found.tick()
    assert head.kinds == ["end_round", (EndReason.LOST, node)]


def test_rounds_are_used_up(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    found = rounds_of(head, monkeypatch)
    found.ended = [{}] * 3  # type: ignore[typeddict-item]
    assert not found.close(reasons.rank_failed(1), "n2") and head.kinds == []


def test_a_job_all_of_whose_ranks_are_done_goes_on_if_one_has_saved(
    head: Head, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = rounds_of(head, monkeypatch)
    assert not found.note_done("n2", True) and head.kinds == []
    head.unfinished.discard("n2")
    assert found.note_done("n1", False) and head.kinds == ["end_round"]
    other = rounds_of(Head(Path(head.node_job.job.path), rounds=None), monkeypatch)
    assert not other.note_done("n1", True)


def test_a_node_that_beats_on_and_never_ends_its_round_is_lost() -> None:
    """Until it tells that the round is over: from then on it waits, as long as the pause takes."""
    node = object.__new__(RemoteNode)
    node.name, node.lost, node.report, node.clock = "n2", "", None, Clock(0.0, 0.0, 0.0)
    node.lease, node.grace, node.end_by, node.last_received = 5.0, 2.0, math.inf, time.monotonic()
    told: list[Any] = [{"kind": "round_report", "report": {"records": {}, "launcher": {}}}]
    channel: Any = SimpleNamespace(lost=False, send=lambda _frame: None)
    channel.receive = lambda _seconds: told.pop() if told else None
    node.channel = channel
    node.send({"kind": "end_round", "reason": EndReason.RANK_FAILED, "detail": ""})
    assert node.end_by < math.inf
    assert [frame["kind"] for frame in node.messages()] == ["round_report"] and node.end_by == math.inf
    node.send({"kind": "end", "reason": EndReason.RANK_FAILED, "detail": "", "looks": False})
    told.append({"kind": "round_report", "report": {"records": {}, "launcher": {}}})  # late
    assert node.messages() and node.end_by < math.inf
