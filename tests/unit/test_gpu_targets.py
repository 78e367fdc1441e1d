"""Which GPUs a build of PyTorch has code for, and what a node tells of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software import gpu_targets

CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


@pytest.mark.parametrize(
    ("gpu", "built", "runs"),
    [
        ("sm_90", CU130, True),
        ("sm_89", CU130, True),  # 8.6's code
        ("sm_87", ["sm_90"], False),
        ("sm_70", CU130, False),
        ("sm_103", CU130, True),
        ("sm_101", ["sm_103"], False),
        ("sm_121", CU130, True),
        ("sm_130", CU130, True),  # compiled at the start
        ("sm_61", ["sm_50", "compute_50"], True),
        ("sm_90", ["sm_90a"], True),
        ("sm_91", ["sm_90a"], False),
        ("sm_100", ["compute_90a"], False),
        ("sm_103", ["sm_100f"], True),
        ("sm_120", ["sm_100f"], False),
        ("gfx942", ["gfx90a", "gfx942"], True),
        ("gfx1011", ["gfx900", "gfx1030"], False),
        ("gfx1011", ["gfx10-1-generic"], True),
        ("gfx1031", ["gfx10-1-generic"], False),
        ("gfx942", ["sm_90"], False),
    ],
)
def test_which_gpu_runs_which_code(gpu: str, built: list[str], runs: bool) -> None:
    assert gpu_targets.without_code({"torch": built, "gpus": [gpu]}) == ([] if runs else [gpu])
    assert gpu_targets.without_code({"torch": [], "gpus": [gpu]}) == []  # unknown


CUDA, CPU = {"version": "2.13.0", "cuda": "13.0", "hip": "", "xpu": ""}, {"version": "2", "cuda": "", "hip": ""}
SAID = '{"torch": ["sm_90", "gfx90a:xnack-", "; rm -r /"], "gpus": ["sm_90"]}'


def test_torch_is_asked_where_there_is_a_gpu_for_it(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{SAID}'\n")
    python.chmod(0o755)
    told = {"torch": ["sm_90", "gfx90a"], "gpus": ["sm_90"]}
    nothing: dict[str, list[str]] = {"torch": [], "gpus": []}
    for build, accelerators, wanted in (
        (CUDA, {"nvidia": 1, "amd": 0}, told),
        (CUDA, {"nvidia": 0, "amd": 1}, nothing),
        (CUDA, {"intel": 1}, nothing),
        (CPU, {"nvidia": 1}, nothing),
        (None, {"nvidia": 1}, nothing),
    ):
        assert gpu_targets.gpu_targets(str(python), build, accelerators) == wanted


@pytest.mark.parametrize("said", ["", "[]", '{"torch": 1, "gpus": []}', "{}"])
def test_what_is_no_answer_is_nothing_known(tmp_path: Path, said: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\necho '{said}'\n")
    python.chmod(0o755)
    assert gpu_targets.ask(str(python)) == {"torch": [], "gpus": []}
    assert gpu_targets.ask(str(tmp_path / "none")) == {"torch": [], "gpus": []}
