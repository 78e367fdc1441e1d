"""Facts of firewalls."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import (
    firewall,
)
from tests.unit.file_tree import tree


def test_a_firewall_by_its_files(tmp_path: Path, plain_user: None) -> None:
    root = tree(tmp_path, **{"etc__ufw__ufw.conf": "# x\nENABLED=yes\n"})
    (tmp_path / "sys/fs/cgroup/system.slice/firewalld.service").mkdir(parents=True)
    assert firewall.firewall("not tried", root) == [
        {"kind": "ufw", "where": "it is enabled"},
        {"kind": "firewalld", "where": "it runs"},
    ]
    assert firewall.firewall("not tried", "/none") == []
