"""One rank dies, and others die of it on hosts whose clocks differ: the first one is blamed.

The cascades are real ones (tests/hangs/record_cascades.py), played with more ranks on more hosts, and faster: the load
was high when they were recorded. The clocks are made up.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.first_failure import is_consequence
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.result import Found, summarize
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes import remote_node
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import EndReason
from tests.unit.test_result import order_of

CASCADES = json.loads((Path(__file__).parents[1] / "hangs/cascades.json").read_text())
TIMES = 200
SKEW = 0.3  # seconds by which a clock is ahead of the head's, or behind it
START = 1_800_000_000.0
LATENCY = (0.0001, 0.004)  # seconds of one way; the two ways differ
# What victims say that catch the error, and what NCCL's watchdog says when it aborts.
OWN_WORDS = [("", None), ("saving what there is", None), ("Watchdog caught collective operation timeout", 6)]


class Clocks:
    """The clock of the head and of a node, which go on when a message is on its way."""

    def __init__(self, chance: random.Random, skew: float) -> None:
        self.chance, self.skew, self.now = chance, skew, START

    def time(self) -> float:
        return self.now

    def ask(self, *_question: object) -> dict[str, Any]:
        self.now += self.chance.uniform(*LATENCY)
        answer = self.now + self.skew
        self.now += self.chance.uniform(*LATENCY)
        return {"kind": "clock", "time": answer}


def measured(chance: random.Random, skew: float, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return by how much a clock is ahead of its own, as the head measures it."""
    clocks = Clocks(chance, skew)
    monkeypatch.setattr(remote_node, "time", clocks)
    node: Any = SimpleNamespace(remote=clocks)
    return remote_node.RemoteNode.measure_clock(node, 1.0).offset


def played(chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Any, str]:
    """Return the rank that died first in one cascade, what is said of the job, and what happened."""
    cascade = chance.choice(CASCADES)
    hosts = [f"n{number + 1}" for number in range(chance.choice([2, 4, 8]))]
    skews = {host: chance.uniform(-SKEW, SKEW) if host != "n1" else 0.0 for host in hosts}
    offsets = {host: measured(chance, skew, monkeypatch) if skew else 0.0 for host, skew in skews.items()}
    size, fast = 4 * len(hosts), chance.choice([1.0, 0.1, 0.05, 0.02])
    first = chance.randrange(size)
    victims = [row for rank, row in enumerate(cascade["ranks"]) if rank != cascade["culprit"]]
    rows = [cascade["ranks"][cascade["culprit"]] if rank == first else chance.choice(victims) for rank in range(size)]
    own = rows[first]["seconds"]  # victims end so long after that, more or less
    ends = [(own + (row["seconds"] - own) * chance.uniform(0.8, 1.2)) * fast for row in rows]
    heard = min(ends) + chance.uniform(0.01, 0.1)  # a node tells, and then each is told to end its part
    orders = {host: heard + chance.uniform(*LATENCY) for host in hosts}
    records: dict[int, Any] = {}
    lines = {}
    for host, group in itertools.groupby(range(size), lambda rank: hosts[rank // 4]):
        report: Any = {"records": {}, "launcher": {}, "evidence": []}
        for rank in group:
            row, ahead = rows[rank], START + skews[host]
            line, number = row["line"], row["signal"]
            if rank != first and chance.random() < 0.5:
                line, number = chance.choice(OWN_WORDS)
            times = {"started": ahead - 60, "ended": ahead + ends[rank]}
            ended_by_us = ends[rank] > orders[host]
            report["records"][rank] = {
                "rank": rank, "host": host, "rc": row["rc"], "signal": number, "finished": False, "error": "",
                "pid": rank + 1, "cpus": [], "local_rank": rank % 4, "ended_by_us": ended_by_us, **times,
            }  # fmt: skip
            lines[rank] = ("stderr", line)
        records.update(remote_node.in_head_time(remote_node.own_ranks_report(host, report), offsets[host])["records"])
    end: Any = {"reason": EndReason.RANK_FAILED, "detail": "", "at": START + heard}
    order: Any = order_of(*(hosts[rank // 4] for rank in range(size)))
    result = summarize(order, records, end, lines, {"rc": 1}, Found({}, {}, START - 60, START + 60))
    return first, result["first_failure"], cascade["kind"]


def test_the_first_of_a_cascade_is_blamed_whatever_the_clocks_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: at least 99 of 100."""
    chance = random.Random(19)
    wrong = []
    for _time in range(TIMES):
        first, told, kind = played(chance, monkeypatch)
        if told is None or told["rank"] != first:
            wrong.append((kind, first, told))
    assert len(wrong) <= TIMES // 100, wrong


def test_clocks_that_are_not_corrected_would_blame_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail."""
    chance = random.Random(19)
    monkeypatch.setattr(remote_node.RemoteNode, "measure_clock", lambda *_node: SimpleNamespace(offset=0.0))
    cascades = [played(chance, monkeypatch) for _time in range(TIMES)]
    assert sum(told["rank"] != first for first, told, _kind in cascades) > TIMES // 20


@pytest.mark.parametrize(
    ("number", "line", "follows"),
    [
        (6, "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3", True),
        (6, "what():  [gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1", True),
        (13, "Broken pipe", True),
        (None, "Connection closed by peer", True),
        (9, "Connection closed by peer", False),
        (11, "Connection reset by peer", False),
        (6, "double free or corruption", False),
    ],
    ids=["watchdog", "C++", "SIGPIPE", "Python", "SIGKILL", "SIGSEGV", "its own abort"],
)
def test_who_aborts_because_a_peer_is_gone_comes_last(number: int | None, line: str, follows: bool) -> None:
    """Who is killed, or crashes, may have printed such a line before."""
    ended: Any = {"signal": number}
    assert is_consequence(ended, line) == follows
