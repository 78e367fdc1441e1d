"""What all tests here share: the package, installed once, and a way to start ranks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from torch_backends.tests import package

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="session")
def run() -> Run:
    """Return a function that runs a program on so many ranks of an MPI, to its end."""
    package.install()
    return package.start
