"""The folders of the plugins: each has one concern, and imports go one way."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPO = Path(__file__).parents[2]
PACKAGE = "ansible_collections.torchfleet.cluster.plugins."
HALVES = ("plugin_utils", "module_utils")
DESIGN = (REPO / "docs" / "design.md").read_text()
ROOMS = re.findall(r"^\| `(_\w+)` \|", DESIGN, re.MULTILINE)
RUNTIME = REPO / "plugins" / "module_utils" / "_runtime"
RUNTIME_ROOMS = re.findall(r"^\| `_runtime/(\w+)` \|", DESIGN, re.MULTILINE)


@functools.cache
def text(path: Path) -> str:
    return path.read_text()


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    """Return all nodes of the syntax of a file."""
    return list(ast.walk(ast.parse(text(path))))


def imports(path: Path) -> Iterator[tuple[str, str]]:
    """Return half and folder of every file of ours that a file takes from another folder."""
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            half, room = f"{node.module}..".removeprefix(PACKAGE).split(".")[:2]
            yield half, room or node.names[0].name


def test_the_documentation_has_every_folder() -> None:
    there = {path.name for half in HALVES for path in (REPO / "plugins" / half).glob("_*/") if any(path.glob("*.py"))}
    assert there == set(ROOMS)
    assert {path.parent.name for path in RUNTIME.glob("*/*.py")} == set(RUNTIME_ROOMS)


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("room", ROOMS)
def test_imports_go_down(half: str, room: str) -> None:
    for path in (REPO / "plugins" / half / room).glob("*.py"):
        for to_half, to_room in imports(path):
            assert to_half in HALVES[HALVES.index(half) :], f"{path.name} takes something of the controller's half"
            if to_half == half:
                assert ROOMS.index(to_room) > ROOMS.index(room), f"{path.name} imports {to_room}"


def test_functions_are_short() -> None:
    """The longest that was found readable has 44 lines."""
    long = [
        f"{path.relative_to(REPO)}: {node.name} has {lines} lines"
        for folder in ("plugins", "workloads", "torch_backends/src")
        for path in (REPO / folder).rglob("*.py")
        for node in nodes(path)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for lines in [(node.end_lineno or 0) - node.lineno + 1]
        if lines > 44
    ]
    assert long == []


def test_files_are_short() -> None:
    """Documentation of options apart, which is as long as there are options."""
    long = [
        f"{path.relative_to(REPO)} has {lines} lines"
        for folder in ("plugins", "workloads", "torch_backends/src")
        for path in (REPO / folder).rglob("*.py")
        for lines in [len(text(path).splitlines())]
        if lines > 400 and path.parent.name != "modules"
    ]
    assert long == []


def test_files_of_one_run_have_different_names() -> None:
    """Pytest imports what `make nodeless` runs by the names of the files alone."""
    folders = ("tests/unit", "tests/integration", "torch_backends/tests")
    names = [path.name for folder in folders for path in (REPO / folder).glob("test_*.py")]
    assert sorted(names) == sorted(set(names))


def test_what_is_shipped_to_nodes_needs_nothing_else() -> None:
    """All that it imports of ours is in `_runtime`, which has another full name on a node."""
    for path in RUNTIME.rglob("*.py"):
        assert list(imports(path)) == [], path.name
        depth = len(path.relative_to(RUNTIME).parts)
        assert all(node.level <= depth for node in nodes(path) if isinstance(node, ast.ImportFrom)), path.name


@pytest.mark.parametrize("room", RUNTIME_ROOMS)
def test_imports_go_down_in_what_is_shipped(room: str) -> None:
    below = RUNTIME_ROOMS[RUNTIME_ROOMS.index(room) + 1 :]
    for path in (RUNTIME / room).glob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.ImportFrom) and node.level == 2:
                assert (node.module or "").split(".")[0] in below, f"{path.name} imports {node.module}"
