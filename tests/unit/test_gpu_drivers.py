"""Which packages GPUs need, what is refused for them, and when a machine has to be rebooted."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.filter.driver_plan import driver_plan, driver_reboot
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.gpu_drivers import (
    DriverPlan,
    plan_cuda,
    plan_rocm,
)

H100 = {"vendor": "nvidia", "id": "10de:2330", "open_modules": True, "target": ""}
V100 = {"vendor": "nvidia", "id": "10de:1db6", "open_modules": False, "target": ""}
MI300X = {"vendor": "amd", "id": "1002:74a1", "open_modules": False, "target": "gfx942"}
MI210 = {"vendor": "amd", "id": "1002:740f", "open_modules": False, "target": "gfx90a"}
UNKNOWN = {"vendor": "amd", "id": "1002:ffff", "open_modules": False, "target": ""}
REPOSITORY = {"name": "theirs"}
EPEL: dict[str, Any] = {"epel": False, "epel_repository": {"name": "epel"}}


def facts_of(*gpus: dict[str, Any], nvswitches: int = 0, library: str = "", **modules: str) -> dict[str, Any]:
    return {"gpus": list(gpus), "nvswitches": nvswitches, "driver_library": library, "modules": modules}


def cuda(facts: dict[str, Any], **given: Any) -> DriverPlan:
    options = {"driver": "auto", "branch": "580", "toolkit": "13.0", "dcgm": False, "repository": REPOSITORY, **EPEL}
    return plan_cuda(facts, {**options, **given})


def rocm(facts: dict[str, Any], **given: Any) -> DriverPlan:
    options: dict[str, Any] = {"driver": "auto", "version": "10.0", "targets": [], "driver_version": "31.50"}
    options |= {"repository": REPOSITORY, "driver_repository": {"name": "driver"}}
    return plan_rocm(facts, {**options, **given})


# --- NVIDIA ---------------------------------------------------------------------------------------------------------


def test_gpus_get_open_modules_of_one_branch() -> None:
    plan = cuda(facts_of(H100, H100))
    assert (plan.wanted, plan.gpus, plan.refusal, plan.reboot) == (True, 2, "", "")
    assert plan.first == ["nvidia-driver-pinning-580"]
    assert plan.packages == ["nvidia-open", "nvidia-persistenced", "cuda-toolkit-13-0"] == plan.hold
    assert plan.services == ["nvidia-persistenced"]
    assert (plan.same_version, plan.repositories) == ({}, [REPOSITORY])
    assert {conflict["branch"] for conflict in plan.conflicts} == {"580"}
    assert plan.dnf_commands["rhel9"] == [["module", "enable", "nvidia-driver:580-open"]]


def test_epel_is_added_on_request_where_a_driver_is_installed() -> None:
    assert cuda(facts_of(H100), epel=True).repositories == [REPOSITORY, {"name": "epel"}]
    assert cuda(facts_of(H100), epel=True, driver="none").repositories == [REPOSITORY]  # a toolkit needs no dkms


def test_switches_need_a_manager_in_the_version_of_the_driver_and_dcgm_is_on_demand() -> None:
    plan = cuda(facts_of(H100, nvswitches=4), dcgm=True)
    assert plan.same_version == {"nvidia-fabricmanager": "nvidia-open"} and "nvidia-fabricmanager" in plan.hold
    assert plan.packages[-1] == "datacenter-gpu-manager-4-cuda13" and plan.packages[-1] not in plan.hold
    assert plan.services == ["nvidia-persistenced", "nvidia-fabricmanager", "nvidia-dcgm"]
    assert cuda(facts_of(), dcgm=True, toolkit="").packages[-1] == "datacenter-gpu-manager-4-cuda13"
    assert cuda(facts_of(), dcgm=True, toolkit="12.6").packages[-1] == "datacenter-gpu-manager-4-cuda12"


B200 = {**H100, "id": "10de:2901"}


def board(gpus: int = 8, infiniband: int = 12) -> dict[str, Any]:
    return {**facts_of(*[B200] * gpus), "infiniband": infiniband}


def test_blackwell_boards_need_a_subnet_manager_too() -> None:
    """Their NVSwitches are no PCI devices of NVIDIA's. Fabric Manager starts nvlsm, and both need ib_umad."""
    plan = cuda(board())
    assert plan.same_version == {"nvidia-fabricmanager": "nvidia-open"} and "nvlsm" in plan.packages
    assert plan.kernel_modules == {"nvidia-fabricmanager": ["ib_umad"]} and plan.imex is False
    assert cuda(board(), driver="none").packages == ["cuda-toolkit-13-0"]
    assert "nvlsm" not in cuda(facts_of(H100, nvswitches=4)).packages


