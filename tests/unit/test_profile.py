"""A profiled job: what may be asked for, what a rank notes, and what is said of it; nonsense of a node is left out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.hooks import profile_note
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._slow import budget
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._slow.explanation import measured, slow_lines

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/result.schema.json").read_text())


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"profile": "10s"}, "10"),
        ({"profile": 2.5}, "2.5"),
        ({"profile": "10", "profile_ranks": [0, 3]}, "10:0,3"),
        ({"profile": "60 s", "profile_ranks": "all"}, "60"),
    ],
)
def test_what_is_asked_for_is_told_to_the_ranks(given: dict[str, Any], value: str) -> None:
    assert parse_request(given).profile.variables(4)[profile_note.VARIABLE][0] == value
    assert profile_note.asked(value, "3") == float(value.partition(":")[0])
    assert profile_note.asked(value, "1") == (0.0 if ":" in value else float(value))


@pytest.mark.parametrize("value", ["", "0", "61", "10m", "abc", True, -1, "1e1", "nan"])
def test_other_times_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match=r"profile: got .*; give seconds from 1 to 60: -e profile=10s"):
        parse_request({"profile": value})


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        ({"profile_ranks": [0]}, "it goes with profile: add -e profile=10s"),
        ({"profile": 1, "profile_ranks": "some"}, "give a list of ranks or the word all: -e profile_ranks=0,1"),
        ({"profile": 1, "profile_ranks": []}, "give at least one: -e profile_ranks=0,1"),
        ({"profile": 1, "profile_ranks": [4]}, "the ranks are 0 to 3: -e profile_ranks=all"),
    ],
)
def test_other_ranks_are_refused(given: dict[str, Any], allowed: str) -> None:
    with pytest.raises(InputError, match=f"profile_ranks: got .*; {allowed}"):
        parse_request(given).profile.variables(4)


def test_nothing_is_set_where_nothing_is_asked_for() -> None:
    assert parse_request({}).profile.variables(4) == {}
    assert profile_note.asked("nonsense", "0") == 0.0


def stack(*files: str) -> Any:
    """Return a frame with the frames that called it, the innermost first."""
    frame = None
    for file in reversed(files):
        frame = SimpleNamespace(f_code=SimpleNamespace(co_filename=file), f_back=frame)
    return frame


V = "/v/lib/python3.11/site-packages/"


@pytest.mark.parametrize(
    ("files", "runs", "part"),
    [
        (["train.py"], True, "own"),
        (["train.py"], False, "own_idle"),
        ([V + "torch/distributed/distributed_c10d.py", "torch/distributed/c10d_logger.py", "a.py"], False, "waiting"),
        ([V + "torch/autograd/graph.py", V + "torch/_tensor.py", "train.py"], True, "backward"),
        ([V + "torch/autograd/graph.py", V + "torch/_tensor.py", "train.py"], False, "waiting"),
        ([V + "torch/nn/functional.py", V + "torch/nn/modules/linear.py", "train.py"], True, "forward"),
        (["model.py", V + "torch/nn/modules/module.py", "train.py"], True, "forward"),
        (["data.py", V + "torch/utils/data/_utils/fetch.py", "train.py"], False, "data"),
        ([V + "torch/serialization.py", "train.py"], False, "checkpoint"),
        ([V + "torch/optim/sgd.py", "train.py"], True, "optimizer"),
        ([], True, "own"),
    ],
)  # fmt: skip
def test_a_stack_tells_what_a_rank_is_at(files: list[str], runs: bool, part: str) -> None:
    assert profile_note.part_of(stack(*files), runs) == part


def test_a_rank_without_the_profiler_has_a_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has no torch: nothing is imported for it."""
    monkeypatch.setattr(profile_note, "WARM_SECONDS", 0.0)
    monkeypatch.delitem(sys.modules, "torch.profiler", raising=False)
    profile_note.run(str(tmp_path), 0.2, 0)
    assert sum(json.loads((tmp_path / profile_note.BUDGET).read_text())["samples"].values()) > 0
    assert not (tmp_path / profile_note.TRACE).exists()
    profile_note.run(str(tmp_path / "not there"), 0.1, 0)  # the disk is full: no error


