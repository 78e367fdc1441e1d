"""Jobs that wait on a real supervisor: with their controller, and without."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.planned_nodes import (
    PLANNED_WITH,
    PlannedNodes,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.queue.job_queue import Queue
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.queue.kept_job import KEPT
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.link import RemoteProcess
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import runtime_archive
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import survey_request
from tests.driver import running, wait_until
from tests.unit.nodes import facts_of_a_node
from tests.unit.supervisors import PACKAGE, order_of_one, supervisor

FASTER = (
    f"from {PACKAGE}.queue import queue_desk, waiting_job\nqueue_desk.LOOK_SECONDS = waiting_job.LOOK_SECONDS = 0.05\n"
)
FASTER += f"from {PACKAGE}.processes import processes as marks\nmarks.marked = lambda *_given: []"


@pytest.fixture
def start() -> Iterator[Callable[[], RemoteProcess]]:
    """Start heads, each for a controller of its own."""
    made: list[RemoteProcess] = []

    def one() -> RemoteProcess:
        made.append(supervisor(FASTER))
        return made[-1]

    yield one
    for remote in made:
        if not remote.channel.lost:
            remote.close(20)


def queue(remote: RemoteProcess, home: Path, job_id: str, **changed: Any) -> None:
    """Ask for a place in the queue."""
    given: dict[str, Any] = {
        **{"home": str(home), "job_id": job_id, "controller": "me", "owner": "me@here"},
        **{"hosts": ["w1"], "ranks": 1, "look": False},
        **{"launcher": "openmpi", "backend": "gloo", "lease": 60.0, "queue_timeout": None, **changed},
    }
    remote.channel.send({"kind": "queue", **given})


def whole_order(home: Path, job_id: str, **changed: Any) -> dict[str, Any]:
    order = order_of_one(home, job_id=job_id, head="w1", master_port=1, **changed)
    return {"job": order, "nodes": {"w1": order}, "routes": [], "secrets": {"w1": {}}, "files": {}}


def run(remote: RemoteProcess, home: Path, job_id: str, **changed: Any) -> None:
    remote.channel.send({"kind": "run", "order": whole_order(home, job_id), **changed})


def detach(remote: RemoteProcess, home: Path, job_id: str, **changed: Any) -> None:
    """Give a head a job that waits by itself."""
    remote.channel.send({"kind": "detach"})
    run(remote, home, job_id, detached=True, waits=True, **changed)


def look(remote: RemoteProcess, home: Path) -> None:
    """Have a head look at itself, as it does before each job."""
    asked = survey_request(Node("w1", "w1", home=str(home)), Request("mnist"), ())
    remote.ask({"kind": "survey", "beats": True, "request": asked, "nodes": []}, 60)


def answer(remote: RemoteProcess) -> Any:
    """Return the next frame that is no beat."""
    return remote.answer(60)


def waits_for(remote: RemoteProcess) -> tuple[int, str, str]:
    """Return what a job that waits is told: how many are ahead, and the first of them."""
    frame = answer(remote)
    assert frame["kind"] == "queued", frame
    return frame["ahead"], frame["first"]["job_id"], frame["first"]["state"]


def end(remote: RemoteProcess) -> str:
    """End a job that runs; return its state."""
    remote.channel.send({"kind": "end", "reason": "cancelled", "detail": "the test"})
    while (frame := answer(remote))["kind"] != "result":
        pass
    return str(frame["result"]["state"])


def waiting(home: Path) -> list[str]:
    return [entry["job_id"] for entry in Queue(str(home)).entries()]


def tickets(home: Path) -> list[str]:
    """Return what is in the queue's directory beside its lock, the tickets of the dead too."""
    return sorted(name for name in os.listdir(home / "queue") if name != "lock")


def result_of(home: Path, job_id: str) -> Any:
    """Return the result of a job when it is there and nobody holds a ticket any more."""
    job = JobDir(str(home / "jobs" / job_id))
    wait_until(lambda: job.read("result.json") and job_id not in waiting(home), 60)
    return job.read("result.json")


