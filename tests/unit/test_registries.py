"""A launcher, a backend and a vendor of GPUs have one row each; what cannot derive from it agrees (CONTRIBUTING.md)."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import yaml

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import gpus
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import (
    frames,
    survey,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.launchers import LAUNCHERS, MPIS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import documented
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import verify
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input import node_answers
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory import hostfile
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import (
    backends,
    environment,
    plan,
    request,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers import registry
from tests import transcripts

REPO = Path(__file__).parents[2]
BACKENDS = set(request.BACKENDS)
STOCK = {"gloo", "nccl"}  # backends of PyTorch's own wheels


def of_page(page: str, row: str) -> list[str]:
    """Return the words in code that open the lines of a page which match."""
    lines = re.findall(rf"^\| {row} \|", (REPO / "docs" / page).read_text(), re.MULTILINE)
    return re.findall(r"`(\w+)`", " ".join(lines))


def option(role: str, name: str) -> dict[str, Any]:
    """Return what a role documents of one of its options."""
    specs = yaml.safe_load((REPO / "roles" / role / "meta" / "argument_specs.yml").read_text())
    found: dict[str, Any] = specs["argument_specs"]["main"]["options"][name]
    return found


@pytest.mark.parametrize(
    ("place", "names", "wanted"),
    [
        ("_launchers/registry.py COMMANDS", registry.COMMANDS, LAUNCHERS),
        ("modules/launch.py", documented("launch")["launcher"]["choices"], LAUNCHERS),
        ("modules/stage.py", documented("stage")["launcher"]["choices"], LAUNCHERS),
        ("tests/transcripts.py", [program.launcher for program in transcripts.PROGRAMS.values()], LAUNCHERS),
        ("docs/launchers.md", of_page("launchers.md", r"`\w+`(?:, `\w+`)* \| \S.*\d.*"), LAUNCHERS),
        ("roles/verify", option("verify", "verify_launchers")["choices"], verify.TRIED),
        ("roles/verify, the default", option("verify", "verify_launchers")["default"], verify.TRIED),
        ("roles/torch_backends", option("torch_backends", "torch_backends_mpis")["choices"], MPIS),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_launcher_is_in(place: str, names: Any, wanted: Collection[str]) -> None:
    assert set(names) >= set(wanted) if place.startswith("docs/") else set(names) == set(wanted)


@pytest.mark.parametrize("name", MPIS)
def test_an_mpi_can_be_installed(name: str) -> None:
    """By a role of its name, in the version and the wheel that are locked."""
    assert (REPO / "roles" / name / "tasks" / "main.yml").exists()
    assert yaml.safe_load((REPO / "versions.yml").read_text())[name]["version"]
    wheel = LAUNCHERS[name].wheel.replace("_", "-")
    assert re.search(rf"^{wheel}==", (REPO / "locks" / f"{name}.txt").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_row_is_whole(name: str) -> None:
    """A launcher with a program says where it may be and what it is called; an MPI why versions must not be mixed."""
    row = LAUNCHERS[name]
    assert len(row.identity) in (3, 4)
    assert bool(row.programs) == bool(row.version) == bool(row.variable)
    assert row.hostfile in ("", *hostfile.SPELLINGS)
    assert bool(row.wheel) == bool(row.mixed)


@pytest.mark.parametrize(
    ("table", "names", "wanted"),
    [
        ("modules/launch.py", documented("launch")["backend"]["choices"], BACKENDS),
        ("backends.py PROVIDERS", backends.PROVIDERS, BACKENDS - STOCK),
        ("survey.py ASKED", survey.ASKED, BACKENDS - STOCK),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_backend_is_in(table: str, names: Any, wanted: set[str]) -> None:
    assert set(names) == wanted


def test_only_backends_are_in_the_tables_that_have_a_row_for_some() -> None:
    assert set(environment.LOOPBACK) <= BACKENDS


@pytest.mark.parametrize("vendor", survey.accelerators())
def test_every_vendor_is_in(vendor: str) -> None:
    """Those whose GPUs a job can use: the facts of a node are checked twice, by the head and by the controller."""
    assert vendor in plan.VENDORS
    assert vendor in gpus.VENDORS.values()
    frames.FACTS["accelerators"]({vendor: 1})
    node_answers.USABLE({vendor: 1})
