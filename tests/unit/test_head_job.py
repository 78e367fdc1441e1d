"""A whole job, seen from the head: what one node says counts for its own ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.hang_end import HangEnd
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.head_job import HeadJob
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.rounds import Rounds
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import Reason


@pytest.fixture
def shown() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def head_job(shown: list[dict[str, Any]]) -> HeadJob:
    """A job of two nodes: rank 0 on n1, which is the head, rank 1 on n2."""
    made = object.__new__(HeadJob)
    made.order = {"host": "n1"}
    made.places = {(0, "n1"), (1, "n2")}
    made.audience = SimpleNamespace(offer=shown.append)  # type: ignore[assignment]
    made.rounds = Rounds(made)
    made.hangs = HangEnd({"placement": [], "hang_look": 60.0}, list)  # type: ignore[typeddict-item]
    return made


@pytest.mark.parametrize(
    "said",
    [
        {"kind": "line", "stream": "stdout", "text": "loss is fine", "skipped": 0},
        {"kind": "report", "values": {"loss": 0.0}},
    ],
)
def test_a_node_is_shown_for_its_own_ranks_only(
    head_job: HeadJob, shown: list[dict[str, Any]], said: dict[str, Any]
) -> None:
    """Else it could have a user believe what another node's rank never said."""
    n2: Any = SimpleNamespace(name="n2")
    head_job.on_message({**said, "rank": 0}, n2)
    head_job.on_message({**said, "rank": 7}, n2)
    assert shown == []
    head_job.on_message({**said, "rank": 1}, n2)
    assert shown == [{**said, "rank": 1}]


def test_job_timeout_does_not_begin_with_a_head_that_has_no_ranks(head_job: HeadJob) -> None:
    """Reproduced before: it reports at once that all of its ranks are there, and Slurm's queue took the job's time."""
    sent: list[dict[str, str]] = []
    head_job.unplaced, head_job.timeout_start = {"n2", "n3"}, None
    head_job.send_to_all = sent.append  # type: ignore[method-assign]
    head_job.on_message({"kind": "placed"})
    assert head_job.timeout_start is None and sent == []
    head_job.on_message({"kind": "placed"}, SimpleNamespace(name="n2"))  # type: ignore[arg-type]
    began = head_job.timeout_start
    assert began is not None and sent == []
    head_job.on_message({"kind": "placed"}, SimpleNamespace(name="n3"))  # type: ignore[arg-type]
    assert (head_job.timeout_start, sent) == (began, [{"kind": "all_placed"}])


def test_a_node_that_says_twice_that_its_ranks_are_there_keeps_no_round_away(head_job: HeadJob) -> None:
    """Else the round before would be forgotten in the pause, and the next one never begin."""
    sent: list[dict[str, str]] = []
    head_job.unplaced, head_job.timeout_start = {"n2"}, None
    head_job.send_to_all = sent.append  # type: ignore[method-assign]
    n2: Any = SimpleNamespace(name="n2")
    head_job.on_message({"kind": "placed"}, n2)
    head_job.rounds.last = last = {"state": "failed"}  # type: ignore[typeddict-item]
    head_job.on_message({"kind": "placed"}, n2)
    assert (sent, head_job.rounds.last) == ([{"kind": "all_placed"}], last)


@pytest.mark.parametrize(
    ("reason", "host", "silent", "looks"),
    [
        (reasons.signalled("SIGTERM", "ansible-playbook"), "", 61.0, True),
        (reasons.signalled("SIGINT", "ansible-playbook"), "", 61.0, True),
        (reasons.TERMINAL_CLOSED, "", 61.0, True),
        (reasons.signalled("SIGINT", "ansible-playbook"), "", 59.0, False),  # an ordinary one ends as quickly as ever
        (reasons.node_lost("n2", "its link ended"), "n2", 61.0, False),
        (reasons.rank_failed(1), "n2", 61.0, False),
        (reasons.hung(130.0), "", 130.0, True),
    ],
)
def test_ranks_of_a_silent_job_are_looked_at_before_a_person_ends_it(
    head_job: HeadJob, reason: Reason, host: str, silent: float, looks: bool
) -> None:
    sent: list[Any] = []
    head_job.ended, head_job.peers = False, [SimpleNamespace(send=sent.append)]  # type: ignore[list-item]
    job = SimpleNamespace(claim_end=lambda *_given: None)
    head_job.node_job = SimpleNamespace(job=job, end=lambda *given: sent.append(given))  # type: ignore[assignment]
    head_job.hangs.hear()
    head_job.hangs.heard -= silent  # type: ignore[operator]
    head_job.end(reason, host)
    assert sent == [{"kind": "end", "reason": reason.code, "detail": reason.detail, "looks": looks}, (reason, looks)]
