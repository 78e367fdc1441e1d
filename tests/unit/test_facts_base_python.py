"""Facts of the interpreter that makes environments."""

from __future__ import annotations

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import (
    base_python,
)


def test_a_python_that_makes_no_environments_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian has the module venv in a package of its own, python3-venv."""
    assert base_python.python_facts("")["venv"] is True
    monkeypatch.setattr(base_python.importlib.util, "find_spec", lambda _name: None)
    assert base_python.python_facts("")["venv"] is False