def test_three_jobs_run_one_after_the_other(tmp_path: Path, start: Callable[[], RemoteProcess]) -> None:
    first, second, third = start(), start(), start()
    queue(first, tmp_path, "a")
    assert answer(first) == {"kind": "turn"}
    queue(second, tmp_path, "b")
    assert waits_for(second) == (1, "a", "waiting")  # it has not started, and its place is held
    run(first, tmp_path, "a", waits=True)
    assert answer(first)["kind"] == "started"
    assert waits_for(second) == (1, "a", "running")
    queue(third, tmp_path, "c")
    assert waits_for(third) == (2, "a", "running")
    assert waiting(tmp_path) == ["b", "c"] and end(first) == "cancelled"
    assert answer(second) == {"kind": "turn"}
    assert waits_for(third) == (1, "b", "waiting")
    run(second, tmp_path, "b", waits=True)
    assert answer(second)["kind"] == "started"
    assert waits_for(third) == (1, "b", "running") and end(second) == "cancelled"
    assert answer(third) == {"kind": "turn"}


@pytest.mark.parametrize("how", ["leaves", "is killed", "its turn, then leaves"])
def test_who_is_gone_is_not_waited_for(tmp_path: Path, start: Callable[[], RemoteProcess], how: str) -> None:
    first, second, third = start(), start(), start()
    for remote, job_id in ((first, "a"), (second, "b"), (third, "c")):
        queue(remote, tmp_path, job_id)
        assert answer(remote)["kind"] == ("turn" if remote is first else "queued")
    if how == "its turn, then leaves":
        second, first = first, second
    if how == "is killed":
        second.process.send_signal(signal.SIGKILL)
    second.close(20)
    second.channel.lost = True
    assert waits_for(third) == (1, "a" if how != "its turn, then leaves" else "b", "waiting")
    assert len(tickets(tmp_path)) == (3 if how == "is killed" else 2)


def test_a_controller_that_says_nothing_loses_its_place(tmp_path: Path, start: Callable[[], RemoteProcess]) -> None:
    """Its machine may be gone without a word. One whose turn it is would keep all others waiting."""
    first, second, third = start(), start(), start()
    queue(first, tmp_path, "a", lease=3.0)
    assert answer(first) == {"kind": "turn"}
    queue(second, tmp_path, "b", lease=3.0)
    assert waits_for(second)[1] == "a"
    queue(third, tmp_path, "c")
    assert waits_for(third)[0] in (1, 2)  # on a busy machine the first has lost its place by now
    refused = {"kind": "refused", "reason": "the controller was silent for 3 s"}
    assert answer(second) in ({"kind": "turn"}, refused)  # its turn may come first: it says nothing then either
    while (frame := answer(third))["kind"] != "turn":
        assert frame["ahead"] == 1
    assert waiting(tmp_path) == ["c"]
    run(first, tmp_path, "a", waits=True)  # it was asleep, and comes too late
    late = answer(first)
    assert late["kind"] == "refused" and late["reason"].startswith("it has lost its place in the queue")
    assert not (tmp_path / "jobs").exists()


def test_a_job_is_taken_out_of_the_middle(tmp_path: Path, start: Callable[[], RemoteProcess]) -> None:
    first, second, third, other = start(), start(), start(), start()
    for remote, job_id in ((first, "a"), (second, "b"), (third, "c")):
        queue(remote, tmp_path, job_id)
        assert answer(remote)["kind"] == ("turn" if remote is first else "queued")
    other.channel.send({"kind": "attach", "home": str(tmp_path), "job_id": "b"})
    told = answer(other)
    assert told["kind"] == "refused" and told["reason"].startswith("it waits in the queue with the controller that")
    assert other.ask({"kind": "unqueue", "beats": True, "home": str(tmp_path), "job_id": "b"}, 60)["found"] is True
    refused = answer(second)
    assert refused["kind"] == "refused" and "do=cancel" in refused["reason"]
    assert waits_for(third) == (1, "a", "waiting")
    assert other.ask({"kind": "unqueue", "beats": True, "home": str(tmp_path), "job_id": "b"}, 60)["found"] is False


def test_the_time_in_the_queue_has_an_end(tmp_path: Path, start: Callable[[], RemoteProcess]) -> None:
    first, second, third = start(), start(), start()
    queue(first, tmp_path, "a")
    assert answer(first) == {"kind": "turn"}
    queue(second, tmp_path, "b", queue_timeout=0.1)
    assert waits_for(second)[1] == "a"
    refused = answer(second)["reason"]
    assert refused.startswith("it waited for 0.1 s (queue_timeout): 1 ahead, the first is a of ")
    detach(third, tmp_path, "c", queue_timeout=0.1)
    assert waits_for(third)[1] == "a"
    result = result_of(tmp_path, "c")
    assert result["state"] == "timed_out" and result["rc"] == 124
    assert result["first_failure"]["cause"].startswith("it waited for 0.1 s (queue_timeout): 1 ahead")
    assert waiting(tmp_path) == ["a"]


