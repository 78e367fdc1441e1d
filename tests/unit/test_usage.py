"""What usage tells: the check of what a node sends, figures, findings by their codes, and how they are shown."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head import result
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import run_usage
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import BadFrame
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.usage import BUCKETS_MOST, USAGE
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.usage.usage_figures import OfRank, figures_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.usage.usage_findings import RULES, findings_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import record_forms
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.usage_view import usage_lines
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.files import read_json
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.page import report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.reading import read_run
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.tensorboard import event_files
from tests.unit.report_pages import RECORDED, checked

GIB = float(1 << 30)
SCHEMA = Path(__file__).parents[2] / "docs" / "result.schema.json"


def flat(*values: float | None) -> dict[str, list[float | None]]:
    return {name: list(values) for name in ("least", "mean", "most")}


def usage_of(**changed: Any) -> Any:
    """Return the usage of a node with two cores and 10 Gbit/s on which nothing is wrong."""
    series = {
        **{"cpu": flat(None, 1.0, 1.5, 1.0), "memory": flat(2 * GIB, 3 * GIB), "available": flat(12 * GIB)},
        **{"swap": flat(0.0), "shm": flat(0.1 * GIB), "steal": flat(0.0), "tx.eth0": flat(0.0, 9e8, 1.1e8)},
    }
    limits = {"cpu": 2.0, "memory": 16 * GIB, "available": 16 * GIB, "shm": 8 * GIB, "tx.eth0": 1.25e9}
    given = {"series": {**series, **changed.pop("series", {})}, "limits": {**limits, **changed.pop("limits", {})}}
    whole = {"began": 1e9, "bucket": 1.0, "samples": 9, "cost": 0.01, "cores": 2, "nic": "eth0", "waited": {"0": 0.01}}
    return {**whole, **given, **changed}


def test_what_a_sampler_writes_passes() -> None:
    usage = usage_of()
    assert USAGE(copy.deepcopy(usage)) == usage
    report = {"records": {}, "lines": {}, "leftovers": [], "launcher": {}, "metrics": [], "usage": usage}
    assert record_forms.REPORT(report)["usage"] == usage
    assert record_forms.REPORT({**report, "usage": None})["usage"] is None  # of a node with nothing to tell


@pytest.mark.parametrize(
    "lie",
    [
        {"samples": -1},
        {"cores": 0},
        {"cores": 10**6},
        {"began": -5},
        {"bucket": float("inf")},
        {"bucket": 1e18},
        {"nic": "eth0; rm"},
        {"nic": None},
        {"series": {"cpu": flat(float("nan"))}},
        {"series": {"cpu": flat(-1.0)}},
        {"series": {"cpu": flat(1e30)}},
        {"series": {"cpu": flat(*[1.0] * (BUCKETS_MOST + 1))}},
        {"series": {"cpu": {**flat(1.0), "most": []}}},
        {"series": {"cpu": {**flat(1.0), "most": [None]}}},
        {"series": {"cpu": 5}},
        {"series": {"<script>": flat(1.0)}},
        {"series": {f"gpu.{number}": flat(1.0) for number in range(200)}},
        {"limits": {"cpu": True}},
        {"limits": {"cpu": "2"}},
        {"waited": {"-1": 0.5}},
        {"waited": [0.5]},
    ],
)
def test_nonsense_of_a_node_is_refused(lie: dict[str, Any]) -> None:
    with pytest.raises((BadFrame, ValueError, OverflowError)):
        USAGE(usage_of(**lie))


@pytest.mark.parametrize(
    ("ranks", "series"),
    [
        ([OfRank((0,), 1.0, 1 << 61)], {}),
        ([OfRank((0,), 1e18, 1), OfRank((1,), 1e18, 1)], {}),
        ([OfRank(range(8192), 1.0, 1), OfRank(range(8192, 16384), 1.0, 1)], {}),
        ([OfRank((0,), 1.0, 1)], {f"gpu.{number}": flat(1.0) for number in range(65)}),
        ([OfRank((0,), None, 1)], {"cpu": flat(1e18)}),
    ],
    ids=["memory", "CPU time", "cores", "GPUs", "CPU"],
)
def test_no_node_can_have_the_result_of_all_refused(ranks: list[OfRank], series: dict[str, Any]) -> None:
    """Reproduced before: its values passed at the head, and the figures made of them were refused by the controller."""
    figures = figures_of(ranks, usage_of(series=series), 10.0)
    assert run_usage.RUN_USAGE({"nodes": {"n1": figures}, "findings": []})["nodes"]["n1"] == figures


def test_a_large_cluster_has_a_usage_that_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reproduced before: of 16 nodes with 8 GPUs and 8 RDMA ports each it was too large for a report."""
    job = JobDir(str(tmp_path))
    long = {f"gpu.{number}": flat(*[0.123456789] * BUCKETS_MOST) for number in range(62)}
    monkeypatch.setattr(result, "write_in_thread", lambda write: write())  # which waits for a second only
    result.keep_usage(job, {f"n{number}": usage_of(series=long) for number in range(64)})
    assert len(read_json(tmp_path / "usage.json").of("nodes").value) == 64


