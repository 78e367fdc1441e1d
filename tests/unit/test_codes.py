"""Codes are enums for programs, and plain texts in files, messages and sentences."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.unreached import UnreachedCode
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import VerdictCode
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.codes import Code, known
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import BadFrame
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import (
    STATES,
    EndReason,
    NoteCode,
    RankError,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.run_usage import FindingCode
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.frames import (
    FROM_FOLLOWER,
    FROM_NODE,
    checked,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.record_forms import record
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.rails import RailCode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.rejections import RejectionCode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._slow.skew import SkewCode

PLUGINS = Path(__file__).parents[2] / "plugins"
DOCS = PLUGINS.parent / "docs"
RECORD = {"rank": 0, "local_rank": 0, "host": "n1", "wrapper_pid": 1, "cpus": [], "started": 1.0, "ended": 2.0}


ALL = (EndReason, RankError, NoteCode, FindingCode, UnreachedCode, RejectionCode, RailCode, VerdictCode, SkewCode)


@pytest.mark.parametrize("codes", ALL)
def test_a_code_is_written_as_its_text(codes: type[Code]) -> None:
    for code in codes:
        texts = [str(code), f"{code}", format(code), json.loads(json.dumps(code))]
        assert texts == [code.value] * 4 and {type(text) for text in texts} == {str}
        assert json.dumps({"a": code}) == json.dumps({"a": code.value})
        assert {code.value: 1}[code] == 1


def test_what_is_no_code_is_known_as_none() -> None:
    assert known(EndReason, "lost") is EndReason.LOST
    assert [known(EndReason, text) for text in ("LOST", "", None, 1, ["lost"], "lost\n")] == [None] * 6
    assert known(RankError, "") is RankError.NONE and not RankError.NONE


def test_the_border_makes_codes_of_texts_and_refuses_others() -> None:
    for kind, accepted in (("ending", FROM_NODE), ("end", FROM_FOLLOWER)):
        said = {"kind": kind, "reason": "launcher_died", "detail": ""}
        assert checked(said, accepted)["reason"] is EndReason.LAUNCHER_DIED
        for bad in ("succeeded", "", None, 1, []):
            with pytest.raises(BadFrame, match="one of timed_out, cancelled"):
                checked({**said, "reason": bad}, accepted)
    assert record({**RECORD, "error_code": "disk_full"})["error_code"] is RankError.DISK_FULL
    with pytest.raises(BadFrame):
        record({**RECORD, "error_code": "lost"})


def test_every_reason_has_a_state() -> None:
    assert set(STATES) == set(EndReason)


def test_every_end_has_its_sentence_in_one_file() -> None:
    elsewhere = [
        path.name
        for path in PLUGINS.rglob("*.py")
        if path.name != "reasons.py" and re.search(r"\bReason\(\s*EndReason\.", path.read_text())
    ]
    assert elsewhere == []


@pytest.mark.parametrize(
    ("codes", "page"),
    [(NoteCode, "read-a-run.md"), (SkewCode, "why-it-is-slow.md"), (VerdictCode, "why-it-hangs.md")],
)
def test_every_code_is_documented(codes: type[Code], page: str) -> None:
    told = (DOCS / page).read_text()
    assert [code for code in codes if f"`{code}`" not in told] == []


def test_the_schema_has_every_code() -> None:
    rows = json.loads((DOCS / "result.schema.json").read_text())["properties"]
    assert list(NoteCode) == rows["notes"]["items"]["properties"]["code"]["enum"]
    assert list(SkewCode) == rows["skew"]["oneOf"][1]["properties"]["code"]["enum"]