def test_a_look_enters_no_queue(tmp_path: Path, start: Callable[[], RemoteProcess]) -> None:
    first, other = start(), start()
    queue(other, tmp_path, "b", look=True)
    assert answer(other) == {"kind": "queued", "ahead": 0, "first": None}
    assert not (tmp_path / "queue").exists()
    queue(first, tmp_path, "a")
    assert answer(first) == {"kind": "turn"}
    queue(other, tmp_path, "b", look=True)
    assert waits_for(other) == (1, "a", "waiting") and waiting(tmp_path) == ["a"]


def test_a_job_without_room_for_its_result_is_lost(tmp_path: Path, start: Callable[[], RemoteProcess]) -> None:
    first, second, other = start(), start(), start()
    queue(first, tmp_path, "a")
    assert answer(first) == {"kind": "turn"}
    detach(second, tmp_path, "b", queue_timeout=2.0)
    assert waits_for(second)[1] == "a"
    (tmp_path / "jobs").write_text("no directory can be made here")
    wait_until(lambda: waiting(tmp_path) == ["a"], 60)
    assert len(tickets(tmp_path)) == 3  # it waits for room, with what the job was
    (tmp_path / "jobs").unlink()
    assert rows(other, tmp_path)["b"]["state"] == "lost"
    assert len(tickets(tmp_path)) == 1


def rows(remote: RemoteProcess, home: Path) -> dict[str, Any]:
    found = remote.ask({"kind": "jobs", "beats": True, "home": str(home), "controller": "me"}, 60)["jobs"]
    return {row["job_id"]: row for row in found}


def follower(home: Path, job_id: str) -> Channel:
    """Return a channel to a job that waits by itself, as who comes later has it."""
    entry = Queue(str(home)).find(job_id)
    assert entry
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.path.join(entry["private_tmp"], "followers"))
    descriptor = connection.detach()
    return Channel(descriptor, os.dup(descriptor))


def test_a_detached_job_waits_without_its_controller_and_starts(
    tmp_path: Path, start: Callable[[], RemoteProcess]
) -> None:
    first, second, other = start(), start(), start()
    run(first, tmp_path, "a")
    assert answer(first)["kind"] == "started"
    detach(second, tmp_path, "b")
    assert waits_for(second) == (1, "a", "running")
    second.process.wait(20)  # nothing holds the connection
    row = rows(other, tmp_path)["b"]
    assert (row["state"], row["position"], row["own"], row["hosts"]) == ("waiting", 1, False, ["w1"])
    private = Queue(str(tmp_path)).entries()[0]["private_tmp"]
    other.channel.send({"kind": "attach", "home": str(tmp_path), "job_id": "b"})
    assert answer(other)["kind"] == "attached" and waits_for(other) == (1, "a", "running")
    assert end(first) == "cancelled"
    assert answer(other)["kind"] == "started"  # it was followed into the job
    assert tickets(tmp_path) == [] and not os.path.exists(private)
    assert JobDir(str(tmp_path / "jobs" / "b")).running()
    assert end(other) == "cancelled"
    assert result_of(tmp_path, "b")["state"] == "cancelled"


