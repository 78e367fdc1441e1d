"""What the controller makes of the queue: when it plans anew, and when it gives up."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.interrupt import Stopped
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import turn as turn_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.connection import HeadLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import Request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.turn import Turn, take_out
from tests.unit.nodes import facts_of_a_node
from tests.unit.test_session import Head

AHEAD = {"job_id": "first", "owner": "alice", "own_home": True, "state": "running", "seconds": 720.0}
FREE: Any = {"n1": facts_of_a_node(), "n2": facts_of_a_node()}
BUSY: Any = {**FREE, "n2": facts_of_a_node(jobs=["old"], running=[{"job_id": "old", "owner": "bob", "own_home": True}])}


def plan(*hosts: str) -> Any:
    nodes = [SimpleNamespace(name=host) for host in hosts]
    return SimpleNamespace(
        job_id="run7", owner="me@here", nodes=nodes, world_size=2, launcher="openmpi", backend="gloo"
    )


class Waits:
    """A job that asks for its turn. `plans`: what is planned when its nodes are looked at anew, one after the other."""

    def __init__(self, head: Head, *plans: tuple[Any, Any]) -> None:
        self.head, self.plans, self.lines = head, list(plans), list[str]()
        self.stop = SimpleNamespace(check=lambda: None)
        stop: Any = self.stop
        self.turn = Turn(head.session, Request("pi", queue_timeout=9.0), "me", stop, self.lines.append)

    def take(self, *hosts: str, facts: Any = FREE) -> Any:
        return self.turn.take(plan(*hosts), facts, lambda: self.plans.pop(0))

    def asked(self) -> list[Any]:
        """Return the nodes that it asked for, one list for each time."""
        found = []
        while frame := self.head.channel.receive(0):
            assert (frame["kind"], frame["job_id"], frame["controller"]) == ("queue", "run7", "me")
            assert (frame["lease"], frame["queue_timeout"], frame["look"]) == (60.0, 9.0, False)
            found.append(frame["hosts"])
        return found


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[Head]:
    monkeypatch.setattr(turn_module, "NODES_SECONDS", 0.0)
    made = Head()
    made.session.queued = False
    yield made
    made.close()


def test_nodes_that_are_free_are_not_looked_at_twice(head: Head) -> None:
    waits = Waits(head)
    head.channel.send({"kind": "turn"})
    first, facts = waits.take("n1", "n2")
    assert [node.name for node in first.nodes] == ["n1", "n2"] and facts is FREE
    assert waits.lines == [] and waits.asked() == [["n1", "n2"]] and head.session.queued


def test_who_waited_plans_anew(head: Head) -> None:
    waits, anew = Waits(head), plan("n1", "n2")
    waits.plans.append((anew, FREE))
    for kind, fields in (("queued", {"ahead": 2, "first": AHEAD}), ("beat", {}), ("turn", {})):
        head.channel.send({"kind": kind, **fields})
    assert waits.take("n1", "n2")[0] is anew
    assert waits.lines == ["job run7 waits: 2 ahead, the first is first of alice, which has run for 12 min 0 s"]


def test_other_nodes_are_waited_for_too(head: Head) -> None:
    """A node has fewer GPUs than when the job came, and ranks go elsewhere."""
    waits, anew = Waits(head), plan("n1", "n3")
    waits.plans.append((anew, FREE))
    for kind, fields in (("queued", {"ahead": 1, "first": AHEAD}), ("turn", {}), ("turn", {})):
        head.channel.send({"kind": kind, **fields})
    assert waits.take("n1", "n2")[0] is anew
    assert waits.asked() == [["n1", "n2"], ["n1", "n3"]]


def test_nodes_that_know_a_job_by_themselves_are_waited_for(head: Head) -> None:
    """It is over on the head, and a node that was lost has not ended its part; or another head started it."""
    waits = Waits(head, (plan("n2"), BUSY), (plan("n2"), FREE))
    for _ in range(3):
        head.channel.send({"kind": "turn"})
    assert waits.take("n2", facts=BUSY)[1] is FREE
    assert waits.lines == ["job run7 waits: 1 ahead, the first is old of bob, which runs"]
    assert waits.asked() == [["n2"]] * 3


def test_what_the_head_refuses_is_told_in_its_words(head: Head) -> None:
    head.channel.send({"kind": "refused", "reason": "it waited for 9 s (queue_timeout)"})
    with pytest.raises(InputError, match=r'queue: got "run7"; it waited for 9 s \(queue_timeout\)$'):
        Waits(head).take("n1")


def test_a_head_that_answers_another_question_is_not_believed(head: Head) -> None:
    head.channel.send({"kind": "started"})
    with pytest.raises(HeadLost, match="it does not match the request"):
        Waits(head).take("n1")


def test_who_wants_to_stop_is_asked_while_the_job_waits(head: Head) -> None:
    waits = Waits(head)

    def stop() -> None:
        raise Stopped

    waits.stop.check = stop
    with pytest.raises(Stopped):
        waits.take("n1")


def test_the_head_hears_of_the_controller_while_the_job_waits(head: Head) -> None:
    waits = Waits(head)
    waits.turn.beaten -= 60
    head.channel.send({"kind": "turn"})
    waits.take("n1")
    kinds = []
    while frame := head.channel.receive(0):
        kinds.append(frame["kind"])
    assert kinds == ["queue", "beat"]


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        ({"ahead": 0, "first": None}, "job run7 would not wait"),
        ({"ahead": 2, "first": AHEAD}, "job run7 waits: 2 ahead, the first is first of alice, which has run for 12"),
    ],
)
def test_check_mode_only_looks(head: Head, frame: Any, line: str) -> None:
    head.channel.send({"kind": "queued", **frame})
    assert Waits(head).turn.would_wait(plan("n1")).startswith(line)
    asked = head.channel.receive(10)
    assert asked is not None and asked["look"] is True


def test_a_job_is_taken_out_by_its_name(head: Head) -> None:
    head.channel.send({"kind": "unqueued", "found": True})
    assert take_out(head.session, "run7") is True
    asked = head.channel.receive(10)
    assert asked is not None and (asked["kind"], asked["job_id"]) == ("unqueue", "run7")