def test_the_figures_of_a_node() -> None:
    ranks = [OfRank([0], 6.0, 1 << 30), OfRank([0, 1], 4.0, 2 << 30)]
    found = figures_of(ranks, usage_of(), 10.0)
    assert found is not None
    assert (found["cores"], found["cpu_seconds"], found["cpu_efficiency"]) == (2, 10.0, 0.5)
    assert (found["memory_peak"], found["memory_total"], found["nic"]) == (3 * GIB, 16 * GIB, "eth0")
    assert (found["nic_mean"], found["nic_peak"], found["nic_rate"]) == (pytest.approx(3.3667e8, rel=1e-4), 9e8, 1.25e9)
    lost = figures_of([OfRank([0, 1], None, None)], usage_of(), 10.0)  # its wrapper died: what was sampled counts
    assert lost is not None and lost["cpu_seconds"] == pytest.approx(11.667)
    short = figures_of(ranks, None, 0.2)
    assert short is not None and short["memory_peak"] == 2 * GIB and short["samples"] == 0
    assert figures_of([], None, 1.0) is None
    assert run_usage.RUN_USAGE({"nodes": {"n1": found}, "findings": []})["nodes"]["n1"] == found


def test_an_rdma_port_is_named_if_it_carries_more() -> None:
    usage = usage_of(series={"rdma_rx.mlx5_0:1": flat(5e9)}, limits={"rdma_rx.mlx5_0:1": 12.5e9})
    found = figures_of([], usage, 1.0)
    assert found is not None and (found["nic"], found["nic_rate"]) == ("mlx5_0:1", 12.5e9)


STRANGE = {
    "network_busy": {"series": {"tx.eth0": flat(1.14e9, 1.13e9, 0.0)}},
    "swapping": {"series": {"swap": flat(5e7, 0.0)}},
    "memory_low": {"series": {"available": flat(12 * GIB, 1.5 * GIB)}},
    "shm_low": {"series": {"shm": flat(7.5 * GIB)}},
    "cpu_contended": {"waited": {"0": 0.45, "1": 0.5, "3": 0.4}},
    "cpu_stolen": {"series": {"steal": flat(0.5)}},
    "gpu_throttled": {"series": {"gpu_throttled.0": flat(0.0), "gpu_throttled.1": flat(1.0, 0.0)}},
    "gpus_idle": {"series": {"gpu.0": flat(0.04)}},
}
SAID = {
    "network_busy": "the network is full: eth0 sends at 9.08 of 10 Gbit/s, 67% of the time",
    "swapping": "it swaps: 47.7 MiB/s, 50% of the time",
    "memory_low": "memory is nearly full: 1.5 GiB of 16 GiB were left",
    "shm_low": "/dev/shm is nearly full: 7.5 GiB of 8 GiB",
    "cpu_contended": "ranks 0-1, 3 wait for a CPU, up to 50% of the time: more threads want to run than there are CPUs",
    "cpu_stolen": "the hypervisor gives 25% of its CPUs to others",
    "gpu_throttled": "heat or the power supply slows GPU 1 down, up to 50% of the time",
    "gpus_idle": "its GPUs work 4% of the time, its CPUs 58%: data or preprocessing holds them up",
}


@pytest.mark.parametrize("code", RULES)
def test_what_is_strange_has_its_code_and_nothing_else_has(code: str) -> None:
    found = findings_of({"n1": usage_of(), "n2": usage_of(**copy.deepcopy(STRANGE[code]))}, "nccl")
    assert found == [{"code": code, "host": "n2", "text": SAID[code]}]
    hurried = usage_of(**copy.deepcopy(STRANGE[code]), samples=4)
    assert findings_of({"n2": hurried}, "nccl") == []


def test_idle_gpus_of_a_job_that_uses_none_are_no_finding() -> None:
    assert findings_of({"n1": usage_of(**copy.deepcopy(STRANGE["gpus_idle"]))}, "gloo") == []