def test_a_detached_job_is_ended_while_it_waits(tmp_path: Path, start: Callable[[], RemoteProcess]) -> None:
    first, second, other = start(), start(), start()
    queue(first, tmp_path, "a")
    assert answer(first) == {"kind": "turn"}
    detach(second, tmp_path, "b")
    assert waits_for(second)[1] == "a"
    assert (
        other.ask({"kind": "unqueue", "beats": True, "home": str(tmp_path), "job_id": "b"}, 60)["found"] is False
    )  # as any other job:
    other.channel.send({"kind": "attach", "home": str(tmp_path), "job_id": "b"})
    assert answer(other)["kind"] == "attached" and waits_for(other)[1] == "a"
    assert end(other) == "cancelled"
    assert result_of(tmp_path, "b")["state"] == "cancelled" and waiting(tmp_path) == ["a"]
    assert rows(other, tmp_path)["b"]["state"] == "cancelled"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_detached_job_whose_process_is_killed_is_lost(
    tmp_path: Path, start: Callable[[], RemoteProcess], number: signal.Signals
) -> None:
    """It is not started again: somebody wanted it to be gone."""
    first, second, other = start(), start(), start()
    queue(first, tmp_path, "a")
    assert answer(first) == {"kind": "turn"}
    look(second, tmp_path)
    detach(second, tmp_path, "b")
    assert waits_for(second)[1] == "a"
    private = Queue(str(tmp_path)).entries()[1]["private_tmp"]
    (holder,) = holders(tmp_path, "b")
    os.kill(holder, number)
    wait_until(lambda: waiting(tmp_path) == ["a"] and not running(holder), 60)
    assert rows(other, tmp_path)["b"]["state"] == "lost"
    assert result_of(tmp_path, "b")["first_failure"]["cause"].startswith("the process that kept the job's place")
    assert len(tickets(tmp_path)) == 1 and not os.path.exists(private)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["it lost power", "in order"])
def test_a_detached_job_waits_again_in_its_place_after_the_head_restarted(
    tmp_path: Path, start: Callable[[], RemoteProcess], number: signal.Signals
) -> None:
    first, third, other = start(), start(), start()
    entry = tmp_path / runtime_archive.entry()
    for name, content in runtime_archive.sources().items():
        file = entry.parent / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    second = supervisor(f"{FASTER}\nfrom {PACKAGE}.queue import kept_job\nkept_job.OWN_ENTRY = {str(entry)!r}")
    queue(first, tmp_path, "a")
    assert answer(first) == {"kind": "turn"}
    look(second, tmp_path)
    detach(second, tmp_path, "b")
    assert waits_for(second)[1] == "a"
    queue(third, tmp_path, "c")
    assert waits_for(third)[0] == 2
    restart(tmp_path, "b", number)
    assert (rows(other, tmp_path)["b"]["state"], waiting(tmp_path)) == ("waiting", ["a", "b", "c"])
    other.channel.send({"kind": "attach", "home": str(tmp_path), "job_id": "b"})
    assert answer(other)["kind"] == "attached" and waits_for(other) == (1, "a", "waiting")
    first.close(20)
    first.channel.lost = True
    while (frame := answer(other))["kind"] != "started":
        assert frame["kind"] == "queued"
    assert end(other) == "cancelled" and result_of(tmp_path, "b")["seconds"] > 0
    while (frame := answer(third))["kind"] != "turn":
        assert frame["first"]["job_id"] in ("a", "b")
    assert waiting(tmp_path) == ["c"] and len(tickets(tmp_path)) == 1


def restart(home: Path, job_id: str, number: signal.Signals = signal.SIGKILL) -> None:
    """Leave a job that waits as a head leaves it that ends its processes by a signal and comes up again."""
    for pid in holders(home, job_id):
        os.kill(pid, number)
    wait_until(lambda: job_id not in waiting(home), 60)
    (name,) = [name for name in tickets(home) if name.endswith(f"-{job_id}")]
    place = JobDir(str(home / "queue" / name))
    kept: Any = place.read(KEPT)
    place.write(KEPT, {**kept, "boot": "the one before"})


def test_a_job_with_secrets_is_in_no_file(tmp_path: Path, start: Callable[[], RemoteProcess]) -> None:
    first, second = start(), start()
    queue(first, tmp_path, "a")
    assert answer(first) == {"kind": "turn"}
    look(second, tmp_path)
    second.channel.send({"kind": "detach"})
    order = {**whole_order(tmp_path, "b"), "secrets": {"w1": {"HF_TOKEN": "s3cret"}}}
    second.channel.send({"kind": "run", "order": order, "detached": True, "waits": True})
    assert waits_for(second)[1] == "a"
    found = [path for path in (tmp_path / "queue").rglob("*") if path.is_file() and "s3cret" in path.read_text()]
    assert not found and not list((tmp_path / "queue").rglob(KEPT))
    other = start()
    other.channel.send({"kind": "attach", "home": str(tmp_path), "job_id": "b"})
    assert end(other) == "cancelled"  # asked for at once; else it starts when the first is gone


