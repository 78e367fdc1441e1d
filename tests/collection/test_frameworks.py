"""What docs/frameworks.md says of frameworks is what `make compat` proves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.rank_variables import VARIABLES
from tests.compat import rows

REPO = Path(__file__).parents[2]
PAGE = (REPO / "docs/frameworks.md").read_text()
PINNED = re.compile(r"[a-z0-9-]+==[\w.]+")


def tables() -> list[list[str]]:
    """Return the tables of the page, each as its lines."""
    return [part.splitlines() for part in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE)]


def test_the_tables_are_those_of_the_rows() -> None:
    """Else print them anew: python tests/compat/rows.py."""
    assert tables() == [rows.table_of_programs(), rows.table_of_frameworks()]


def test_every_program_passed_under_every_launcher_when_it_was_run_last() -> None:
    known = rows.recorded()
    assert list(known) == [row.name for row in rows.ROWS]
    for row in rows.ROWS:
        assert set(known[row.name]) == set(rows.FRAMEWORKS[row.framework].launchers)
        assert all(outcome.passed for outcome in known[row.name].values()), row.name


def test_every_pattern_of_a_row_is_one_of_a_rank() -> None:
    """Curly brackets are its place, and no number of repetitions."""
    for row in rows.ROWS:
        for pattern in (*row.shows, *row.first):
            re.compile(pattern.format(rank=0, size=4, local=0))


def test_every_variable_of_a_rank_is_documented() -> None:
    script = (REPO / "docs/run-my-script.md").read_text()
    for name in VARIABLES:
        assert f"`{name}`" in PAGE, name
        assert f"`{name.replace('OMPI_COMM_WORLD', '')}`" in script or f"`{name}`" in script, name


def test_a_framework_reads_what_ranks_are_given() -> None:
    assert {name for row in rows.FRAMEWORKS.values() for name in row.reads} <= set(VARIABLES)


@pytest.mark.parametrize("name", rows.FRAMEWORKS)
def test_every_package_is_pinned(name: str) -> None:
    framework = rows.FRAMEWORKS[name]
    if framework.requirements is None:
        wanted = yaml.safe_load((REPO / "versions.yml").read_text())["pytorch"]["version"]
        assert (framework.package, framework.version) == ("torch", wanted)
        return
    comment, *lines = framework.requirements.read_text().splitlines()
    assert comment.startswith("#") and all(PINNED.fullmatch(line) for line in lines)
    assert f"{framework.package}=={framework.version}" in lines


def test_every_row_is_of_a_framework_and_starts_a_file_that_is_there() -> None:
    assert {row.framework for row in rows.ROWS} == set(rows.FRAMEWORKS)
    assert len({row.name for row in rows.ROWS}) == len(rows.ROWS)
    place = {"here": rows.PLACE, "own": REPO / "torch_backends" / "tests"}
    for row in rows.ROWS:
        script = row.start.get("workload", "{here}/rows.py")
        assert script.startswith("{source}/") or Path(script.format(**place)).is_file()
        assert ("workload" in row.start) != ("module" in row.start)
