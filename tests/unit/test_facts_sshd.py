"""Facts of the system's sshd."""

from __future__ import annotations

from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import (
    sshd,
)
from tests.unit.file_tree import tree


@pytest.mark.parametrize(
    ("files", "value", "source"),
    [
        ({"sshd_config": "Port 22\n#MaxStartups 1\n"}, "10:30:100", "the default of sshd"),
        ({"sshd_config": "maxstartups=50:30:200 # more\nMaxStartups 1\n"}, "50:30:200", "sshd_config"),
        ({"sshd_config": "Match User x\n  MaxStartups 3\n"}, "10:30:100", "the default of sshd"),
        (
            {
                "sshd_config": "Include sshd_config.d/*.conf\nMaxStartups 1\n",
                "sshd_config.d__a.conf": "MaxStartups 7\n",
            },
            "7",
            "sshd_config",
        ),
        ({"other": ""}, "", ""),
    ],
)
def test_max_startups_by_the_files_of_sshd(
    tmp_path: Path, plain_user: None, files: dict[str, str], value: str, source: str
) -> None:
    root = tree(tmp_path, **{f"etc__ssh__{name}": text for name, text in files.items()})
    told = sshd.sshd_max_startups("not tried", root)
    assert told["max_startups"] == value
    assert told["from"].endswith(source)


def test_an_include_of_itself_ends(tmp_path: Path) -> None:
    root = tree(tmp_path, sshd_config="Include sshd_config\n")
    assert sshd.sshd_setting("maxstartups", f"{root}/sshd_config") == ""
