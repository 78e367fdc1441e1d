"""What all tests share: which of them run beside each other in `make test`."""

from __future__ import annotations

from typing import Any

import pytest

LAB = "tests/lab/"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Have two groups of tests run at the same time, each in order: they share nodes, or what is on this machine."""
    from xdist.scheduler import LoadScopeScheduling

    class Groups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return LAB if nodeid.startswith(LAB) else "others"

    return Groups(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-transcripts", action="store_true", help="write tests/transcripts anew")
