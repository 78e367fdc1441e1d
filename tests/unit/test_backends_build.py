"""What role torch_backends installs for the backends, MPIs and options that a user asks for."""

from __future__ import annotations

from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.filter.backends_build import backends_build

OPTIONS = {
    **{"mpis": ["openmpi"], "wheel": "", "wheel_sha256": ""},
    **{"torch": "2.13.0", "home": "/h"},
}
WHEEL = {"wheel": "/w/torchfleet_backends-0.1.0-cp311-cp311-linux_x86_64.whl", "wheel_sha256": "ab" * 32}
ONECCL, OPENMPI, ABI, SHM = (f"torchfleet_backends/{name}" for name in ("oneccl", "_openmpi.so", "_abi.so", "_shm.so"))
BUILT_FOR = {"TORCHFLEET_BACKENDS_MPI": "/h/openmpi", "TORCHFLEET_BACKENDS_TORCH": "2.13.0"}
WITHOUT_MPI = {**BUILT_FOR, "TORCHFLEET_BACKENDS_MPI": ""}
CCL = {"TORCHFLEET_BACKENDS_CCL": "yes"}
WITH_SHM = {"TORCHFLEET_BACKENDS_SHM": "yes"}


def build(names: list[str], **changed: Any) -> dict[str, Any]:
    return backends_build(names, {**OPTIONS, **changed})


@pytest.mark.parametrize(
    ("names", "changed", "environment", "parts"),
    [
        (["mpi"], {}, BUILT_FOR, [OPENMPI]),
        (["ccl"], {}, {**WITHOUT_MPI, **CCL}, [ONECCL]),
        (["mpi", "ccl"], {}, {**BUILT_FOR, **CCL}, [OPENMPI, ONECCL]),
        (["shm"], {}, {**WITHOUT_MPI, **WITH_SHM}, [SHM]),
        (["mpi", "shm"], {}, {**BUILT_FOR, **WITH_SHM}, [OPENMPI, SHM]),
        (["mpi"], {"torch": ""}, {**BUILT_FOR, "TORCHFLEET_BACKENDS_TORCH": ""}, [OPENMPI]),
    ],
)
def test_what_is_installed(
    names: list[str], changed: dict[str, Any], environment: dict[str, str], parts: list[str]
) -> None:
    found = build(names, **changed)
    assert found == {
        **{"refusal": "", "is_built": bool({OPENMPI, SHM} & set(parts)), "packages": []},
        **{"environment": environment, "parts": parts},
    }


@pytest.mark.parametrize(
    ("mpis", "homes", "parts"),
    [
        (["openmpi", "mpich"], "/h/openmpi:/h/mpich", [OPENMPI, ABI]),
        (["mpich", "intelmpi"], "/h/mpich", [ABI]),
        (["intelmpi", "mpich", "openmpi"], "/h/mpich:/h/openmpi", [ABI, OPENMPI]),
    ],
)
def test_one_build_for_each_abi(mpis: list[str], homes: str, parts: list[str]) -> None:
    found = build(["mpi"], mpis=mpis)
    assert (found["environment"]["TORCHFLEET_BACKENDS_MPI"], found["parts"]) == (homes, parts)


def test_a_wheel_needs_no_compiler_and_is_known_by_its_checksum() -> None:
    found = build(["mpi"], mpis=["intelmpi"], **WHEEL)
    assert (found["is_built"], found["packages"]) == (False, ["torchfleet-backends==0.1.0"])
    assert found["environment"] == {"TORCHFLEET_BACKENDS_WHEEL": "ab" * 32} and found["parts"] == [ABI]


def test_a_wheel_for_one_release_of_torch_is_asked_for_by_that() -> None:
    """A directory may have wheels for several releases: `make wheels` leaves them side by side."""
    wheel = "/w/torchfleet_backends-0.1.0+torch2.13.0-cp311-cp311-manylinux_2_27_x86_64.whl"
    found = build(["shm"], mpis=[], **{**WHEEL, "wheel": wheel})
    assert (found["packages"], found["parts"]) == (["torchfleet-backends==0.1.0+torch2.13.0"], [SHM])


def test_intel_mpi_alone_has_nothing_to_build_with() -> None:
    told = "torch_backends: Intel MPI comes without headers: install MPICH too, whose build serves both: "
    found = build(["mpi"], mpis=["openmpi", "intelmpi"])
    assert found["refusal"] == told + """-e '{"mpis": ["openmpi", "intelmpi", "mpich"]}'""" and not found["parts"]
    assert build(["ccl"], mpis=["intelmpi"])["refusal"] == ""


@pytest.mark.parametrize("wheel", [{**WHEEL, "wheel_sha256": ""}, {**WHEEL, "wheel": "/w/other-1.0-py3-none-any.whl"}])
def test_a_file_that_is_no_wheel_of_ours_is_refused(wheel: dict[str, str]) -> None:
    told = "give a file torchfleet_backends-VERSION-...whl on the controller"
    assert build(["mpi"], **wheel)["refusal"] == f'torch_backends_wheel: got "{wheel["wheel"]}"; {told}'