def written(run_dir: Path, rank: int, samples: Any, trace: bool = True) -> None:
    """Write what a rank leaves that was profiled."""
    place = run_dir / "ranks" / str(rank)
    place.mkdir(parents=True)
    (place / "budget.json").write_text(json.dumps({"seconds": 10.0, "samples": samples}))
    if trace:
        (place / "trace.json.gz").write_bytes(b"x")


def samples(**counts: int) -> dict[str, int]:
    return {**dict.fromkeys(profile_note.PARTS, 0), **counts}


def test_the_profile_is_told_and_its_traces_lie_in_one_place(tmp_path: Path) -> None:
    variables = [{"name": profile_note.VARIABLE, "value": "10:0,1,2"}]
    (tmp_path / "plan.json").write_text(json.dumps({"head": {"name": "n1"}, "environment": {"n1": variables}}))
    written(tmp_path, 0, samples(own=10, data=90))
    written(tmp_path, 1, samples(own=10, waiting=190), trace=False)
    written(tmp_path, 2, samples(own=-1))
    written(tmp_path, 3, samples(own=1))
    result: Any = {"ranks": [{"rank": rank, "host": "n1"} for rank in range(4)], "seconds": 20.0, "cause": None}
    told = measured(result, tmp_path)
    assert slow_lines(told) == [
        "what ranks spent 10 s on, in percent:",
        "  rank  own code  data  waiting",
        "     0        10    90        0",
        "     1         5     0       95",
        "profile: profile/rank-N.trace.json.gz of ranks 0,2",
        "profile: none from rank 1: no process group of PyTorch, too short a run, or too large a trace",
    ]
    assert (tmp_path / "profile" / "rank-0.trace.json.gz").read_bytes() == b"x"
    jsonschema.validate(told["profile"], {**SCHEMA["properties"]["profile"], "$defs": SCHEMA["$defs"]})
    assert json.loads((tmp_path / "result.json").read_text())["profile"] == told["profile"]
    assert measured(result, tmp_path)["profile"] == told["profile"]  # once more, as another playbook does


@pytest.mark.parametrize(
    "plan", ["", "[]", '{"environment": {}}', '{"environment": {"n1": [{"name": "A", "value": ""}]}}']
)
def test_a_run_that_was_not_to_be_profiled_has_no_profile(tmp_path: Path, plan: str) -> None:
    (tmp_path / "plan.json").write_text(plan)
    result: Any = {"ranks": [{"rank": 0, "host": "n1"}], "seconds": 20.0, "cause": None}
    told = measured(result, tmp_path)
    assert told["profile"] is None and told["skew"] is None and slow_lines(told) == []
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_rank_that_is_waited_for_may_spend_its_time_on_something() -> None:
    def row(rank: int, **shares: float) -> Any:
        return {"rank": rank, "shares": {**dict.fromkeys(profile_note.PARTS, 0.0), **shares}}

    rows = [row(0, waiting=0.5, data=0.02), row(1, data=0.45), row(2, waiting=0.4, data=0.04)]
    said = "it is slow in its data loader: 45 % of its time, the others 3 %"
    assert budget.more_than_others(rows, 1) == said
    assert (
        budget.more_than_others(rows, 0) == budget.more_than_others(rows, None) == budget.more_than_others([], 1) == ""
    )


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"seconds": 1e999}', '{"seconds": 10, "samples": {"own": 1}}', "[" * 9999]
)
def test_nonsense_is_no_budget(tmp_path: Path, text: str) -> None:
    (tmp_path / "budget.json").write_text(text)
    assert budget.read_budget(tmp_path / "budget.json") is None
