"""Two real nodes for all tests here, as good as new before each."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.lab.lab import Lab


@pytest.fixture(scope="session")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A lab of two nodes with two NICs. It is removed at the end, also when it came up in part only."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # also when pytest is told to end
    made = Lab(f"t{os.getpid()}", tmp_path_factory.mktemp("lab") / "inventory", nodes=2, nics=2, install=True)
    try:
        made.up()
        yield made
    finally:
        made.down()


@pytest.fixture
def lab(two_nodes: Lab) -> Iterator[Lab]:
    """The same lab, mended after the test."""
    yield two_nodes
    two_nodes.mend()
