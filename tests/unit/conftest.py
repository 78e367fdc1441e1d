"""What the tests of the pure core share: a cluster of this machine."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import processes
from ansible_collections.torchfleet.cluster.plugins.module_utils._software import ledger
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import runtime_archive
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from tests.unit.laid_runtime import lay_runtime
from tests.unit.nodes import HERE, plan_here, plan_on_two


@pytest.fixture(scope="session")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Places for ledgers, of which none is there yet."""
    root = tmp_path_factory.mktemp("ledgers")
    return (root / str(number) / "torchfleet" / "installed.json" for number in itertools.count())


@pytest.fixture(autouse=True)
def ledger_of_the_test(ledgers: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep what tests install, as root and with stubs, out of the notes of this machine."""
    monkeypatch.setattr(ledger, "LEDGER", next(ledgers))


@pytest.fixture(scope="module", autouse=True)
def others_live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have a clean-up see marks of these tests' jobs alone.

    It ends what other jobs of the user left, whatever their home: those of another process of tests too.
    """
    seen, home = processes.marked, f"{tmp_path_factory.getbasetemp()}/"

    def marked(children: processes.Children | None = None) -> list[tuple[processes.Process, processes.Mark]]:
        return [(process, mark) for process, mark in seen(children) if mark.job_dir.startswith(home)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "marked", marked)
        yield


@pytest.fixture(scope="session")
def short_places() -> Iterator[list[str]]:
    """An empty directory, if there is one."""
    places: list[str] = []
    yield places
    for place in places:
        os.rmdir(place)


@pytest.fixture(autouse=True)
def short_tmpdir(short_places: list[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have what a test stages in a directory that goes with the test; a path of pytest's is too long for sockets.

    Most tests stage nothing: the next one gets the directory of such a test.
    """
    place = short_places.pop() if short_places else tempfile.mkdtemp(prefix="unit-")
    monkeypatch.setenv("TMPDIR", place)
    yield
    try:
        if not os.listdir(place):
            short_places.append(place)
            return
    except OSError:
        pass  # the test has put something else in its place
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def node() -> Node:
    return HERE


@pytest.fixture
def plan() -> Callable[..., LaunchPlan]:
    return plan_here


@pytest.fixture
def plan_two() -> Callable[..., LaunchPlan]:
    return plan_on_two


@pytest.fixture(scope="session")
def hook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory that a rank has in front of its PYTHONPATH."""
    root = tmp_path_factory.mktemp("runtime")
    (root / "hook").mkdir()
    for name, data in runtime_archive.sources().items():
        if name.startswith("hook/"):
            (root / name).write_bytes(data)
    return root / "hook"


@pytest.fixture(scope="session")
def runtime_lib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Our code as a node has it, compiled; see share_runtime()."""
    lib = tmp_path_factory.mktemp("lib")
    lay_runtime(lib)
    return lib


@pytest.fixture(scope="session")
def repo_docs() -> str:
    """Return the text of all pages."""
    return "\n".join(page.read_text() for page in sorted((Path(__file__).parents[2] / "docs").glob("*.md")))


@pytest.fixture
def plain_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a plain user: what only root is told must not be asked of this machine."""
    monkeypatch.setattr(os, "getuid", lambda: 1000)
