"""What all tests share: which of them may run beside each other."""

from __future__ import annotations

import pytest

# Most tests wait for nodes and for processes to end, so three groups of them run at the same time (`make test`); the
# tests of a group share nodes, and what setup.yml installed on this machine.
GROUPS = {"tests/lab/test_across": "cluster", "tests/lab": "nodes"}


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads it
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test its group."""
    for item in items:
        group = next((name for start, name in GROUPS.items() if item.nodeid.startswith(start)), "here")
        item.add_marker(pytest.mark.xdist_group(group))
