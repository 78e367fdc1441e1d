"""Host keys that ssh does not know yet: where it looks for them, what is shown, and that only this is saved."""

from __future__ import annotations

import stat
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible.playbook.play_context import PlayContext
from ansible.plugins.loader import connection_loader

from ansible_collections.torchfleet.cluster.plugins.action import host_keys
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import fingerprint
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh import first_contact
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh.first_contact import (
    Place,
    Row,
    digest,
    known_keys,
    place_of,
    save,
    settings_of,
    table,
)

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJILq8aotMLm4OTu9eWN0vDPEkMCDHxRZ4DV2GWYOAq"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDaPOIEJFta572QMZ12MXJy3ih/4tNJvX73hg1cjFcfa"
FILES = ("UserKnownHostsFile=/u/known", "GlobalKnownHostsFile=/g/known")


def place(*options: str, host: str = "Node.example.org") -> Place | None:
    """Return where ssh itself says that it looks."""
    words = [word for option in (*FILES, *options) for word in ("-o", option)]
    done = subprocess.run(["ssh", "-F", "none", *words, "-G", "--", host], capture_output=True, text=True, check=True)
    return place_of(settings_of(done.stdout))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ((), "node.example.org"),
        (("Port=2201",), "[node.example.org]:2201"),
        (("HostName=192.0.2.7",), "192.0.2.7"),
        (("HostKeyAlias=n7", "Port=2201"), "n7"),
        (("StrictHostKeyChecking=yes",), "node.example.org"),
        (("StrictHostKeyChecking=no",), None),
        (("StrictHostKeyChecking=accept-new",), None),
        (("VerifyHostKeyDNS=yes",), None),
        (("KnownHostsCommand=/bin/true",), None),
    ],
)
def test_a_key_is_looked_for_where_ssh_looks(options: tuple[str, ...], name: str | None) -> None:
    assert place(*options) == (Place(name, ("/u/known", "/g/known")) if name else None)


def row(file: Path, **changed: object) -> Row:
    return replace(Row("n7", Place("[192.0.2.7]:2201", (str(file),)), KEY), **changed)  # type: ignore[arg-type]


def test_what_was_shown_is_saved_and_then_known(tmp_path: Path) -> None:
    file = tmp_path / "ssh" / "known_hosts"
    one = row(file)
    assert known_keys(one.place) == []
    assert save([one]) == [str(file)]
    assert (stat.S_IMODE(file.parent.stat().st_mode), stat.S_IMODE(file.stat().st_mode)) == (0o700, 0o600)
    assert file.read_text() == f"[192.0.2.7]:2201 {KEY}\n"
    assert known_keys(one.place) == [KEY]
    file.write_text(f"192.0.2.1 {OTHER}")  # a last line without its end
    save([one])
    assert file.read_text() == f"192.0.2.1 {OTHER}\n[192.0.2.7]:2201 {KEY}\n"
    subprocess.run(["ssh-keygen", "-H", "-f", file], check=True, capture_output=True)
    assert known_keys(one.place) == [KEY]


def test_a_key_is_replaced_only_where_it_was_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    save([row(file, key=OTHER)])
    save([row(file, was=(OTHER,))])
    assert file.read_text() == f"[192.0.2.7]:2201 {KEY}\n"


@pytest.mark.parametrize("path", ["/dev/null", "none", "/home/%u/known"])
def test_a_list_that_is_no_file_is_refused(path: str) -> None:
    says = r"UserKnownHostsFile: got .* save the key of n7 by hand: \[192.0.2.7\]:2201 ssh-ed25519 "
    with pytest.raises(InputError, match=says):
        save([Row("n7", Place("[192.0.2.7]:2201", (path,)), KEY)])


def test_a_list_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "known_hosts").mkdir()
    with pytest.raises(InputError, match=r"UserKnownHostsFile: got .*known_hosts.; it cannot be written: "):
        save([row(tmp_path / "known_hosts")])


def test_the_digest_is_of_all_that_is_saved() -> None:
    rows = [row(Path("/u/known")), row(Path("/u/known"), node="n8")]
    assert digest(rows) == digest(rows[::-1])
    others = (
        rows[:1],
        [rows[0], replace(rows[1], key=OTHER)],
        [rows[0], replace(rows[1], place=Place("192.0.2.8", ("/u/known",)))],
        [rows[0], replace(rows[1], place=Place("[192.0.2.7]:2201", ("/u/other",)))],
        [rows[0], replace(rows[1], was=(OTHER,))],
    )
    assert len({digest(other) for other in (rows, *others)}) == 6


