"""The table of messages is what is sent, checked and answered: no kind and no field is in one of them alone."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import (
    frames,
    node_form,
    orders,
    protocol,
    records,
    usage,
    usage_figures,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.channel import Channel
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.supervisor import Supervisor
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes import explanation as causes
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._slow import explanation as slow

PLUGINS = Path(__file__).parents[2] / "plugins"
LAUNCH = PLUGINS / "plugin_utils" / "_launch"
ASKERS = ("connection.py", "session.py", "turn.py", "data_sending.py")  # of the head, on the controller
SENDERS = [*(PLUGINS / "module_utils" / "_runtime").glob("*.py"), *(LAUNCH / name for name in ASKERS)]
TABLES = (
    *(protocol.CONTROLLER_TO_HEAD, protocol.HEAD_TO_CONTROLLER, protocol.HEAD_TO_NODE, protocol.NODE_TO_HEAD),
    *(protocol.SUPERVISOR_TO_GUARD, protocol.GUARD_TO_SUPERVISOR),
)
# Who sends in one direction only. The supervisor is head and node, and its guard's messages go on to the head.
DIRECTIONS = {
    **dict.fromkeys(ASKERS, (protocol.CONTROLLER_TO_HEAD,)),
    "remote_node.py": (protocol.HEAD_TO_NODE,),
    "guard.py": (protocol.GUARD_TO_SUPERVISOR,),
}
# Read by whoever is at work with the other end: shipping, staging, or running a job.
READ_ELSEWHERE = {
    *("file", "files_sent", "start", "unstage", "all_placed", "start_daemon", "all_done", "end", "beat"),
}


def fields(message: Any) -> set[str]:
    return set(message.__required_keys__ | message.__optional_keys__)


@pytest.mark.parametrize(
    ("checks", "table"),
    [(frames.FROM_HEAD, protocol.HEAD_TO_CONTROLLER), (frames.FROM_NODE, protocol.NODE_TO_HEAD)],
    ids=["from the head", "from a node"],
)
def test_what_is_checked_is_what_the_table_has(checks: dict[str, dict[str, Any]], table: dict[str, Any]) -> None:
    assert {kind: set(checked) for kind, checked in checks.items()} == {kind: fields(table[kind]) for kind in table}


@pytest.mark.parametrize(
    ("checked", "kept"),
    [
        (set(node_form.FACTS), records.NodeFacts),
        (frames.RECORD.names | {"signal", "leftovers"}, records.RankRecord),  # which record() checks itself
        (frames.REPORT.names, records.NodeReport),
        (usage.USAGE.names, usage.NodeUsage),
        (usage.SERIES.names, usage.Series),
        (usage_figures.RUN_USAGE.names, records.Usage),
        (usage_figures.FIGURES.names, usage_figures.NodeFigures),
        (frames.LAUNCHER.names, records.LauncherExit),
        (frames.LEFTOVER.names, records.Leftover),
        (frames.WAITING.names, records.WaitingRun),
        (frames.JOB_ROW.names, records.JobRow),
        (frames.AHEAD.names, records.Ahead),
        (node_form.CHOICE.names, records.Fabric),
        (node_form.PORT.names, records.Port),
    ],
    ids=[
        "facts",
        "record",
        "report",
        "usage of a node",
        "series",
        "usage",
        "figures",
        "launcher",
        "leftover",
        "waiting run",
        "row of a job",
        "job ahead",
        "fabric",
        "port",
    ],
)
def test_what_a_node_tells_is_what_its_type_has(checked: set[str], kept: Any) -> None:
    assert checked == fields(kept)


RESULT = json.loads((PLUGINS.parent / "docs" / "result.schema.json").read_text())
SKEW, PROFILE = (RESULT["properties"][name]["oneOf"][1] for name in ("skew", "profile"))
PLACE = RESULT["properties"]["placement"]["items"]
USAGE = RESULT["properties"]["usage"]
LATE = {"cause", "checkpoint", "skew", "profile"}  # which no node tells


@pytest.mark.parametrize(
    ("documented", "kept"),
    [
        (RESULT, records.Result),
        (PLACE, records.ResultPlace),
        (PLACE["properties"]["seen"], records.Seen),
        (RESULT["properties"]["ranks"]["items"], records.ResultRank),
        (RESULT["properties"]["first_failure"]["oneOf"][1], records.FirstFailure),
        (RESULT["properties"]["leftovers"]["additionalProperties"]["items"], records.Leftover),
        (RESULT["properties"]["launcher"], orders.UsedLauncher),
        (RESULT["properties"]["notes"]["items"], records.Note),
        (RESULT["properties"]["cause"]["oneOf"][1], causes.Cause),
        (RESULT["properties"]["checkpoint"]["oneOf"][1], causes.Interval),
        (USAGE, records.Usage),
        (USAGE["properties"]["nodes"]["additionalProperties"], usage_figures.NodeFigures),
        (USAGE["properties"]["findings"]["items"], usage_figures.Finding),
        (SKEW, slow.ToldSkew),
        (SKEW["properties"]["ranks"]["items"], slow.RankSkew),
        (PROFILE, slow.ToldProfile),
        (PROFILE["properties"]["budget"]["items"], slow.RankBudget),
    ],
    ids=[
        "result",
        "place",
        "seen",
        "rank",
        "first failure",
        "leftover",
        "launcher",
        "note",
        "cause",
        "checkpoint",
        "usage",
        "figures",
        "finding",
        "skew",
        "its rank",
        "profile",
        "budget",
    ],
)
def test_the_type_of_a_result_is_its_schema(documented: dict[str, Any], kept: Any) -> None:
    late = LATE if documented is RESULT else set()
    there = {name: row for name, row in documented["properties"].items() if name not in late}
    assert set(there) == set(documented["required"]) == fields(kept)
    nullable = {name for name, row in there.items() if takes_null(row)}
    assert {name for name, kind in get_type_hints(kept).items() if type(None) in get_args(kind)} == nullable


def test_the_controller_adds_the_cause_and_why_it_was_slow() -> None:
    assert set(RESULT["properties"]) == fields(slow.MeasuredResult)


def takes_null(row: dict[str, Any]) -> bool:
    """Whether a value in the schema may be null."""
    kinds = row.get("type", [])
    return "null" in kinds or None in row.get("enum", ()) or any(map(takes_null, row.get("oneOf", ())))


def sent(path: Path) -> Iterator[tuple[str, str, set[str], bool]]:
    """Yield place, kind and fields of each message that a file sends, and whether it has no others."""
    for call in ast.walk(ast.parse(path.read_text())):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args:
            kind = call.args[0]
            if call.func.attr in ("send", "offer", "expect", "ask", "send_to_all") and isinstance(kind, ast.Constant):
                names = {word.arg for word in call.keywords if word.arg}
                yield f"{path.name}:{call.lineno}", kind.value, names, all(word.arg for word in call.keywords)


def test_what_is_sent_is_in_the_table() -> None:
    kinds = set()
    for path in SENDERS:
        for place, kind, given, whole in sent(path):
            known = [table[kind] for table in DIRECTIONS.get(path.name, TABLES) if kind in table]
            assert any(given <= fields(message) | {"beats"} for message in known), f"{place}: {kind} has no {given}"
            complete = [message for message in known if message.__required_keys__ <= given]
            assert complete or not whole, f"{place}: {kind} is sent with {given} only"
            kinds.add(kind)
    later = {"survey", "line", "report"}  # built of values
    assert {kind for table in TABLES for kind in table} - later == kinds - later


def test_the_supervisor_answers_what_may_be_asked_for() -> None:
    asked = {*protocol.CONTROLLER_TO_HEAD, *protocol.HEAD_TO_NODE}
    assert set(Supervisor(Channel(*os.pipe())).handlers) == asked - READ_ELSEWHERE
