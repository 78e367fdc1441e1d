"""The queue of a cluster: who is ahead of whom, and what becomes of those that are gone."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.queue import job_queue
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.queue.job_queue import (
    Queue,
    Ticket,
    busy_on_nodes,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.queue.waiting_job import (
    note_order,
    remove_dead,
    waiting_rows,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import BadFrame
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import frames
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.frames import FROM_HEAD
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.job_list import waits_line
from tests.unit.nodes import STAGING, facts_of_a_node, order_of_a_job

WISH: Any = {
    "controller": "me", "owner": "me@here", "hosts": ["n1"], "ranks": 1,
    "launcher": "openmpi", "backend": "gloo", "detached": False,
    "private_tmp": "",
}  # fmt: skip


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(str(tmp_path))


def wish(job_id: str, *hosts: str, **changed: Any) -> Any:
    return {**WISH, "job_id": job_id, **({"hosts": list(hosts)} if hosts else {}), **changed}


def names(found: Any) -> list[str]:
    return [row["job_id"] for row in found]


def ahead_of(queue: Queue, ticket: Ticket) -> list[str]:
    return names(queue.ahead(ticket.entry["hosts"], ticket.entry["number"]))


def elsewhere(queue: Queue, job_id: str, **changed: Any) -> int:
    """Have a process enter the queue, and return its pid when it is there."""
    pid = os.fork()
    if not pid:
        queue.enter(wish(job_id, **changed))
        time.sleep(600)
        os._exit(0)
    while job_id not in names(queue.entries()):
        time.sleep(0.01)
    return pid


def end(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Callable[..., JobDir]]:
    """Make a job of the head that runs on some nodes."""
    locks: list[int] = []

    def make(job_id: str, *hosts: str, owner: str = "me@there", order: bool = True) -> JobDir:
        job = JobDir(str(tmp_path / "jobs" / job_id))
        job.create([0])
        locks.append(job.lock())
        places = [{"rank": rank, "local_rank": 0, "host": host} for rank, host in enumerate(hosts)]
        known: Any = order_of_a_job(home=str(tmp_path), placement=places)
        if order:
            job.write("order.json", {**known, "ranks": [0], "head": known["host"], "owner": owner})
            job.write("staging.json", STAGING)
        return job

    yield make
    for lock in locks:
        os.close(lock)


def test_who_came_first_is_first(queue: Queue) -> None:
    tickets = [queue.enter(wish(name)) for name in ("b", "a", "c")]
    assert [ahead_of(queue, ticket) for ticket in tickets] == [[], ["b"], ["b", "a"]]
    tickets[0].leave()
    assert [ahead_of(queue, ticket) for ticket in tickets[1:]] == [[], ["a"]]
    last = queue.enter(wish("d"))
    assert names(queue.entries()) == ["a", "c", "d"] and ahead_of(queue, last) == ["a", "c"]


def test_who_has_many_ahead_looks_less_often(queue: Queue) -> None:
    tickets = [queue.enter(wish(f"job{number}")) for number in range(5)]
    near, far = ([queue.ahead_of(ticket, [])] for ticket in (tickets[3], tickets[4]))
    tickets[0].leave()
    for ticket, looks in ((tickets[3], near), (tickets[4], far)):
        looks.append(queue.ahead_of(ticket, looks[0]))
        ticket.next_look = 0.0
        looks.append(queue.ahead_of(ticket, looks[0]))
    assert [list(map(len, looks)) for looks in (near, far)] == [[3, 2, 2], [4, 4, 3]]


def test_a_job_that_needs_other_nodes_does_not_wait(queue: Queue, running: Callable[..., JobDir]) -> None:
    running("runs", "n1", "n2")
    both, third, fourth = (queue.enter(wish(*given)) for given in (("x", "n2", "n3"), ("y", "n3"), ("z", "n4")))
    assert ahead_of(queue, both) == ["runs"]
    assert ahead_of(queue, third) == ["x"]  # though n3 is free: x came first, and would wait for ever
    assert ahead_of(queue, fourth) == []


def test_a_job_that_is_being_staged_may_be_anywhere(queue: Queue, running: Callable[..., JobDir]) -> None:
    running("new", order=False)
    assert names(queue.ahead(["n9"])) == ["new"]


def test_jobs_that_run_come_first_the_longest_first(queue: Queue, running: Callable[..., JobDir]) -> None:
    for name, started in (("young", time.time() - 10), ("old", time.time() - 1000)):
        running(name, "n1").write("staging.json", {**STAGING, "started": started})
    queue.enter(wish("w"))
    found = queue.ahead(["n1"])
    assert [(row["job_id"], row["state"]) for row in found] == [
        ("old", "running"), ("young", "running"), ("w", "waiting"),
    ]  # fmt: skip
    line = waits_line("run7", len(found), {**found[0], "owner": "alice", "seconds": 720.0})
    assert line == "job run7 waits: 3 ahead, the first is old of alice, which has run for 12 min 0 s"


def test_nobody_waits_for_a_dead_one(queue: Queue) -> None:
    pid = elsewhere(queue, "dead")
    ticket = queue.enter(wish("next"))
    assert ahead_of(queue, ticket) == ["dead"]
    end(pid)
    assert ahead_of(queue, ticket) == [] and names(queue.entries()) == ["next"]
    remove_dead(queue)
    assert len([name for name in os.listdir(queue.path) if name.endswith(".json")]) == 1
    again = queue.enter(wish("dead"))  # its name is free
    assert ahead_of(queue, again) == ["next"]


def test_a_stopped_one_keeps_its_place(queue: Queue) -> None:
    pid = elsewhere(queue, "stopped")
    os.kill(pid, signal.SIGSTOP)
    try:
        assert names(queue.ahead(["n1"])) == ["stopped"]
    finally:
        end(pid)


def test_a_detached_job_whose_process_died_is_lost_and_says_so(queue: Queue, tmp_path: Path) -> None:
    order: Any = {**order_of_a_job(home=str(tmp_path)), "head": "n1", "ranks": [], "job_id": "away"}
    ticket = queue.enter(wish("away", detached=True))
    note_order(ticket.path, {**order, "home": "/elsewhere"})
    os.close(ticket.descriptor)  # as when the head restarts
    remove_dead(queue)
    assert os.listdir(queue.path) == [job_queue.LOCK]
    result: Any = JobDir(str(tmp_path / "jobs" / "away")).read("result.json")
    assert result["state"] == "lost" and "never started" in result["first_failure"]["cause"]
    assert not (tmp_path.parent / "elsewhere").exists()


def test_who_is_taken_out_notices(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queue, "LOCK_SECONDS", 0.1)
    ticket, other = queue.enter(wish("one")), queue.enter(wish("two"))
    assert queue.take_out("one") and not queue.take_out("one")
    assert not ticket.valid and other.valid and ahead_of(queue, other) == []
    queue.enter(wish("one"))  # under the old name, at another place
    ticket.leave()
    assert names(queue.entries()) == ["two", "one"]


def test_a_name_is_there_once(queue: Queue, running: Callable[..., JobDir]) -> None:
    queue.enter(wish("one"))
    running("ran", "n1")
    for name in ("one", "ran"):
        with pytest.raises(ValueError, match="waits or ran already"):
            queue.enter(wish(name))


def test_other_nodes_are_noted_and_the_place_is_kept(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = queue.enter(wish("one", "n1")), queue.enter(wish("two", "n2"))
    queue.move(first, ["n2"])
    assert ahead_of(queue, second) == ["one"] and first.valid
    monkeypatch.setattr(job_queue, "LOCK_SECONDS", 0.0)
    with queue.held(alone=False), pytest.raises(OSError, match="the queue is in use"):
        queue.move(first, ["n1"])  # not while somebody reads it
    assert ahead_of(queue, second) == ["one"]


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        ({"waiting": 2}, "2 jobs of user me are waiting, and .* allows 2: wait, or end one"),
        ({"running": 1}, "1 jobs of user me are running, and .* allows 1"),
        ({"waiting": 3, "running": 2}, ""),
        ({"waiting": 3, "users": {"me": {"waiting": 2}}}, "2 jobs of user me are waiting, and .* allows 2"),
        ({"users": {"me": {"running": 1}}}, "1 jobs of user me are running"),
        ({"waiting": 2, "running": 1, "users": {"me": {"waiting": 3, "running": 2}, "you": {"waiting": 0}}}, ""),
        ({"running": 1, "users": {"me": {"waiting": 9}}}, "1 jobs of user me are running"),
        *(
            (wrong, "is not as .* repair or remove it")
            for wrong in (
                *({"waiting": "3"}, {"waits": 3}, [], {"users": []}, {"users": {"you": 3}}, {"waiting": True}),
                *(
                    {"users": {"you": {"waiting": -1}}},
                    {"users": {"me": {"waits": 1}}},
                    {"users": {"me": {"users": {}}}},
                ),
            )
        ),
    ],
    ids=str,
)
def test_a_user_has_no_more_than_the_head_allows(
    queue: Queue, running: Callable[..., JobDir], limits: Any, refused: str
) -> None:
    """Whichever controller the user types on."""
    for name, owner in (("a", "me@laptop"), ("b", "me@desk"), ("c", "you@desk"), ("d", "me@corp@desk")):
        queue.enter(wish(name, owner=owner))
    running("runs", "n1")
    running("theirs", "n1", owner="you@there")
    Path(queue.path, job_queue.LIMITS).write_text(json.dumps(limits))
    if refused:
        with pytest.raises(ValueError, match=refused):
            queue.enter(wish("more"))
    else:
        queue.enter(wish("more"))


def test_jobs_of_a_version_that_noted_no_owner_keep_their_places(queue: Queue, running: Callable[..., JobDir]) -> None:
    old = queue.enter(wish("old"))
    del old.entry["owner"]  # type: ignore[misc]
    old.write()
    running("runs", "n1", owner=7)
    assert [(row["job_id"], row["owner"]) for row in queue.ahead(["n1"])] == [("runs", "?"), ("old", "?")]
    assert waiting_rows(queue, "me")[0]["owner"] == "?"
    Path(queue.path, job_queue.LIMITS).write_text('{"waiting": 1, "running": 1}')
    queue.enter(wish("new"))


HOSTILE: list[Any] = [
    [], {}, {"job_id": "x"}, wish("other", since=1.0), wish("x", since=1e30), wish("x", since=1.0, hosts=[1]),
    wish("x", since=1.0, hosts="n1"), wish("x", since=1.0, ranks=0), wish("x", since=1.0, ranks=True),
    wish("x", since=1.0, detached=1),
]  # fmt: skip


@pytest.mark.parametrize("content", [*map(json.dumps, HOSTILE), "no json", "[" * 100_000], ids=range(len(HOSTILE) + 2))
def test_what_is_no_ticket_of_ours_is_left_out(queue: Queue, content: str) -> None:
    """Any program of the user may write there, and hold a lock."""
    os.makedirs(queue.path)
    path = Path(queue.path, "000000001-x.json")
    path.write_text(content)
    descriptor = os.open(path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    ticket = queue.enter(wish("good"))
    assert names(queue.entries()) == ["good"] and ahead_of(queue, ticket) == []
    os.close(descriptor)
    remove_dead(queue)
    assert not path.exists()


def test_no_link_or_pipe_is_followed(queue: Queue, tmp_path: Path) -> None:
    os.makedirs(queue.path)
    os.mkfifo(Path(queue.path, "000000001-pipe.json"))
    target = tmp_path / "secret"
    target.write_text("mine")
    Path(queue.path, "000000002-link.json").symlink_to(target)
    Path(queue.path, "limits.json").symlink_to(target)
    assert queue.entries() == []
    with pytest.raises(ValueError, match="repair or remove"):
        queue.enter(wish("one"))
    remove_dead(queue)
    assert target.read_text() == "mine" and sorted(os.listdir(queue.path)) == ["limits.json", "lock"]


def test_tickets_are_ones_own(queue: Queue) -> None:
    ticket = queue.enter(wish("one"))
    assert os.stat(queue.path).st_mode & 0o777 == 0o700
    assert os.stat(ticket.path).st_mode & 0o777 == 0o600


def test_a_lock_that_somebody_keeps_is_named(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = queue.enter(wish("one"))
    monkeypatch.setattr(job_queue, "LOCK_SECONDS", 0.0)
    descriptor = os.open(Path(queue.path, "lock"), os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(OSError, match=r"the queue is in use.*see .*/queue/lock"):
        queue.entries()
    last: Any = [{"job_id": "x"}]
    assert queue.ahead_of(ticket, last) == last  # who waits goes on waiting
    with pytest.raises(OSError, match="the queue is in use"):
        queue.ahead_of(ticket, [])
    os.close(descriptor)
    assert queue.ahead_of(ticket, last) == []


def test_of_the_jobs_that_nodes_know_those_of_other_homes_do_not_count() -> None:
    """Reproduced before: one with the name of a job that waits here held up the queue for ever."""
    ours = {"owner": "alice", "job_id": "ours", "own_home": True}
    theirs = {"owner": "bob", "job_id": "waits", "own_home": False}
    facts: Any = facts_of_a_node(jobs=["ours", "waits"], running=[ours, theirs])
    assert names(busy_on_nodes(["n1", "n2"], {"n1": facts, "n2": {"unreachable": "x"}, "n3": facts})) == ["ours"]


AHEAD = {"job_id": "a", "owner": "alice", "own_home": True, "state": "running", "seconds": 1.0}


def test_what_an_honest_head_says_of_the_queue_passes() -> None:
    said: Any = {"kind": "queued", "ahead": 2, "first": {**AHEAD, "owner": "al\x1b[2Jice", "more": 1}}
    assert frames.checked(said, FROM_HEAD)["first"] == {**AHEAD, "owner": "al[2Jice"}


@pytest.mark.parametrize(
    "lie",
    [
        {"ahead": -1}, {"ahead": "2"}, {"ahead": True}, {"ahead": 1 << 40}, {"first": []}, {"first": {}},
        {"first": {**AHEAD, "job_id": "a; rm"}}, {"first": {**AHEAD, "state": "gone"}},
        {"first": {**AHEAD, "seconds": "x"}}, {"first": {**AHEAD, "owner": 7}},
    ],
    ids=str,
)  # fmt: skip
def test_a_head_that_lies_of_the_queue_is_refused(lie: Any) -> None:
    with pytest.raises(BadFrame, match="queued"):
        frames.checked({"kind": "queued", "ahead": 1, "first": AHEAD, **lie}, FROM_HEAD)