@pytest.mark.parametrize("part", [board(1), board(infiniband=0), facts_of(*[B200] * 8)])
def test_a_part_of_a_blackwell_board_has_no_switches(part: dict[str, Any]) -> None:
    """A virtual machine with one of its GPUs: Fabric Manager would fail there."""
    assert cuda(part).same_version == {} and "nvlsm" not in cuda(part).packages


def test_gpus_that_share_nvlink_with_other_machines_need_imex() -> None:
    """It is not started before it knows its nodes."""
    rack = {**facts_of({**H100, "id": "10de:2941"}), "nvlink_domain": "6a130f54-faaa-4b8f-847f-be44ab70f917/32766"}
    plan = cuda(rack)
    assert plan.same_version == {"nvidia-imex": "nvidia-open"} and "nvidia-imex" in plan.hold
    assert (plan.imex, plan.services) == (True, ["nvidia-persistenced"])
    assert cuda(rack, driver="none").imex is False


def test_older_gpus_get_the_proprietary_modules() -> None:
    plan = cuda(facts_of(V100), toolkit="12.6")
    assert (plan.driver, plan.refusal) == ("cuda-drivers", "")
    assert plan.dnf_commands["rhel9"] == [["module", "enable", "nvidia-driver:580-dkms"]]


def test_the_toolkit_alone_needs_nothing_of_the_driver() -> None:
    plan = cuda(facts_of(H100, nvswitches=1), driver="none", branch="570")
    assert (plan.packages, plan.first, plan.same_version) == (["cuda-toolkit-13-0"], [], {})
    assert (plan.conflicts, plan.services, plan.refusal, plan.driver) == ([], [], "", "")


@pytest.mark.parametrize(("driver", "wanted"), [("auto", False), ("open", True), ("none", True)])
def test_a_machine_without_gpus_is_left_alone_unless_it_is_named(driver: str, wanted: bool) -> None:
    plan = cuda(facts_of(MI300X), driver=driver)
    assert (plan.wanted, plan.gpus, plan.refusal) == (wanted, 0, "")
    assert cuda(facts_of(), branch="570").refusal == ""  # nothing is installed


@pytest.mark.parametrize(
    ("facts", "given", "says"),
    [
        (
            facts_of(V100, V100),
            {"driver": "open"},
            "cuda_driver: got open; the open kernel modules do not drive 10de:1db6, w",
        ),
        (
            facts_of(H100, V100),
            {},
            "cuda_toolkit: got 13.0; CUDA 13 does not support 10de:1db6, which is older than Turing: set",
        ),
        (facts_of(H100), {"branch": 570}, "cuda_branch: got 570; give 580 or newer"),
        (facts_of(H100), {"branch": "575.57.08"}, "cuda_branch: got 575.57.08; give 580 or newer"),
        (facts_of(H100), {"branch": "new"}, "cuda_branch: got new; give 580 or newer"),
        (facts_of(H100), {"branch": "580.95.05"}, ""),
        (facts_of(V100), {"toolkit": ""}, ""),
    ],
)
def test_what_nvidia_does_not_have_is_refused(facts: dict[str, Any], given: dict[str, Any], says: str) -> None:
    refusal = cuda(facts, **given).refusal
    assert refusal.startswith(says) and bool(refusal) == bool(says)


def test_a_driver_that_was_replaced_while_loaded_needs_a_reboot_first() -> None:
    assert cuda(facts_of(H100, library="580.95", nvidia="575.1")).reboot == (
        "module nvidia 575.1 is loaded, and the library is 580.95"
    )
    assert cuda(facts_of(H100, library="580.95", nvidia="580.95")).reboot == ""
    assert cuda(facts_of(H100, nvidia="575.1")).reboot == ""
    assert cuda(facts_of(H100, library="580.95")).reboot == ""


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (facts_of(H100), "module nvidia none is loaded, and 580.95.05 is installed"),
        (facts_of(H100, nvidia="575.1"), "module nvidia 575.1 is loaded, and 580.95.05 is installed"),
        (facts_of(H100, nouveau=""), "nouveau is loaded, and conflicts with nvidia 580.95.05"),
        (facts_of(H100, nvidia="580.95.05"), ""),
        (facts_of(), ""),
    ],
)
def test_nvidias_module_has_to_be_the_one_that_is_installed(facts: dict[str, Any], says: str) -> None:
    assert driver_reboot(facts, "cuda", "nvidia-open", {"nvidia-open": "1:580.95.05-1"}) == says
    assert driver_reboot(facts, "cuda", "", {}) == ""


