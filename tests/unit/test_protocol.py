"""The types of messages, records and results are what is sent, checked and documented, as far as mypy cannot see."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import (
    job_rows,
    orders,
    records,
    run_usage,
    usage,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import (
    frames,
    node_form,
    protocol,
    record_forms,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._causes import explanation as causes
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._slow import explanation as slow

PLUGINS = Path(__file__).parents[2] / "plugins"
LAUNCH = PLUGINS / "plugin_utils" / "_launch"
RUNTIME = PLUGINS / "module_utils" / "_runtime"
ASKERS = ("connection.py", "session.py", "turn.py", "data_sending.py")  # of the head, on the controller
SENDERS = [*RUNTIME.rglob("*.py"), *(LAUNCH / name for name in ASKERS)]
TYPES = {"protocol.py", "file_messages.py", "queue_messages.py", "frames.py"}  # which send nothing


def fields(message: Any) -> set[str]:
    return set(message.__required_keys__ | message.__optional_keys__)


def kinds(messages: Any) -> list[str]:
    """Return the kinds of the messages of a direction."""
    return [get_args(get_type_hints(message)["kind"])[0] for message in get_args(messages)]


@pytest.mark.parametrize(
    ("readers", "messages"),
    [
        (frames.FROM_HEAD, protocol.FromHead),
        (frames.FROM_NODE, protocol.FromNode),
        (frames.FROM_FOLLOWER, protocol.FromFollower),
    ],
    ids=["from the head", "from a node", "from a follower"],
)
def test_every_kind_has_its_reader(readers: dict[str, Any], messages: Any) -> None:
    """What a reader returns mypy compares with the type; that it stands under the kind of that, it cannot."""
    returned = {kind: get_type_hints(reader)["return"] for kind, reader in readers.items()}
    assert {kind: get_args(get_type_hints(message)["kind"])[0] for kind, message in returned.items()} == {
        kind: kind for kind in kinds(messages)
    }


@pytest.mark.parametrize("messages", [protocol.ToHead, protocol.FromHead, protocol.ToNode, protocol.FromNode])
def test_no_kind_is_of_two_types(messages: Any) -> None:
    assert len(set(kinds(messages))) == len(get_args(messages))


@pytest.mark.parametrize(
    ("checked", "kept"),
    [
        (set(node_form.FACTS), records.NodeFacts),
        (record_forms.RECORD.names | {"signal", "leftovers"}, records.RankRecord),  # which record() checks itself
        (record_forms.REPORT.names, records.NodeReport),
        (usage.USAGE.names, usage.NodeUsage),
        (usage.SERIES.names, usage.Series),
        (run_usage.RUN_USAGE.names, run_usage.Usage),
        (run_usage.FIGURES.names, run_usage.NodeFigures),
        (record_forms.LAUNCHER.names, records.LauncherExit),
        (record_forms.LEFTOVER.names, records.Leftover),
        (record_forms.WAITING.names, job_rows.WaitingRun),
        (record_forms.JOB_ROW.names, job_rows.JobRow),
        (record_forms.AHEAD.names, job_rows.Ahead),
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
        (USAGE, run_usage.Usage),
        (USAGE["properties"]["nodes"]["additionalProperties"], run_usage.NodeFigures),
        (USAGE["properties"]["findings"]["items"], run_usage.Finding),
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


def sent(path: Path) -> Iterator[str]:
    """Yield the kind of each message that a file makes."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield from (word.value.value for word in node.keywords if word.arg == "kind" and is_text(word.value))
        if isinstance(node, ast.Dict):
            named = [value for key, value in zip(node.keys, node.values, strict=True) if is_text(key, "kind")]
            yield from (value.value for value in named if is_text(value))


def is_text(node: ast.AST | None, text: str = "") -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and (not text or node.value == text)


def test_every_kind_is_sent() -> None:
    """What is sent is of one of the types, as mypy sees; the other way it does not."""
    there = {kind for path in SENDERS if path.name not in TYPES for kind in sent(path)}
    made = {"ending", "end"}  # by functions of protocol.py
    directions = (protocol.ToHead, protocol.FromHead, protocol.ToNode, protocol.FromNode)
    assert {kind for messages in directions for kind in kinds(messages)} - made <= there
