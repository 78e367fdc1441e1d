"""Each wheel in a container that has its Python, the stock PyTorch of its release, no compiler and no MPI."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from tests.manylinux.found import FORKED, PROGRAM, Wheel, found, image_with, image_with_qemu, run

OLDEST = {"x86_64": (2, 31), "aarch64": (2, 31)}  # glibc of the machine that it is compiled on
ALL = [*found("x86_64"), *found("aarch64")]


def installed(wheel: Wheel, place: Path) -> Path:
    """Return a directory with the wheel, PyTorch and all that they require, as pip finds them for that machine."""
    kinds = ["manylinux1", "manylinux2010", "manylinux2014", *(f"manylinux_2_{minor}" for minor in range(5, 29))]
    platforms = [word for kind in kinds for word in ("--platform", f"{kind}_{wheel.machine}")]
    there = ["--only-binary", ":all:", "--python-version", wheel.python, *platforms]
    pip, fetched, site = [sys.executable, "-I", "-m", "pip", "--quiet"], place / "fetched", place / "site"
    download = [*pip, "download", "--no-cache-dir", *there, "--dest", str(fetched), str(wheel.path)]
    subprocess.run(download, env={**os.environ, "PIP_CONSTRAINT": os.devnull}, check=True)  # others have no such limits
    # pip has just asked what they require of Python; install would compare that with the Python that runs it.
    options = [*there, "--no-deps", "--ignore-requires-python", "--no-compile", "--target", str(site)]
    subprocess.run([*pip, "install", *options, *map(str, fetched.glob("*.whl"))], check=True)
    shutil.rmtree(fetched)  # some gigabytes
    return site


def added_up_in_shared_memory(printed: str) -> bool:
    """Whether two ranks say so, and that gloo did not do it for want of shared memory."""
    return {"rank 0 of 2", "rank 1 of 2"} <= set(printed.splitlines()) and "2 ranks share memory" in printed


def test_there_are_wheels() -> None:
    assert found("x86_64")


@pytest.mark.parametrize("wheel", ALL, ids=[wheel.title for wheel in ALL])
def test_its_name_and_metadata_say_what_it_is(wheel: Wheel) -> None:
    with zipfile.ZipFile(wheel.path) as pack:
        names = pack.namelist()
        about = Parser().parsestr(pack.read(next(name for name in names if name.endswith("/METADATA"))).decode())
        built_for = pack.read("torchfleet_backends/built_for.txt").decode().strip()
    assert about["License-Expression"] == "BSD-3-Clause"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    assert about["Requires-Dist"] == f"torch=={wheel.release}"
    assert built_for == wheel.release
    assert {f"torchfleet_backends/{name}.so" for name in ("_shm", "_abi", "_openmpi")} <= set(names)
    kinds = [kind.removesuffix(f"_{wheel.machine}") for kind in wheel.platforms]
    needed = [tuple(map(int, kind.split("_")[1:])) for kind in kinds if kind.startswith("manylinux_")]
    assert needed and max(needed) <= OLDEST[wheel.machine]


@pytest.mark.parametrize("wheel", found("x86_64"), ids=[wheel.title for wheel in found("x86_64")])
def test_two_ranks_add_up(wheel: Wheel, tmp_path: Path) -> None:
    site = installed(wheel, tmp_path)
    torchrun = [f"python{wheel.python}", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    # Whether PyTorch may look for backends when it is imported. If not, it finds ours by name, from 2.14 on.
    allowed = ["1"] if wheel.release.startswith("2.13.") else ["1", "0"]
    try:
        for each in allowed:
            given = [f"PYTHONPATH={site}", "PYTHONPYCACHEPREFIX=/tmp/compiled", f"TORCH_DEVICE_BACKEND_AUTOLOAD={each}"]
            printed = run(image_with(wheel.python), [site, PROGRAM], "env", *given, *torchrun, str(PROGRAM))
            assert added_up_in_shared_memory(printed), printed
    finally:
        shutil.rmtree(site)  # some gigabytes


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("wheel", found("aarch64"), ids=[wheel.title for wheel in found("aarch64")])
def test_two_ranks_add_up_under_qemu(wheel: Wheel, tmp_path: Path) -> None:
    """Translated to the instructions of this machine, whose memory keeps more order than Arm's."""
    site = installed(wheel, tmp_path)
    root = f"/aarch64/{wheel.python}"
    python = ["qemu-aarch64", "-L", root, f"{root}/usr/bin/python{wheel.python}"]
    given = [f"PYTHONPATH={site}", "PYTHONDONTWRITEBYTECODE=1", "OMP_NUM_THREADS=1"]
    try:
        printed = run(image_with_qemu(), [site, PROGRAM, FORKED], "env", *given, *python, str(FORKED))
        assert added_up_in_shared_memory(printed), printed
    finally:
        shutil.rmtree(site)  # some gigabytes