def test_every_code_is_documented() -> None:
    schema = json.loads(SCHEMA.read_text())["properties"]["usage"]["properties"]["findings"]["items"]
    documented = (SCHEMA.parent / "report.md").read_text()
    assert tuple(RULES) == tuple(run_usage.FindingCode) == tuple(schema["properties"]["code"]["enum"])
    assert [code for code in RULES if f"`{code}`" not in documented] == []


def test_the_closing_lines_tell_what_was_used() -> None:
    figures = figures_of([OfRank([0, 1], 10.0, 1 << 30)], usage_of(), 10.0)
    assert figures is not None
    finding: Any = {"code": "swapping", "host": "n1", "text": SAID["swapping"]}
    lines = usage_lines({"nodes": {"n1": figures}, "findings": [finding, {**finding, "host": "n2"}]})
    assert lines == [
        "used on n1: CPU 50% of 2 cores, memory 3 GiB of 16 GiB, eth0 2.69 Gbit/s, peak 7.2 of 10",
        "! n1: it swaps: 47.7 MiB/s, 50% of the time; also on n2",
    ]
    many: Any = {f"n{number}": {**figures, "cpu_efficiency": number / 10} for number in range(1, 10)}
    (line,) = usage_lines({"nodes": many, "findings": []})
    assert line.startswith("used on 9 nodes: CPU 50% (10% on n1 to 90% on n9), memory 3 GiB, network 2.69 Gbit/s")
    assert usage_lines({"nodes": {"n1": {**figures, "samples": 0}}, "findings": []}) == []  # too short to say anything


@pytest.mark.parametrize("nodes", [2, 64])
def test_a_report_has_lanes_of_the_nodes_and_stays_small(tmp_path: Path, nodes: int) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    recorded = json.loads((RECORDED / "two-nodes" / "result.json").read_text())
    hosts = [f"n{number}" for number in range(1, nodes + 1)]
    ranks = [{**recorded["ranks"][0], "rank": rank, "host": host} for rank, host in enumerate(hosts)]
    strange = hosts[-1]
    finding = {"code": "swapping", "host": strange, "text": "it <b>swaps</b>"}
    result = {**recorded, "ranks": ranks, "placement": [], "usage": {"nodes": {}, "findings": [finding]}}
    (run_dir / "result.json").write_text(json.dumps(result))
    long = {
        "gpu.0": flat(*[0.5] * BUCKETS_MOST),
        "swap": flat(*[1e6] * BUCKETS_MOST),
        "cpu": flat(*[1.0] * BUCKETS_MOST),
    }
    usage = {host: usage_of(series=long, began=1.79e9) for host in hosts}
    (run_dir / "usage.json").write_text(json.dumps({"nodes": usage}))
    page = checked(report(read_run(run_dir)))
    assert "What the ranks took" in page.text and f"! {strange}: it <b>swaps</b>" in page.text
    assert "1, peak 1 of 2 cores" in page.text and "3 GiB of 16 GiB" in page.text
    assert "eth0" in page.text and "1 GPU" in page.text
    assert ("48 more nodes: usage.json has them all" in page.text) == (nodes == 64)
    assert f"CPU of {strange}" in page.text and (f"CPU of n{nodes // 2}" in page.text) == (
        nodes == 2
    )  # not in the middle


def test_a_report_stands_whatever_a_node_wrote_of_its_usage(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "result.json").write_text((RECORDED / "two-nodes" / "result.json").read_text())
    (run_dir / "usage.json").write_text(json.dumps({"nodes": {"n1": usage_of(cores=0), "n2": usage_of(), "n3": 5}}))
    run = read_run(run_dir)
    assert [row.host for row in run.taken] == ["n2"]
    assert [text for text in run.missing if text.startswith("usage.json: n1: ")]
    checked(report(run))
    outside = {"x/../../../outside": usage_of(), "\x1b[2J": usage_of(), "n9\0": usage_of(), "n2": usage_of()}
    (run_dir / "usage.json").write_text(json.dumps({"nodes": {**outside, "stranger": usage_of()}}))
    run = read_run(run_dir)
    assert [row.host for row in run.taken] == ["n2", "stranger"] and not any("\x1b" in text for text in run.missing)
    assert [name.partition("/")[0] for name in event_files(run)] == ["node-n2"]
    (run_dir / "usage.json").write_text("nonsense")
    assert "usage.json: no JSON" in read_run(run_dir).missing
    (run_dir / "usage.json").unlink()
    assert not [text for text in read_run(run_dir).missing if "usage" in text]
