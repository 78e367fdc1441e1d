"""A launcher, a backend and a vendor of GPUs are in every table that has a row for each (CONTRIBUTING.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import gpus
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime import (
    frames,
    launcher_programs,
    rank,
    survey,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import documented
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import verify
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input import node_answers
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory import hostvars
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import (
    backends,
    environment,
    plan,
    request,
    requirements,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launchers import registry
from tests import transcripts

REPO = Path(__file__).parents[2]
LAUNCHERS, BACKENDS = set(request.LAUNCHERS), set(request.BACKENDS)
PROGRAMS = LAUNCHERS - {"torchrun"}  # which is a part of torch: its program is the ranks' Python
STOCK = {"gloo", "nccl"}  # backends of PyTorch's own wheels


def of_stage() -> list[str]:
    """Return the launchers that stage's code takes."""
    found = re.search(r'"choices": (\["openmpi".*\])', (REPO / "plugins/modules/stage.py").read_text())
    assert found
    return re.findall(r'"(\w+)"', found[1])


def of_page(page: str, row: str) -> list[str]:
    """Return the words in code that open the lines of a page which match."""
    lines = re.findall(rf"^\| {row} \|", (REPO / "docs" / page).read_text(), re.MULTILINE)
    return re.findall(r"`(\w+)`", " ".join(lines))


@pytest.mark.parametrize(
    ("table", "names", "wanted"),
    [
        ("_launchers/registry.py LAUNCHERS", registry.LAUNCHERS, LAUNCHERS),
        ("requirements.py ON_WORKERS, ON_HEAD", (*requirements.ON_WORKERS, *requirements.ON_HEAD), LAUNCHERS),
        ("hostvars.py LAUNCHER_VARIABLES", hostvars.LAUNCHER_VARIABLES, PROGRAMS),
        ("launcher_programs.py SAYS", launcher_programs.SAYS, PROGRAMS),
        ("launcher_programs.py PROGRAMS", launcher_programs.PROGRAMS, PROGRAMS),
        ("rank.py IDENTITIES", rank.IDENTITIES, LAUNCHERS),
        ("modules/launch.py", documented("launch")["launcher"]["choices"], LAUNCHERS),
        ("modules/stage.py DOCUMENTATION", documented("stage")["launcher"]["choices"], LAUNCHERS),
        ("modules/stage.py main()", of_stage(), LAUNCHERS),
        ("tests/transcripts.py", [program.launcher for program in transcripts.PROGRAMS.values()], LAUNCHERS),
        ("docs/launchers.md", of_page("launchers.md", r"`\w+`(?:, `\w+`)* \| \S.*\d.*"), LAUNCHERS),
        ("verify.py LAUNCHERS", verify.LAUNCHERS, {*backends.MPIS, "torchrun"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_launcher_is_in(table: str, names: Any, wanted: set[str]) -> None:
    assert set(names) >= wanted if table.startswith("docs/") else set(names) == wanted


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