def holders(home: Path, job_id: str) -> list[int]:
    """Return the pids of processes that have the ticket of a job open."""
    (name,) = [name for name in os.listdir(home / "queue") if name.endswith(f"-{job_id}.json")]
    return [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and has_open(pid, str(home / "queue" / name))]


def has_open(pid: str, path: str) -> bool:
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{name}") == path for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def test_a_detached_job_on_free_nodes_starts_at_once(tmp_path: Path, start: Callable[[], RemoteProcess]) -> None:
    remote = start()
    detach(remote, tmp_path, "a")
    assert answer(remote)["kind"] == "started"
    assert tickets(tmp_path) == []
    other = start()
    detach(other, tmp_path, "a")  # the name is taken: refused as without a queue
    assert "waits or ran already" in answer(other)["reason"]
    other.channel.send({"kind": "attach", "home": str(tmp_path), "job_id": "a"})
    assert answer(other)["kind"] == "attached" and end(other) == "cancelled"


@pytest.mark.parametrize("name", PLANNED_WITH)
def test_a_node_that_changed_ends_the_wait(name: str) -> None:
    job: Any = object.__new__(PlannedNodes)
    job.hosts, job.order = ["n1"], {"master_port": 23456}
    job.facts = {"n1": facts_of_a_node(script="")}
    assert job.changed({"n1": facts_of_a_node(script="")}) is None
    told = job.changed({"n1": {**facts_of_a_node(script=""), name: "other"}})
    text = f"n1 changed while it waited: {PLANNED_WITH[name]}; start it again"
    assert told == ("node_changed", "n1", text)
    found = job.changed({"n1": facts_of_a_node(script="", port=1)})
    assert found.code == "port_taken" and "port 23456 of rank 0 is taken" in found.text


# Two meshes that reach no w2: in one it is a node that refuses, in the other none of the cluster's.
AWAY = "Host w2\n    HostName 127.0.0.1\n    Port 1\nHost *\n    ConnectTimeout 10\n"
REMOVED = "Host w3\n    HostName 127.0.0.1\nHost *\n    ProxyCommand /bin/false\n"


@pytest.mark.parametrize(
    ("config", "code", "told"),
    [
        (AWAY, "node_away", "w2 was not reached when its turn came: "),
        (REMOVED, "node_removed", "w2 is no node of this cluster any more: start it again without it"),
    ],
)
def test_a_job_whose_node_is_not_there_any_more_ends_and_the_next_one_runs(
    tmp_path: Path, start: Callable[[], RemoteProcess], config: str, code: str, told: str
) -> None:
    first, second, third = start(), start(), start()
    queue(first, tmp_path, "a")
    assert answer(first) == {"kind": "turn"}
    (tmp_path / "ssh").mkdir()
    (tmp_path / "ssh" / "config").write_text(config)
    asked = survey_request(Node("w1", "w1", home=str(tmp_path)), Request("mnist"), ())
    route = {"host": "w2", "home": str(tmp_path), "interpreter": "python3", "request": asked}
    second.ask({"kind": "survey", "beats": True, "request": asked, "nodes": [route]}, 60)
    second.channel.send({"kind": "detach"})
    order = whole_order(tmp_path, "b", placement=[rank_on("w1", 0), rank_on("w2", 1)], world_size=2)
    order["nodes"]["w2"] = {**order["job"], "host": "w2", "ranks": [1]}
    order["routes"] = [{"host": "w2"}]
    order["secrets"] = {"w1": {}, "w2": {}}
    second.channel.send({"kind": "run", "order": order, "detached": True, "waits": True})
    assert waits_for(second) == (1, "a", "waiting")
    queue(third, tmp_path, "c", hosts=["w2"])
    assert waits_for(third)[:2] == (1, "b")
    run(first, tmp_path, "a", waits=True)
    assert answer(first)["kind"] == "started" and end(first) == "cancelled"
    found = result_of(tmp_path, "b")
    assert (found["state"], found["first_failure"]["host"]) == ("failed", "w2")
    assert found["first_failure"]["cause"].startswith(told)
    assert [note["code"] for note in found["notes"]] == [code]
    while (frame := answer(third))["kind"] == "queued":
        pass
    assert frame == {"kind": "turn"} and waiting(tmp_path) == ["c"]


def rank_on(host: str, rank: int) -> dict[str, Any]:
    return {"rank": rank, "local_rank": 0, "host": host}
