"""Facts of file systems and directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import (
    storage,
)

MOUNTS = """/dev/vda1 / ext4 rw 0 0
server:/export\\040one /home nfs4 rw 0 0
tmpfs /home/me\\040too tmpfs rw 0 0
overlay /home overlay rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "source", "kind"),
    [
        ("/", "/dev/vda1", "ext4"),
        ("/homer", "/dev/vda1", "ext4"),
        ("/home", "overlay", "overlay"),
        ("/home/me/x", "overlay", "overlay"),
        ("/home/me too", "tmpfs", "tmpfs"),
    ],
)
def test_the_file_system_of_a_path(path: str, source: str, kind: str) -> None:
    assert storage.mount_of(path, MOUNTS) == (source, kind)
    assert storage.mount_of("/home/x", "\n".join(MOUNTS.splitlines()[:2])) == ("server:/export one", "nfs4")


def test_a_place_that_is_not_there_yet_is_judged_where_it_would_be(tmp_path: Path) -> None:
    place = storage.place(str(tmp_path / "a/b"))
    assert place["near"] == str(tmp_path.resolve())
    assert place["writable"]
    assert 0 < place["free"] <= place["size"]


def test_directories_that_others_can_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, open_, sticky = tmp_path / "sticky/open/home", tmp_path / "sticky/open", tmp_path / "sticky"
    home.mkdir(parents=True)
    sticky.chmod(0o1777)
    assert storage.loose(str(home)) == []
    open_.chmod(0o777)
    assert storage.loose(str(home / "not/there")) == [{"path": str(open_), "why": "everybody"}]
    (tmp_path / "link").symlink_to(open_)
    assert {"path": str(open_), "why": "everybody"} in storage.loose(str(tmp_path / "link/home"))
    open_.chmod(0o755)
    monkeypatch.setattr("os.getuid", lambda: 4711)
    found = [row["path"] for row in storage.loose(str(home)) if row["why"] == "owner"]
    assert found[-1] == str(home)
