"""The findings about GPUs that are missing or broken."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.gpu_rules import gpu_findings

RELEASE = "6.1.0-30-amd64"
SOUND = {"address": "0000:18:00.0", "vbios": "96.00", "ecc_errors": 0, "fabric": "Completed"}
CARD = {"vendor": "nvidia", "driver": "nvidia"}
LOST = {"address": "0000:3b:00.0", "number": 79}


def facts(**changed: Any) -> dict[str, Any]:
    """Return a node with two sound GPUs, changed."""
    given = {"nvidia": [SOUND], "xids": [], "release": RELEASE, "modules": ["nvidia"], "usable": 2, "gpus": [CARD] * 2}
    given.update(changed)
    kernel = {"release": given["release"], "modules": given["modules"]}
    return {
        "accelerators": {"gpus": given["gpus"], "usable": {"nvidia": given["usable"], "amd": 0}},
        "gpu_health": {"nvidia": given["nvidia"], "xids": given["xids"], "next_kernel": kernel},
        "versions": {"driver": "nvidia 580.65.06", "kernel": "6.1.0-28-amd64"},
    }


def seen(given: dict[str, Any], expected: int | None = None) -> dict[str, str]:
    return {finding.id: finding.seen for finding in gpu_findings("n1", given, expected)}


def test_sound_gpus_have_no_findings() -> None:
    assert seen(facts()) == {} and seen(facts(), 2) == {}


@pytest.mark.parametrize(
    ("changed", "expected", "name", "text"),
    [
        ({}, 8, "TF-GPU-MISSING", "2 of 8"),
        ({"gpus": [], "usable": 0}, 8, "TF-GPU-MISSING", "0 of 8"),
        ({"usable": 1}, None, "TF-GPU-UNUSABLE", "1 of 2 (nvidia)"),
        ({"nvidia": [SOUND | {"ecc_errors": 3}]}, None, "TF-GPU-ECC", "0000:18:00.0: 3 uncorrected"),
        ({"nvidia": [SOUND | {"ecc_errors": 1}]}, None, "TF-GPU-ECC", "0000:18:00.0: 1 uncorrected"),
        ({"nvidia": [SOUND | {"fabric": "In Progress"}]}, None, "TF-GPU-FABRIC", "0000:18:00.0: In Progress"),
        ({"xids": [LOST]}, None, "TF-GPU-XID", "0000:3b:00.0: XID 79, fell off the bus"),
        ({"modules": []}, None, "TF-GPU-NEXT-KERNEL", f"{RELEASE} has no module nvidia"),
    ],
)
def test_each_fault_is_named(changed: dict[str, Any], expected: int | None, name: str, text: str) -> None:
    assert seen(facts(**changed), expected) == {name: text}


def test_an_error_of_a_program_is_no_fault_of_the_gpu() -> None:
    assert seen(facts(xids=[{"address": "0000:3b:00.0", "number": 31}])) == {}


def test_a_gpu_without_a_driver_is_found_by_preflight_alone() -> None:
    assert seen(facts(gpus=[CARD, {"vendor": "nvidia", "driver": ""}], usable=1)) == {}


def test_the_running_kernel_is_the_next_one() -> None:
    assert seen(facts(release="6.1.0-28-amd64", modules=[])) == {}


CLUSTER = "6a130f54-faaa-4b8f-847f-be44ab70f917"
LINKED = {"state": "Completed", "status": "Success", "cluster": CLUSTER, "clique": "32766", "flaws": []}


@pytest.mark.parametrize(
    ("changed", "name", "text"),
    [
        ({"status": "Insufficient Resources"}, "TF-GPU-FABRIC", "0009:01:00.0: Insufficient Resources"),
        ({"flaws": ["Bandwidth: Degraded"]}, "TF-GPU-FABRIC-HEALTH", "0009:01:00.0: Bandwidth: Degraded"),
        (
            {"clique": "2"},
            "TF-GPU-CLIQUE",
            f"0008:01:00.0: 32766 of {CLUSTER}, 0009:01:00.0: 2 of {CLUSTER}",
        ),
    ],
)
def test_each_fault_of_an_nvlink_fabric_is_named(changed: dict[str, Any], name: str, text: str) -> None:
    given = facts()
    given["gpu_health"]["nvlink"] = [{"address": "0008:01:00.0", **LINKED}, {"address": "0009:01:00.0", **LINKED}]
    assert seen(given) == {}
    given["gpu_health"]["nvlink"][1].update(changed)
    assert seen(given) == {name: text}
