"""Facts of firewalls."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import (
    firewall,
)
from tests.unit.file_tree import tree

NFT = """table inet filter {
	chain input {
		type filter hook input priority filter; policy %s;
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
	}
}
"""


@pytest.mark.parametrize(
    ("rules", "hints"),
    [
        (NFT % "drop", 1),
        (NFT % "accept", 0),
        ("-P INPUT DROP\n-A INPUT -i lo -j ACCEPT\n", 1),
        ("-P INPUT ACCEPT\n", 0),
        ("", 0),
    ],
)
def test_a_firewall_by_its_rules(rules: str, hints: int) -> None:
    assert len(firewall.drops_input(rules)) == hints


def test_a_firewall_by_its_files(tmp_path: Path, plain_user: None) -> None:
    root = tree(tmp_path, **{"etc__ufw__ufw.conf": "# x\nENABLED=yes\n"})
    (tmp_path / "sys/fs/cgroup/system.slice/firewalld.service").mkdir(parents=True)
    assert firewall.firewall("not tried", root) == ["ufw is enabled", "firewalld runs"]
    assert firewall.firewall("not tried", "/none") == []