@pytest.mark.parametrize(
    ("there", "branch", "says"),
    [
        ({}, 580, "module nvidia none is loaded, and nvidia-open would be installed"),
        ({"nvidia-open": "575.57.08-1"}, 580, "module nvidia none is loaded, and nvidia-open would be installed"),
        ({"nvidia-open": "580.95.05-1"}, 580, "module nvidia none is loaded, and 580.95.05 is installed"),
        ({}, None, ""),  # not check mode: what is not there needs no reboot
    ],
)
def test_check_mode_knows_that_a_driver_which_would_come_needs_its_module(
    there: dict[str, str], branch: int | None, says: str
) -> None:
    assert driver_reboot(facts_of(H100), "cuda", "nvidia-open", there, branch) == says
    assert driver_reboot(facts_of(), "cuda", "nvidia-open", there, branch) == ""
    amd = driver_reboot(facts_of(MI300X, amdgpu=""), "rocm", "amdgpu-dkms", {}, "")
    assert amd == "module amdgpu of the kernel is loaded, and amdgpu-dkms would be installed"


# --- AMD ------------------------------------------------------------------------------------------------------------


def test_each_kind_of_gpu_has_its_package() -> None:
    plan = rocm(facts_of(MI300X, MI300X, MI210))
    assert plan.packages == ["amdgpu-dkms", "amdrocm10.0-gfx90a", "amdrocm10.0-gfx942"] == plan.hold
    assert (plan.gpus, plan.prefix, plan.driver) == (3, "/opt/rocm/core-10.0", "amdgpu-dkms")
    assert plan.repositories == [{"name": "driver", "version": "31.50"}, {"name": "theirs", "version": "10.0"}]
    assert rocm(facts_of(MI300X), targets=["gfx1"]).packages[1:] == ["amdrocm10.0-gfx1"]


def test_rocm_before_10_is_one_package() -> None:
    plan = rocm(facts_of(MI300X, UNKNOWN), version="7.2.4")
    assert (plan.packages, plan.prefix, plan.refusal) == (["amdgpu-dkms", "rocm"], "/opt/rocm-7.2.4", "")


def test_the_driver_alone_and_rocm_alone() -> None:
    driver = rocm(facts_of(UNKNOWN), version="")
    assert (driver.packages, driver.refusal, driver.prefix) == (["amdgpu-dkms"], "", "")
    assert [each["name"] for each in driver.repositories] == ["driver"]
    alone = rocm(facts_of(MI300X), driver="none")
    assert (alone.packages, alone.driver) == (["amdrocm10.0-gfx942"], "")
    assert [each["name"] for each in alone.repositories] == ["theirs"]


@pytest.mark.parametrize(
    ("facts", "given", "says"),
    [
        (
            facts_of(MI300X, UNKNOWN, UNKNOWN),
            {},
            "rocm_targets: got none, and what compilers call 1002:ffff is not known",
        ),
        (facts_of(), {"driver": "dkms"}, "rocm_targets: got none, and there is no AMD GPU here"),
        (facts_of(), {"driver": "dkms", "targets": ["gfx942"]}, ""),
        (facts_of(UNKNOWN), {"targets": ["gfx942"]}, ""),
        (facts_of(H100), {}, ""),
    ],
)
def test_rocm_for_no_known_gpu_is_refused(facts: dict[str, Any], given: dict[str, Any], says: str) -> None:
    refusal = rocm(facts, **given).refusal
    assert refusal.startswith(says) and bool(refusal) == bool(says)


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (facts_of(MI300X), "module amdgpu none is loaded, and amdgpu-dkms 1:6.16-1 is installed"),
        (facts_of(MI300X, amdgpu=""), "module amdgpu of the kernel is loaded, and amdgpu-dkms 1:6.16-1 is installed"),
        (facts_of(MI300X, amdgpu="6.16"), ""),
        (facts_of(H100), ""),
    ],
)
def test_amds_own_module_has_to_be_loaded(facts: dict[str, Any], says: str) -> None:
    assert driver_reboot(facts, "rocm", "amdgpu-dkms", {"amdgpu-dkms": "1:6.16-1"}) == says


def test_the_filter_gives_plain_values() -> None:
    options = {"driver": "auto", "branch": 580, "toolkit": "", "dcgm": False, "repository": REPOSITORY, **EPEL}
    plan = driver_plan(facts_of(H100), "cuda", options)
    assert plan["packages"] == ["nvidia-open", "nvidia-persistenced"] and plan["wanted"] is True
