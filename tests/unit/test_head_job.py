"""A whole job, seen from the head: what one node says counts for its own ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head_job import HeadJob


@pytest.fixture
def shown() -> list[dict[str, Any]]:
    return []


@pytest.fixture
def head_job(shown: list[dict[str, Any]]) -> HeadJob:
    """A job of two nodes: rank 0 on n1, which is the head, rank 1 on n2."""
    made = object.__new__(HeadJob)
    made.order = {"host": "n1"}
    made.places = {(0, "n1"), (1, "n2")}
    made.audience = SimpleNamespace(offer=lambda **frame: shown.append(frame))  # type: ignore[assignment]
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
    head_job.on_message({**said, "rank": 0, "data": b""}, n2)
    head_job.on_message({**said, "rank": 7, "data": b""}, n2)
    assert shown == []
    head_job.on_message({**said, "rank": 1, "data": b""}, n2)
    assert shown == [{**said, "rank": 1}]
