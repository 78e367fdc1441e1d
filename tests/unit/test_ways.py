"""The parts that join nodes: a way there, a shipped folder, one clock."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils import _agent, _bootstrap, _peer
from ansible_collections.torchfleet.cluster.plugins.module_utils._folder import FolderCopy
from ansible_collections.torchfleet.cluster.plugins.module_utils._link import Link, LinkLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils import _runtime
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._folder import folder_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError


def test_our_code_comes_up_behind_a_noisy_login(tmp_path: Path) -> None:
    """Profiles print, and the first time the archive has to cross the wire; the second time it must not."""
    start = _bootstrap.bootstrap(sys.executable, str(tmp_path / "a home"), _runtime.digest())
    for archive in (_runtime.archive, never):
        link = Link(["/bin/sh", "-c", 'echo "Welcome!"; echo; exec "$@"', "sh", *start])
        link.greet(archive)
        assert link.ask("clock")["time"] > 1e9
        link.close()


def never() -> bytes:
    raise AssertionError("the archive was asked for again")


def test_a_way_that_leads_nowhere_tells_why() -> None:
    with pytest.raises(LinkLost, match="Permission denied"):
        Link(["/bin/sh", "-c", "echo banner >&2; echo 'me@n2: Permission denied (publickey).' >&2"]).greet(bytes)
    with pytest.raises(LinkLost, match="/no/such: No such file"):
        Link(["/no/such"])
    silent = Link(["sleep", "60"])
    with pytest.raises(LinkLost, match="no answer within 0 s"):
        silent.greet(bytes, seconds=0.2)
    silent.process.kill()
    silent.close()


def test_a_daemon_is_looked_for_where_it_lies_on_its_node() -> None:
    command = "PRTE_PREFIX=/home/a/ompi;export PRTE_PREFIX;/home/a/ompi/bin/prted -x /home/a/ompi2"
    there = "PRTE_PREFIX=/srv/o;export PRTE_PREFIX;/srv/o/bin/prted -x /home/a/ompi2"
    names = {"launcher_prefix": "/home/a/ompi", "nic": "eth0"}, {"launcher_prefix": "/srv/o", "nic": "ib0"}
    assert _agent.at_home(command, *names) == there
    proxy = '"/home/a/ompi/bin/hydra_pmi_proxy" --control-port 10.0.0.1:1 --iface eth0 --pgid 0 --x eth0'
    assert _agent.at_home(proxy, *names) == (
        '"/srv/o/bin/hydra_pmi_proxy" --control-port 10.0.0.1:1 --iface ib0 --pgid 0 --x eth0'
    )


def test_times_of_a_node_are_turned_into_ours() -> None:
    report = {"records": {"3": {"rank": 3, "started": 105.0, "ended": 107.5}}}
    assert _peer.in_our_time(report, 5.0)["records"]["3"] == {"rank": 3, "started": 100.0, "ended": 102.5}


def folder(root: Path) -> Path:
    (root / "pkg").mkdir(parents=True)
    (root / "train.py").write_text("import pkg\n")
    (root / "pkg" / "__init__.py").write_text("A = 1\n")
    (root / "tool.sh").write_text("#!/bin/sh\n")
    (root / "tool.sh").chmod(0o755)
    for hidden in (".env", ".git/config", "__pycache__/x.pyc", "runs/old/result.json", "venv/bin/python"):
        (root / hidden).parent.mkdir(parents=True, exist_ok=True)
        (root / hidden).write_text("never")
    return root / "train.py"


def test_a_folder_is_what_a_script_needs(tmp_path: Path) -> None:
    made = folder_of(str(folder(tmp_path / "project")))
    assert [row[0] for row in made.listing()] == ["pkg/__init__.py", "tool.sh", "train.py"]
    assert [row[2] for row in made.listing()] == [False, True, False]
    assert made.name.startswith("project-")


def test_folders_that_are_not_for_shipping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match="would be shipped to the nodes: put the script into a folder of its own"):
        folder_of(str(script))
    monkeypatch.setenv("HOME", "/nonexistent")
    with open(tmp_path / "data.bin", "wb") as data:
        data.truncate(300 << 20)
    with pytest.raises(InputError, match="more than 10000 files or 256 MiB"):
        folder_of(str(script))


def ship(source: Path, home: Path) -> tuple[list[str], str]:
    """Ship a folder as the wire would; return what was sent, and what went wrong."""
    made = folder_of(str(source))
    copy = FolderCopy(str(home), made.name, made.listing())
    sent = list(copy.wanted)
    for path in sent:
        data = (source.parent / path).read_bytes()
        copy.put({"name": path, "first": True, "data": data[:3]})
        copy.put({"name": path, "first": False, "data": data[3:]})
    return sent, copy.lay()


def test_only_what_differs_is_sent_and_what_a_program_wrote_stays(tmp_path: Path) -> None:
    script = folder(tmp_path / "project")
    home = tmp_path / "home"
    assert ship(script, home) == (["pkg/__init__.py", "tool.sh", "train.py"], "")
    there = home / "workloads" / folder_of(str(script)).name
    assert (there / "tool.sh").stat().st_mode & 0o777 == 0o700
    (there / "checkpoint.pt").write_text("mine")
    script.write_text("import pkg, sys\n")
    (tmp_path / "project" / "tool.sh").unlink()
    assert ship(script, home) == (["train.py"], "")
    assert (there / "train.py").read_text() == "import pkg, sys\n"
    assert not (there / "tool.sh").exists() and (there / "checkpoint.pt").exists()


def test_a_file_that_changed_on_the_way_is_noticed(tmp_path: Path) -> None:
    script = folder(tmp_path / "project")
    made = folder_of(str(script))
    copy = FolderCopy(str(tmp_path / "home"), made.name, made.listing())
    for path in copy.wanted:
        copy.put({"name": path, "first": True, "data": b"something else"})
    assert "changed while it was shipped" in copy.lay()


def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    script = folder(tmp_path / "project")
    (tmp_path / "home").write_text("a file")
    assert "Not a directory" in ship(script, tmp_path / "home")[1]
