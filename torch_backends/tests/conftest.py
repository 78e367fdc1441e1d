"""What all tests here share: the package, built once, and a way to start ranks."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_backends.tests import package

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def installed() -> Path:
    """Return the directory with the package, for PYTHONPATH."""
    package.install_mpis()
    package.install_compiler()
    return package.build()


@pytest.fixture(scope="session")
def run(installed: Path) -> Run:
    """Return a function that runs a program on so many ranks of an MPI, to its end."""
    return functools.partial(package.start, installed)
