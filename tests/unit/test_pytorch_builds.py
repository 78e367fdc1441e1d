"""Which build of PyTorch a node gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.filter.pytorch_build import pytorch_build
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.pytorch_builds import (
    GPU_MB,
    Build,
    choose_build,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._software.versions_file import entry, read_lock

ROWS = entry(read_lock(str(Path(__file__).parents[2] / "versions.yml")), "pytorch.builds")
WHL = "https://download.pytorch.org/whl/"


def node(*vendors: str, driver: str = "", old: bool = False, target: str = "") -> dict[str, Any]:
    """Return the facts of a node with one GPU of each vendor."""
    more = {"target": target}
    gpus = [{"vendor": vendor, "open_modules": vendor == "nvidia" and not old, **more} for vendor in vendors]
    return {"gpus": gpus, "modules": {"nvidia": driver} if driver else {}}


@pytest.mark.parametrize(
    ("wanted", "facts", "build"),
    [
        (
            "auto",
            node(),
            Build("", preferred_index=WHL + "cpu"),
        ),  # where it cannot be reached, the one of the package index
        ("", node(), Build("")),
        ("", node("nvidia"), Build("", disk_mb=GPU_MB)),
        ("auto", node("nvidia", driver="580.95.05"), Build("cu130", disk_mb=GPU_MB)),
        ("auto", node("nvidia", driver="550.54.14"), Build("cu126", "+cu126", WHL + "cu126", GPU_MB)),
        ("auto", node("nvidia", driver="580.95.05", old=True), Build("cu126", "+cu126", WHL + "cu126", GPU_MB)),
        ("auto", node("nvidia"), Build("cu130", disk_mb=GPU_MB)),  # its driver comes later
        ("auto", node("amd"), Build("rocm7.2", "+rocm7.2", WHL + "rocm7.2", GPU_MB)),
        ("auto", node("amd", target="gfx942"), Build("rocm7.2", "+rocm7.2", WHL + "rocm7.2", GPU_MB)),
        ("auto", node("intel"), Build("xpu", "+xpu", WHL + "xpu", GPU_MB)),
        ("cu126", node("amd", "nvidia", driver="550.54.14"), Build("cu126", "+cu126", WHL + "cu126", GPU_MB)),
        ("cpu", node("nvidia", driver="470.82.01"), Build("cpu", "+cpu", WHL + "cpu")),
    ],
)
def test_the_best_build_that_can_run(wanted: str, facts: dict[str, Any], build: Build) -> None:
    assert choose_build("n1", wanted, facts, ROWS) == build


@pytest.mark.parametrize(
    ("wanted", "facts", "says"),
    [
        ("cu128", node(), 'pytorch_build: got "cu128"; give one of auto, cu130, '),
        (
            "cu130",
            node("nvidia", driver="550.54.14"),
            "n1 has the driver 550.54.14, and this build needs 580.65.06 or newer: give",
        ),
        (
            "cu130",
            node("nvidia", old=True),
            "n1 has a GPU older than Turing, which CUDA 13 does not support: give one of auto",
        ),
        ("rocm7.2", node("nvidia"), "n1 has no GPU of amd: give one of auto, cu130, cu132, cu126, cpu"),
        (
            "rocm7.2",
            node("amd", target="gfx1011"),
            "n1 has a GPU of target gfx1011, and this build has code for gfx900 ",
        ),
        ("auto", node("amd", target="gfx1011"), "no build fits n1 (rocm7.2: has a GPU of target gfx1011, and"),
        ("auto", node("amd", "nvidia"), "n1 has GPUs of amd and nvidia: give one of cu130, "),
        (
            "auto",
            node("nvidia", driver="470.82.01"),
            "no build fits n1 (cu130: has the driver 470.82.01, and this build needs 580",
        ),
    ],
)
def test_a_refusal_names_the_row(wanted: str, facts: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as refusal:
        choose_build("n1", wanted, facts, ROWS)
    assert says in str(refusal.value)
    assert pytorch_build(facts, wanted, ROWS, "n1") == {"refusal": str(refusal.value)}  # the role ends with it
