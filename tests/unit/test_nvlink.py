"""The NVLink fabric of GPUs, and the nodes that nvidia-imex is told.

The transcript has the form that NVIDIA's users show (NVIDIA/gpu-operator#2511; kubernetes-sigs/dra-driver-nvidia-gpu,
issues 626 and 630; Azure/azhpc-images#506): no machine here has such GPUs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.filter.imex_nodes import FilterModule
from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import nvlink
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.imex import imex_nodes

GB200 = (Path(__file__).parent / "recorded/nvidia-smi/query-gb200.txt").read_text()
CLUSTER = "6a130f54-faaa-4b8f-847f-be44ab70f917"
GOOD = {"state": "Completed", "status": "Success", "cluster": CLUSTER, "clique": "32766"}


def test_state_clique_and_health_are_read() -> None:
    assert nvlink.fabrics_in(GB200) == [
        {"address": "0008:01:00.0", **GOOD, "flaws": []},
        {
            "address": "0009:01:00.0",
            **GOOD,
            "flaws": ["Summary: Unhealthy", "Bandwidth: Degraded", "Route Unhealthy: True"],
        },
    ]


@pytest.mark.parametrize("text", ["", "No devices were found", "    Fabric\n        State : Completed\n"])
def test_other_output_has_no_fabric(text: str) -> None:
    assert nvlink.fabrics_in(text) == []


def test_a_gpu_without_a_fabric_has_no_row() -> None:
    lines = ["GPU 00000000:18:00.0", "    Fabric", "        State   : N/A", "        Status  : N/A"]
    assert nvlink.fabrics_in("\n".join(lines)) == []


@pytest.mark.parametrize(
    ("changed", "domain"),
    [
        ({}, f"{CLUSTER}/32766"),
        ({"cluster": "00000000-0000-0000-0000-000000000000", "clique": "0"}, ""),  # HGX: its switches are its own
        ({"cluster": ""}, ""),
        ({"clique": "many"}, ""),
        ({"state": "In Progress"}, ""),
        ({"status": "Insufficient Resources"}, ""),
    ],
)
def test_a_domain_is_what_gpus_share_with_other_nodes(changed: dict[str, str], domain: str) -> None:
    assert nvlink.domain_of({**GOOD, **changed}) == domain
    assert nvlink.domain([{**GOOD, **changed}] * 2) == domain


def test_gpus_of_several_cliques_have_no_domain() -> None:
    assert nvlink.domain([GOOD, {**GOOD, "clique": "2"}]) == nvlink.domain([GOOD, {**GOOD, "state": ""}]) == ""
    assert nvlink.domain([]) == ""


def test_nvidia_smi_is_asked_where_its_driver_is_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat {Path(__file__).parent}/recorded/nvidia-smi/query-gb200.txt\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert nvlink.fabrics(str(tmp_path)) == []
    (tmp_path / "sys/module/nvidia").mkdir(parents=True)
    assert len(nvlink.fabrics(str(tmp_path))) == 2


# --- IMEX -------------------------------------------------------------------------------------------------------------

RACK, OTHER = f"{CLUSTER}/32766", f"{CLUSTER}/2"
DOMAINS: dict[str, str | None] = {"n1": RACK, "n2": RACK, "n3": OTHER, "head": ""}
TEXT = "10.91.0.1\n10.91.0.2\n"


def published(host: int) -> dict[str, str]:
    fabric = {"nic": "eth0", "address": f"10.91.0.{host}", "network": "10.91.0.0/24"}
    return {"fabric.json": json.dumps(fabric), "fabric.env": ""}


FILES = {"n1": published(1), "n2": published(2), "n3": published(3), "head": published(9)}


def told(there: str = "", ours: str = "", **changed: Any) -> dict[str, Any]:
    return imex_nodes({**DOMAINS, **changed}, FILES, "n2", there, ours)


def test_imex_is_told_the_nodes_of_its_domain_in_the_order_of_the_inventory() -> None:
    assert told() == {"text": TEXT, "write": True, "refusal": "", "msg": ""}
    assert FilterModule().filters()["imex_nodes"](DOMAINS, FILES, "n1", "", "")["text"] == TEXT
    assert FilterModule().filters()["imex_nodes"](DOMAINS, FILES, "n1", "10.0.0.1\n", "") == told("10.0.0.1\n", "")
    assert imex_nodes(DOMAINS, FILES, "n3", "", "")["text"] == "10.91.0.3\n"


def test_a_second_run_writes_nothing() -> None:
    assert told(TEXT, TEXT)["write"] is False


def test_what_we_wrote_is_written_anew_when_the_domain_changes() -> None:
    assert told("10.91.0.1\n", "10.91.0.1\n")["write"] is True
    assert told("# put the nodes here\n\n", "")["write"] is True  # what a package brings


def test_what_the_operator_wrote_is_never_written() -> None:
    own = told("10.0.0.1\n10.0.0.2\n", "")
    assert own["write"] is False
    assert own["msg"] == (
        "nodes_config.cfg is not ours and stays; it names 10.0.0.1, 10.0.0.2, and the domain has 10.91.0.1, 10.91.0.2"
    )
    assert told(f"# by hand\n{TEXT}", "") == {"text": TEXT, "write": False, "refusal": "", "msg": ""}
    assert told("10.0.0.1\n", TEXT)["write"] is False  # changed by hand after us


def test_nodes_that_are_not_known_are_refused() -> None:
    assert told(n1=None)["refusal"] == "IMEX needs to know all nodes, and n1 was not asked: leave --limit out"
    limited = imex_nodes(DOMAINS, {**FILES, "n1": {}}, "n2", "", "")
    assert limited["refusal"].endswith("n1 was not asked: leave --limit out")
    without = imex_nodes(DOMAINS, {**FILES, "n1": {"fabric.json": ""}}, "n2", "", "")
    assert without["refusal"] == "no network was chosen on n1: ansible-playbook setup.yml --tags fabric"
    hostile = imex_nodes(DOMAINS, {**FILES, "n1": {"fabric.json": '{"address": "x; reboot"}'}}, "n2", "", "")
    assert hostile["write"] is False and "no network was chosen on n1" in hostile["refusal"]
