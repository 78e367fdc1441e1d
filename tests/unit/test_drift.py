"""Drift: one table, a digest per node and of all, and what each difference weighs."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift import (
    PROPERTIES,
    Drift,
    compare,
    drift_findings,
    drift_report,
    drift_table,
    rule_id,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift_values import (
    gpus_text,
    memory_text,
    versions_of,
)

RECORDED = json.loads((Path(__file__).parent / "recorded/node_facts.json").read_text())
HERE = versions_of(RECORDED["localhost"], "")


def cluster(*changes: dict[str, str]) -> Drift:
    """Return the drift of as many nodes like this machine, each changed so."""
    versions = {f"n{number}": {**HERE, **change} for number, change in enumerate(changes, 1)}
    return compare(versions, list(versions))


def severities(drift: Drift) -> dict[str, str]:
    return {row.name: row.severity for row in drift.rows if row.severity}


def test_equal_nodes_do_not_differ() -> None:
    drift = cluster({}, {}, {})
    assert severities(drift) == {}
    assert len(set(drift.digests.values())) == 1
    assert drift_findings(drift) == []


def test_a_node_alone_does_not_differ() -> None:
    assert severities(cluster({})) == {}


def test_real_nodes_of_one_image_do_not_differ() -> None:
    versions = {name: versions_of(RECORDED[name], "") for name in ("n1", "n2")}
    assert severities(compare(versions, versions)) == {}


@pytest.mark.parametrize(
    ("name", "first", "second", "severity"),
    [
        ("arch", "x86_64", "aarch64", "error"),
        ("image", "1721a9ca67e5e983", "bbbb", "error"),
        ("image", "1721a9ca67e5e983", "", "error"),
        ("os", "debian 12", "debian 13", "info"),
        ("kernel", "6.1.0", "6.12.0", "info"),
        ("libc", "glibc 2.36", "glibc 2.41", "warning"),
        ("base_python", "3.11.2", "3.13.5", "warning"),
        ("base_python", "3.11.2", "3.11.7", "info"),
        ("python", "3.11.2", "3.13.5", "warning"),
        ("python", "3.11.2", "3.11.7", "info"),
        ("python", "3.11.2", "", "warning"),
        ("torch", "2.13.0+cpu", "2.12.1+cpu", "error"),
        ("torch", "2.13.0+cpu", "2.13.0+cu126", "warning"),
        ("torch", "2.13.0+cpu", "", "error"),
        ("torch_backends", "0.1.0", "", "error"),
        ("nccl", "2.27.5", "2.26.2", "error"),
        ("nccl", "2.27.5", "", "info"),
        ("driver", "nvidia 550.1", "nvidia 535.2", "warning"),
        ("driver", "nvidia 550.1", "", "info"),
        ("openmpi", "5.0.11", "4.1.4", "error"),
        ("openmpi", "5.0.11", "", "error"),
        ("mpich", "5.0.2", "4.0.2", "error"),
        ("intelmpi", "2021.15", "2021.18", "error"),
        ("ucx", "1.18.1", "1.13.1", "warning"),
        ("ucx", "1.18.1", "", "info"),
        ("gpus", "8 x NVIDIA H100", "7 x NVIDIA H100", "error"),
        ("gpus", "8 x NVIDIA H100", "8 x NVIDIA A100", "warning"),
        ("gpus", "8 x NVIDIA H100", "", "warning"),
        ("vbios", "96.00.74.00.01", "96.00.89.00.01", "info"),
        ("memory", "2048 GiB", "1920 GiB", "warning"),
        ("next_kernel", "6.1.0-40", "6.1.0-41", "info"),
        ("rdma_cards", "8 x MT_0000000838", "7 x MT_0000000838, 1 x MT_0000000840", "warning"),
        ("rdma_firmware", "MT_0000000838 28.39.1002", "MT_0000000838 28.36.1010", "warning"),
        ("rdma_links", "8 x 400 Gbit/s 4X NDR", "7 x 400 Gbit/s 4X NDR, 1 x 200 Gbit/s 2X NDR", "warning"),
        ("mtu", "9000", "1500", "warning"),
        ("nvlink_domain", f"{'a' * 36}/1", f"{'a' * 36}/2", "warning"),
        ("nvlink_domain", f"{'a' * 36}/1", f"{'b' * 36}/1", "info"),
        ("wrapper", "1" * 16, "2" * 16, "info"),
    ],
)
def test_what_a_difference_weighs(name: str, first: str, second: str, severity: str) -> None:
    drift = cluster({name: first}, {name: first}, {name: second})
    assert severities(drift) == {name: severity}
    (finding,) = drift_findings(drift)
    assert (finding.id, finding.severity, finding.nodes) == (rule_id(name), severity, ("n3",))
    assert finding.seen == f"{first}: n1 n2; {second or 'none'}: n3"
    assert drift.digests["n1"] == drift.digests["n2"] != drift.digests["n3"]


def test_every_property_is_weighed_above() -> None:
    marks = test_what_a_difference_weighs.pytestmark  # type: ignore[attr-defined]
    assert {row[0] for row in marks[0].args[1]} == set(PROPERTIES)


def test_three_versions_where_one_node_lacks_the_optional() -> None:
    assert severities(cluster({"nccl": "2.27.5"}, {"nccl": "2.26.2"}, {"nccl": ""})) == {"nccl": "error"}


def test_the_head_alone_needs_no_torch() -> None:
    versions = {"head": {**HERE, "torch": "", "python": ""}, "n1": HERE, "n2": HERE}
    assert severities(compare(versions, ["n1", "n2"])) == {}


def test_before_setup_what_it_makes_equal_is_no_fault() -> None:
    drift = cluster({}, {"torch": "", "openmpi": "4.1.4", "python": ""}, {"libc": "glibc 2.41"})
    told = {finding.id: finding.severity for finding in drift_findings(drift, before_setup=True)}
    assert told == {
        **{rule_id(name): "info" for name in ("torch", "openmpi", "python")},
        "TF-DRIFT-LIBC": "warning",
    }


def test_the_digest_of_a_cluster_does_not_depend_on_names_and_order() -> None:
    one = compare({"a": HERE, "b": {**HERE, "torch": "1"}}, ["a", "b"])
    two = compare({"x": {**HERE, "torch": "1"}, "y": HERE}, ["x", "y"])
    assert one.digest == two.digest != cluster({}, {}).digest


def test_the_wrapper_that_counts_is_the_controllers() -> None:
    facts: dict[str, Any] = copy.deepcopy(RECORDED["n1"])
    assert versions_of(facts, "b" * 16)["wrapper"] == ""
    facts["wrappers"] = ["b" * 16, "a" * 16]
    assert versions_of(facts, "b" * 16)["wrapper"] == "b" * 16
    assert versions_of(facts, "c" * 16)["wrapper"] == "a" * 16


def test_the_table() -> None:
    lines = drift_table(cluster({}, {}, {"torch": "2.12.1+cpu"}, {"kernel": "6.12.0"}))
    text = "\n".join(lines)
    assert max(len(line) for line in lines) <= 100
    assert " torch        error    2.13.0+cpu: n1 n2 n4\n                       2.12.1+cpu: n3\n" in text
    assert " openmpi      equal    5.0.11\n" in text
    assert "mpich" not in text.replace("openmpi", "")
    assert "n1 n2" in lines[-3]


def test_the_report_is_plain() -> None:
    report = json.loads(json.dumps(drift_report(cluster({}, {"torch": "2.12.1+cpu"}))))
    assert report["properties"]["torch"] == {
        "severity": "error",
        "values": {"2.12.1+cpu": ["n2"], "2.13.0+cpu": ["n1"]},
    }
    assert set(report["digests"]) == {"n1", "n2"}


@pytest.mark.parametrize(
    ("gib", "told"),
    [(503.0, "512 GiB"), (2015.5, "2048 GiB"), (1887.0, "1920 GiB"), (23.5, "24 GiB"), (0.9, "1 GiB"), (0.0, "0 GiB")],
)
def test_memory_is_told_as_it_was_bought(gib: float, told: str) -> None:
    assert memory_text(int(gib * 2**30)) == told


def test_gpus_are_counted_as_programs_see_them() -> None:
    cards = [{"vendor": "nvidia", "model": "NVIDIA H100", "id": "10de:2330"}] * 8
    assert gpus_text({"gpus": cards, "usable": {"nvidia": 7, "amd": 0}}) == "7 x NVIDIA H100"
    assert gpus_text({"gpus": [], "usable": {"nvidia": 0}}) == ""
    nameless = [{"vendor": "amd", "model": "", "id": "1002:74a1"}]
    assert gpus_text({"gpus": nameless, "usable": {"amd": 1}}) == "1 x 1002:74a1"


# --- RDMA and MTU -----------------------------------------------------------------------------------------------------


def with_rails(*rails: str) -> dict[str, Any]:
    """Return recorded facts with a published network on eth0 and two devices, of which these are rails."""
    facts = copy.deepcopy(RECORDED["n1"])
    card = {"port": 1, "rate_gbit": 400.0, "width": "4X NDR", "board": "MT_0000000838", "firmware": "28.39.1002"}
    facts["networks"] = {
        "nics": [{"name": "eth0", "mtu": 1500}, {"name": "rail0", "mtu": 9000}, {"name": "rail1", "mtu": 4200}],
        "rdma": [{"device": f"mlx5_{number}", **card} for number in (0, 1)],
    }
    rows = [{"device": name, "port": 1, "netdev": f"rail{name[-1]}"} for name in rails]
    facts["seat"] = {"fabric": {"nic": "eth0", "rdma": rows}}
    return dict(facts)


def test_what_is_compared_of_rdma() -> None:
    found = versions_of(with_rails("mlx5_0"), "")
    assert found["rdma_cards"] == "2 x MT_0000000838"
    assert found["rdma_firmware"] == "MT_0000000838 28.39.1002"
    assert found["rdma_links"] == "1 x 400 Gbit/s 4X NDR"
    assert found["mtu"] == "1500, rails 9000"
    assert versions_of(with_rails("mlx5_0", "mlx5_1"), "")["mtu"] == "1500, rails 4200 and 9000"


def test_virtual_functions_are_not_compared() -> None:
    facts = with_rails("mlx5_0")
    facts["networks"]["rdma"][1].update(use="virtual", board="MT_0000000001")
    assert versions_of(facts, "")["rdma_cards"] == "1 x MT_0000000838"


def test_a_node_without_rdma_or_a_network_has_nothing_to_compare() -> None:
    found = versions_of({**RECORDED["n1"], "networks": None, "seat": None}, "")
    assert {found[name] for name in ("rdma_cards", "rdma_firmware", "rdma_links", "mtu")} == {""}


def test_of_a_tie_the_first_node_of_the_inventory_is_right() -> None:
    """Whatever the values are: that of the other node may come first in the alphabet."""
    for first, second in (("9000", "1500"), ("1500", "9000")):
        (finding,) = drift_findings(cluster({"mtu": first}, {"mtu": second}))
        assert (finding.nodes, finding.seen) == (("n2",), f"{first}: n1; {second}: n2")
    (finding,) = drift_findings(cluster({"mtu": "1500"}, {"mtu": "9000"}, {"mtu": "9000"}))
    assert finding.nodes == ("n1",)
