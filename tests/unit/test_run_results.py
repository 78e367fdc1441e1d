"""The figures of verify's runs, from files that nodes had a hand in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import run_results
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

METRICS = {"busbw_gbps": 1.5, "reduced_gb": 0.2, "nic_sent_gb": 0.3, "rdma_sent_gb": 0.0}


def run(directory: Path, result: Any, backend: str = "gloo", **outputs: str) -> dict[str, Any]:
    (directory / "result.json").write_text(json.dumps(result))
    for rank, text in outputs.items():
        (directory / "ranks" / rank[1:]).mkdir(parents=True)
        (directory / "ranks" / rank[1:] / "stdout").write_text(text)
    return {"launcher": "torchrun", "backend": backend, "failed": False, "run_dir": str(directory), "in_image": False}


def test_figures_of_a_run(tmp_path: Path) -> None:
    (found,) = run_results.speeds_of([run(tmp_path, {"metrics": METRICS, "world_size": 4})])
    assert (found.busbw, found.reduced, found.nic_sent, found.rdma_sent, found.world_size) == (1.5, 0.2, 0.3, 0.0, 4)
    assert found.device == "cpu" and found.carrier == "NIC"


def test_nccl_tells_its_transport_on_any_rank(tmp_path: Path) -> None:
    line = "n1:1:2 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[0] [send] via NET/Socket/0"
    given = run(tmp_path, {"metrics": METRICS, "world_size": 2}, "nccl", r0="", r1=line)
    assert run_results.speeds_of([given])[0].carrier == "Socket"


@pytest.mark.parametrize(
    "result",
    [
        [],
        {},
        {"metrics": {}, "world_size": 2},
        {"metrics": {"busbw_gbps": "fast"}, "world_size": 2},
        {"metrics": {"busbw_gbps": float("inf")}, "world_size": 2},
        {"metrics": {"busbw_gbps": -1}, "world_size": 2},
        {"metrics": {"busbw_gbps": True}, "world_size": 2},
        {"metrics": METRICS, "world_size": "many"},
    ],
)
def test_a_run_without_sound_figures_is_left_out(tmp_path: Path, result: Any) -> None:
    assert run_results.speeds_of([run(tmp_path, result)]) == []


def test_a_run_that_failed_or_left_nothing_has_no_figures(tmp_path: Path) -> None:
    gone = {
        "launcher": "torchrun",
        "backend": "gloo",
        "failed": False,
        "run_dir": str(tmp_path / "none"),
        "in_image": False,
    }
    assert run_results.speeds_of([gone, {**gone, "failed": True}]) == []


def test_a_baseline_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert run_results.read_baseline("verify_baseline", str(tmp_path / "none.json")) == {}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"busbw_gbps": 3}', "x" * 100, "[" * 100_000])
def test_a_file_that_is_no_baseline_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "b.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"verify_baseline: got .*it is no baseline: remove the file"):
        run_results.read_baseline("verify_baseline", str(path))


def test_a_baseline_keeps_only_numbers(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text('{"busbw_gbps": {"a": 1, "b": "x", "c": -2}}')
    assert run_results.read_baseline("verify_baseline", str(path)) == {"a": 1.0}
