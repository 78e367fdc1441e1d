"""Reports on the controller: private, whole or not there, and a path that cannot be written is named."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.report_file import keep_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError


def test_a_report_is_its_owners_alone_whatever_the_umask(tmp_path: Path) -> None:
    """It names the accounts, addresses and versions of all nodes."""
    before = os.umask(0)
    try:
        path = Path(keep_report("preflight_report", str(tmp_path / "reports" / "x.json"), {"ok": True}))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == {"ok": True}


def test_a_report_takes_the_place_of_the_last_one_with_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("older and longer than the new one " * 9)
    path.chmod(0o644)
    keep_report("preflight_report", str(path), {"ok": False})
    assert json.loads(path.read_text()) == {"ok": False}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("name", ["/proc/none/x.json", "file/x.json", "directory", "~no-such-user/x.json", "/"])
def test_a_report_that_cannot_be_written_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "directory").mkdir()
    with pytest.raises(InputError, match=f'^verify_report: got "{name}"; .*: give the path of a writable file$'):
        keep_report("verify_report", name, {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "file"]  # nothing half written
