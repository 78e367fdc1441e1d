"""What `make gpu` finds on a machine; what PyTorch says is made up, for no GPU is here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gpu import gpu_machine
from tests.gpu.gpu_machine import Missing, look, vendor_here

SEES = {
    **{"kind": "cuda", "count": 2, "model": "NVIDIA H100 80GB HBM3", "version": "2.13.0+cu130", "python": "3.12.3"},
    **{"nccl": True, "xccl": False, "sklearn": False, "ours": True, "shm": True},
}


def python_that_says(path: Path, said: object) -> str:
    path.write_text(f"#!/bin/sh\necho a warning\necho '{json.dumps(said)}'\n")
    path.chmod(0o755)
    return str(path)


def test_a_machine_without_gpus_has_none(tmp_path: Path) -> None:
    assert vendor_here(str(tmp_path)) == ""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert vendor_here(str(tmp_path)) == "nvidia"


def test_the_first_torch_that_sees_the_gpus_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_machine, "HOME", tmp_path)
    blind = python_that_says(tmp_path / "blind", {**SEES, "kind": "", "count": 0})
    sees = python_that_says(tmp_path / "sees", SEES)
    monkeypatch.setattr(gpu_machine, "interpreters", lambda: iter([str(tmp_path / "none"), blind, sees]))
    found = look("nvidia", "")
    assert (found.python, found.backend, found.count, found.mpirun, found.ansible) == (sees, "nccl", 2, "", "")
    with pytest.raises(
        Missing, match=r"no PyTorch that sees the GPUs of NVIDIA \(.*blind: sees no GPU\): say make gpu"
    ):
        look("nvidia", blind)


def test_backend_mpi_is_tried_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_machine, "HOME", tmp_path)
    (tmp_path / "openmpi/bin").mkdir(parents=True)
    (tmp_path / "openmpi/bin/mpirun").touch()
    assert look("nvidia", python_that_says(tmp_path / "sees", SEES)).mpirun == f"{tmp_path}/openmpi/bin/mpirun"
    alone = python_that_says(tmp_path / "alone", {**SEES, "ours": False, "shm": False, "kind": "xpu", "xccl": True})
    assert (look("intel", alone).mpirun, look("intel", alone).backend) == ("", "xccl")
