"""What all tests here share: the package, installed once, and a way to start ranks."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import pytest_report_teststatus, pytest_runtest_makereport
from torch_backends.tests import package

__all__ = ["came", "mishaps", "pytest_report_teststatus", "pytest_runtest_makereport", "run"]  # what pytest finds here

Run = Callable[..., subprocess.CompletedProcess[str]]
Environment = tuple[tuple[str, str], ...]
# What came of each check on every rank of a world (launcher, ranks, backend, environment).
Came = Callable[[str, int, str, Environment], list[dict[str, str]]]
RANKS = Path(__file__).with_name("ranks.py")
END = "the_end"
SAID = "said"  # what the ranks printed that did not come to their end
MISHAPS = Path(__file__).with_name("mishaps.py")
CHECKS, MISHAP_CHECKS = (
    [*re.findall(r"^@check\ndef (\w+)", path.read_text(), re.MULTILINE), END] for path in (RANKS, MISHAPS)
)


@pytest.fixture(scope="session")
def run() -> Run:
    """Return a function that runs a program on so many ranks of an MPI, to its end."""
    package.install()
    return package.start


@pytest.fixture(scope="session")
def came(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Came:
    """Return a function that tells what came of a world, nothing of a check that it never came to. Each runs once."""

    @functools.cache
    def play(launcher: str, ranks: int, backend: str, environment: Environment) -> list[dict[str, str]]:
        place = tmp_path_factory.mktemp("ranks")
        try:
            done = run(launcher, ranks, RANKS, backend, place, TORCH_FR_BUFFER_SIZE="2000", **dict(environment))
            end = done.stdout + done.stderr if done.returncode else ""
        except subprocess.TimeoutExpired as error:
            end = str(error)
        told = [place / f"{rank}.json" for rank in range(ranks)]
        return [{END: end} | (json.loads(path.read_text()) if path.exists() else {}) for path in told]

    return play


@pytest.fixture(scope="session")
def mishaps(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], list[dict[str, str]]]:
    """Return a function that tells what came of each check of mishaps.py (launcher, backend). It runs once."""

    @functools.cache
    def play(launcher: str, backend: str) -> list[dict[str, str]]:
        place = tmp_path_factory.mktemp("mishaps")
        try:
            done = run(launcher, 2, MISHAPS, place, backend)
            more = {SAID: done.stdout + done.stderr} if done.returncode else {}
        except subprocess.TimeoutExpired as error:
            more = {END: str(error)}
        told = [place / f"{rank}.json" for rank in range(2)]
        return [(json.loads(path.read_text()) if path.exists() else {}) | more for path in told]

    return play


def wrong(told: list[dict[str, str]], check: str) -> str:
    """Return what each rank found wrong in a check, an empty text if all is well."""
    found = {
        rank: told_here.get(check, f"never done\n{told_here.get(SAID, '')}") for rank, told_here in enumerate(told)
    }
    return "\n".join(f"rank {rank}: {text}" for rank, text in found.items() if text)