def test_the_table_has_a_line_for_each_key() -> None:
    head, first, second = table([row(Path("/u")), row(Path("/u"), node="node-8", was=(OTHER, "cert-authority junk"))])
    assert head.split() == ["node", "known", "as", "type", "fingerprint"]
    assert first.split() == ["n7", "[192.0.2.7]:2201", "ssh-ed25519", fingerprint(KEY)]
    assert second.endswith(f"  replaces {fingerprint(OTHER)}")


def test_a_node_that_does_not_answer_is_left_to_preflight(tmp_path: Path) -> None:
    options = ["-F", "none", "-o", f"UserKnownHostsFile={tmp_path}/none", "-o", "ConnectTimeout=5", "-p", "9"]
    assert first_contact.unknown({"n7": (["ssh", *options], "127.0.0.1")}, []) == []


def test_without_ssh_it_is_left_to_preflight() -> None:
    assert first_contact.unknown({"n7": (["/none/ssh"], "127.0.0.1")}, []) == []


def test_a_name_with_capitals_is_found_where_ssh_writes_small_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    def ssh(argv: Sequence[str]) -> str:
        (file,) = (word.partition("=")[2].strip('"') for word in argv if word.startswith("UserKnownHostsFile="))
        Path(file).write_text(f"node7 {KEY}\n")
        return ""

    monkeypatch.setattr(first_contact, "said", ssh)
    assert first_contact.shown_key(["ssh"], "192.0.2.7", Place("Node7", ("/u/known",))) == KEY


def test_nobody_logs_in_to_a_host_whose_key_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be another machine: it is shown no key of the user's, and nothing is written but a file of our own."""
    asked: list[Sequence[str]] = []
    monkeypatch.setattr(first_contact, "said", lambda argv: asked.append(argv) or "")
    assert first_contact.shown_key(["ssh", "-l", "me"], "192.0.2.7", Place("node7", ("/u/known",))) == ""
    (argv,) = asked
    first, files = argv[: argv.index("-l")], [word for word in argv if "KnownHostsFile" in word]
    assert {"PreferredAuthentications=none", "BatchMode=yes", "ControlPath=none"} <= set(first)  # ssh takes the first
    assert "GlobalKnownHostsFile=/dev/null" in files and not [word for word in files if "/u/known" in word]


def test_only_the_table_that_was_shown_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "known_hosts"
    rows, shown = [row(file)], list[str]()
    monkeypatch.setattr(first_contact, "unknown", lambda *_given: rows)
    monkeypatch.setattr(host_keys, "display", SimpleNamespace(display=shown.append))
    action = object.__new__(host_keys.ActionModule)
    action._task = SimpleNamespace(check_mode=False)
    monkeypatch.setattr(action, "contact", lambda *_given: None)
    variables = {"ansible_play_hosts_all": ["n7"], "hostvars": {"n7": {}}}
    with pytest.raises(InputError, match=f"the table above has {digest(rows)}: compare it"):
        action.act({"replace": [], "accept": "0" * 32}, variables)
    looked = action.act({"replace": [], "accept": ""}, variables)
    assert looked["failed"] is True and f"accept={digest(rows)}" in looked["msg"]
    assert fingerprint(KEY) in shown[-1] and not file.exists()
    assert action.act({"replace": [], "accept": digest(rows)}, variables)["changed"] is True
    assert known_keys(rows[0].place) == [KEY]


@pytest.mark.parametrize(
    ("variables", "is_asked"),
    [
        ({}, True),
        ({"ansible_connection": "local"}, False),
        ({"ansible_connection": "community.docker.docker"}, False),
        ({"ansible_connection": "ansible.builtin.ssh", "ansible_host_key_checking": False}, False),
        ({"ansible_ssh_host_key_checking": False}, False),
    ],
)
def test_a_host_whose_key_nobody_looks_at_is_not_asked_for_it(variables: dict[str, object], is_asked: bool) -> None:
    action = object.__new__(host_keys.ActionModule)
    ssh = SimpleNamespace(get=lambda _name, *given: connection_loader.get("ssh", *given))
    action._shared_loader_obj = SimpleNamespace(connection_loader=ssh)
    action._play_context = PlayContext()
    contact = action.contact("n7", {"ansible_host": "192.0.2.7", **variables})
    assert (contact[1] if contact else None) == ("192.0.2.7" if is_asked else None)
