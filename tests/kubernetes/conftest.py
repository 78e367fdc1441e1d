"""One cluster for all tests here that need one: it takes a quarter of a minute to come up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kubernetes.pods import Pods


@pytest.fixture(scope="session")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    made = Pods(tmp_path_factory.mktemp("kubernetes"))
    try:
        made.up()
        yield made
    finally:
        made.cluster.down()


@pytest.fixture
def nothing_is_left(pods: Pods) -> Iterator[None]:
    yield
    assert pods.left() == ""
