"""What all tests share: which of them run beside each other in `make test`."""

from __future__ import annotations

from typing import Any

import pytest

CLUSTER = "tests/lab/test_across"  # its four nodes are made once
LAB = "tests/lab/"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have three groups of tests run at the same time: most wait for nodes, or for processes to end.

    The tests of a group share nodes, or what setup.yml installed on this machine.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((start for start in (CLUSTER, LAB) if nodeid.startswith(start)), "others")

    return Groups(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-transcripts", action="store_true", help="write tests/transcripts anew")
