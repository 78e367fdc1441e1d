"""Two nodes that start containers, for all tests here."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.containers.nodes import InImages, container_nodes


@pytest.fixture(scope="session", autouse=True)
def labs_are_removed() -> None:
    """Have fixtures end also when pytest is told to end."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InImages]:
    made = container_nodes(f"i{os.getpid()}", tmp_path_factory.mktemp("images"))
    try:
        made.set_up()
        yield made
    finally:
        made.cluster.lab.down()
