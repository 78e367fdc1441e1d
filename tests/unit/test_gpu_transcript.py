"""What is kept of a run of `make gpu`: no names and addresses, and not much."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.gpu import gpu_transcript
from tests.gpu.gpu_machine import Machine
from tests.gpu.gpu_steps import steps
from tests.gpu.gpu_transcript import COLUMNS, LINES, clean, path_for, section

HOSTS = {"gpu-17": "HOST", "gpu-17.example.org": "HOST"}
NAMES = {"/home/alice/torchfleet": "REPO", "/home/alice": "~", "alice": "USER", **HOSTS}


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("cuda:0 of rank 1 on gpu-17: 3 wrong results", "cuda:0 of rank 1 on HOST: 3 wrong results"),
        ("/home/alice/torchfleet/workloads/pi.py of alice", "REPO/workloads/pi.py of USER"),
        ("eth0:10.3.4.17<0> and fe80::a00:27ff:fe4e:66a1%eth0", "eth0:ADDRESS<0> and ADDRESS%eth0"),
        ("GPU 0: H100 (UUID: GPU-5a1b2c3d-0000-1111-2222-0123456789ab)", "GPU 0: H100 (UUID: UUID)"),
        ("alicein gpu-170 stay", "alicein gpu-170 stay"),
        ("\x1b[31mred\x07", "[31mred"),
        ("torch 2.13.0, NCCL 2.27.3", "torch 2.13.0, NCCL 2.27.3"),
    ],
)
def test_names_and_addresses_are_replaced(line: str, kept: str) -> None:
    assert clean(line, NAMES) == kept


def test_a_transcript_is_bounded() -> None:
    lines = section("x", [f"{number} " + "y" * 1000 for number in range(10_000)], {})
    assert len(lines) == LINES + 3 and max(map(len, lines)) <= COLUMNS + 2
    assert lines[0] == "# x" and f"> ... {10_000 - LINES} lines ..." in lines and lines[-2].startswith("> 9999 ")


def test_a_file_is_named_after_the_gpus_alone() -> None:
    assert path_for("nvidia", "NVIDIA H100 80GB HBM3", 8).name == "gpu-nvidia-h100-80gb-hbm3-x8.txt"
    assert path_for("amd", "../../etc", 1) == gpu_transcript.DIRECTORY / "gpu-amd-etc-x1.txt"


def test_what_this_machine_is_called_is_known() -> None:
    names = gpu_transcript.names_here(REPO=Path("/srv/repo"))
    assert names["/srv/repo"] == "REPO" and "HOST" in names.values() and "root" not in names


def test_what_was_recorded_on_a_gpu_was_well() -> None:
    """By the steps as they are now: a new one has to be recorded, or the pages say what was not run."""
    text = (gpu_transcript.DIRECTORY / "gpu-nvidia-h200-x1.txt").read_text()
    there = Machine(
        "python", "nvidia", "cuda", 1, "NVIDIA H200", "", "nccl", True, "mpirun", "ansible-playbook", shm=True
    )
    *parts, end = re.findall(r"^# (.*)", text, re.MULTILINE)
    wanted = [f"{step.name}: {'left out' if step.left_out else 'as it must be'}" for step in steps(there, Path("x"))]
    assert [re.sub(r" \(\d+ s\)$", "", part) for part in parts[3:]] == wanted
    assert end == "all is well"
    said = [line.removeprefix("> ") for line in text.splitlines()]
    assert [line for line in said if clean(line, {}) != line] == []
