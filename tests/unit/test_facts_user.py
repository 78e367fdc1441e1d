"""Facts of the user."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import (
    user,
)


@pytest.mark.parametrize(
    ("program", "may_try", "state"),
    [
        ("exit 0", True, "yes"),
        ("exit 1", True, "no"),
        ("exit 0", False, "not tried"),  # a try that fails is logged, and root gets a mail
        ("", True, "missing"),
    ],
)
def test_sudo_is_tried_only_where_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plain_user: None, program: str, may_try: bool, state: str
) -> None:
    if program:
        (tmp_path / "sudo").write_text(f"#!/bin/sh\necho tried >{tmp_path}/tried\n{program}\n")
        (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert user.sudo_state(may_try) == state
    assert (tmp_path / "tried").exists() == (state in ("yes", "no"))
