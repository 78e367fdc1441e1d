"""What a node answers for the SSH mesh is not believed: no other node's files have a line of its making."""

from __future__ import annotations

import json
import random
import re
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import KeyFailed, strict_key
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh import files, refusals
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh.authority import Authority
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh.mesh import (
    Member,
    Mesh,
    aliases,
    false_claims,
    known_member,
    member_from,
    wanted_certificates,
)
from tests.unit.hostile import MARK, hostile_answer

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJILq8aotMLm4OTu9eWN0vDPEkMCDHxRZ4DV2GWYOAq"
CA = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDaPOIEJFta572QMZ12MXJy3ih/4tNJvX73hg1cjFcfa"
NAMES = ("n1", "n2", "n3", "n4")
SETTINGS = [
    (trust, any_to_any, sshd, become)
    for trust in ("certificates", "keys")
    for any_to_any in (False, True)
    for sshd, become in (("system", False), ("system", True), ("own", False))
]
IP = r"[0-9a-f.:]+"
NAME = rf"(?:n[1-4]|{IP}|\[(?:n[1-4]|{IP})\]:\d+)"
PRINCIPAL = r"n\d-[0-9a-f]{16}"
PUBLIC = r"(?:ssh-ed25519|ssh-rsa|ecdsa-sha2-nistp(?:256|384|521)) [A-Za-z0-9+/]+=*"
# The lines of other nodes' files that may differ by what n2 answers, to their last character.
OWN_LINES = re.compile(
    rf"Host {NAME}(?: {NAME})*|    User [\w.@$-]+|(?:@cert-authority )?{NAME}(?:,{NAME})* {PUBLIC}"
    rf'|restrict,from="{IP}(?:,{IP})*" {PUBLIC} torchfleet mine n\d'
    rf'|cert-authority,restrict,from="{IP}(?:,{IP})*",principals="{PRINCIPAL}" {PUBLIC} torchfleet mine n\d'
    rf'|restrict,from="{IP}(?:,{IP})*" {PRINCIPAL}'
    # The cluster's part of the system's sshd.
    rf'|  "restrict,from=\\"{IP}(?:,{IP})*\\" {PRINCIPAL}",?|  "{IP}",?'
)


def key_of(number: int) -> str:
    return f"{KEY[:-4]}{number:04}"


def honest(number: int, client: bool) -> dict[str, Any]:
    """What ssh_mesh_keys finds on a node that is what it says."""
    return {
        "user": "fleet",
        "directory": "/home/fleet/.torchfleet/ssh",
        "key": key_of(number) if client else "",
        "host_keys": [key_of(1000 + number)],
        "staged": False,
        "addresses": [f"192.0.2.{number}", f"198.51.100.{number}", f"2001:db8::{number}"],
        "primary": f"192.0.2.{number}",
        "clock": 1e9,
        "version": [9, 8],
        "sshd_path": "/usr/sbin/sshd",
        "limits": {"maxstartups": "10:30:100", "maxsessions": "10"},
        "authorized_keys": "/home/fleet/.ssh/authorized_keys",
        "loose": "",
        "service": "system",
        "root_files": [],
        "tenant": "",
        "others": [],
        "applied": "",
    }


def member(
    number: int, setting: tuple[str, bool, str, bool], whole: dict[str, Any] | None = None, **answer: Any
) -> Member:
    """Return a node by what it answers: what an honest one would, but for `answer`; or the whole of it."""
    _trust, any_to_any, sshd, become = setting
    client = any_to_any or number == 1
    asked = {"name": f"n{number}", "address": "", "port": 0, "sshd": sshd, "become": become, "client": client}
    variables = {"ansible_host": f"192.0.2.{number}"}
    found = honest(number, client) if whole is None else whole
    return member_from({**found, **answer, **asked}, variables)


def mesh_with(second: Member, setting: tuple[str, bool, str, bool]) -> Mesh:
    members = (member(1, setting), second, member(3, setting), member(4, setting))
    return Mesh("mine", members, setting[0], setting[1], user_ca=CA, host_ca=KEY)


def written_for_others(mesh: Mesh) -> dict[str, str]:
    """Return all that is written on nodes other than n2, and what is signed for them, by what it is."""
    issued = {wanted.name: repr(wanted) for wanted in wanted_certificates(mesh)}
    texts = {}
    for one in mesh.members:
        if one.name != "n2":
            for number, step in enumerate(files.node_work(mesh, one, issued)["steps"]):
                texts.update({f"{one.name} {path}": text for path, text in step["files"].items()})
                texts[f"{one.name} step {number}"] = "\n".join(step.get("authorized_keys", {}).get("lines", []))
    return texts


def one_line_at_a_time(mesh: Mesh, baseline: dict[str, str]) -> None:
    """Every line of the others' files is as it was, or is a line about n2 that is made of nothing but names."""
    texts = written_for_others(mesh)
    assert texts.keys() == baseline.keys()
    for place, text in texts.items():
        usual = set(baseline[place].split("\n"))
        strange = [line for line in text.split("\n") if line not in usual]
        if place.endswith("-cert.pub"):
            assert MARK not in text and "\\n" not in text
        else:
            assert all(OWN_LINES.fullmatch(line) for line in strange), strange


def heads_view(mesh: Mesh, place: Path) -> dict[str, str]:
    """Return what ssh makes of every name and address of the other nodes, by the head's configuration."""
    config = place / "config"
    config.write_text(files.ssh_config(mesh, mesh.members[0]))
    names = [name for number in (1, 3, 4) for name in (f"n{number}", f"192.0.2.{number}")]
    asked = {
        name: subprocess.run(["ssh", "-G", "-F", str(config), name], capture_output=True, text=True, check=True)
        for name in names
    }
    # With a name that is an address, ssh shows that it was one.
    return {name: done.stdout for name, done in asked.items()}


@pytest.mark.parametrize("setting", SETTINGS)
def test_whatever_a_node_answers_no_other_node_gets_a_line_of_its_making(
    setting: tuple[str, bool, str, bool],
) -> None:
    dice = random.Random(15)
    usual = honest(2, setting[1])
    baseline = written_for_others(mesh_with(member(2, setting), setting))
    believed = 0
    for _attempt in range(300):
        answer = json.loads(json.dumps(hostile_answer(dice, usual)))
        try:
            mesh = mesh_with(member(2, setting, answer), setting)
        except InputError as error:
            assert "n2" in str(error) and "\n" not in str(error) and "\x1b" not in str(error) and len(str(error)) < 500
            continue
        if refusals.keyless([mesh.members[1]]):
            continue
        believed += 1
        for line in (*refusals.refusals(mesh, {}, {}, (), 1e9), *refusals.findings(mesh, mesh.members)):
            assert MARK not in line and "\n" not in line and "\x1b" not in line
        one_line_at_a_time(mesh, baseline)
    assert believed > 5  # else nothing was tried but what is refused at once


def test_ssh_reaches_the_other_nodes_as_before_whatever_a_node_claims(tmp_path: Path) -> None:
    setting = ("certificates", False, "system", False)
    before = heads_view(mesh_with(member(2, setting), setting), tmp_path)
    dice = random.Random(3)
    theirs = [f"{network}{number}" for number in (1, 3, 4) for network in ("192.0.2.", "198.51.100.", "2001:db8::")]
    for _attempt in range(12):
        claimed = [*dice.sample(theirs, 4), "203.0.113.9"]
        mesh = mesh_with(member(2, setting, addresses=claimed), setting)
        assert heads_view(mesh, tmp_path) == before
        config = str(tmp_path / "config")
        for name in theirs:
            asked = subprocess.run(["ssh", "-G", "-F", config, name], capture_output=True, text=True, check=True)
            assert "hostkeyalias n2" not in asked.stdout


def test_a_claim_to_another_nodes_address_is_told_and_takes_nothing_from_it() -> None:
    setting = ("certificates", True, "system", True)
    mesh = mesh_with(member(2, setting, addresses=["192.0.2.2", "192.0.2.3"]), setting)
    (line,) = [line for line in refusals.findings(mesh, mesh.members) if "claims" in line]
    assert line.startswith("n2 claims 192.0.2.3, the address of n3 in the inventory: the claim is ignored")
    names = aliases(mesh.members)
    assert "192.0.2.3" in names["n3"] and "192.0.2.3" not in names["n2"]
    (host,) = [wanted for wanted in wanted_certificates(mesh) if wanted.name == "n2-host"]
    assert host.principals == ("n2", "192.0.2.2")
    # Nodes behind one address, each with a port of its own, claim nothing.
    behind = [
        known_member({**asdict(one), "address": "192.0.2.9", "port": 2200 + n}) for n, one in enumerate(mesh.members)
    ]
    assert false_claims(behind) == []


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ({"addresses": ["192.0.2.2\nMatch all"]}, "addresses of n2"),
        ({"addresses": ["*"]}, "addresses of n2"),
        ({"addresses": ["192.0.2.2,n4"]}, "addresses of n2"),
        ({"addresses": ["192.0.2.0/24"]}, "addresses of n2"),
        ({"addresses": ["0.0.0.0"]}, "addresses of n2"),
        ({"addresses": ["224.0.0.1"]}, "addresses of n2"),
        ({"addresses": ["2001:db8::1%eth0\nHost *"]}, "addresses of n2"),
        ({"addresses": ["::ffff:192.0.2.3"]}, "addresses of n2"),
        *[({"addresses": [text]}, "addresses of n2") for text in ("127.0.0.1", "::1", "fe80::1", "255.255.255.255")],
        ({"addresses": [f"10.0.{n // 250}.{n % 250}" for n in range(129)]}, "at most 128 addresses"),
        ({"host_keys": [f"{KEY}\n@cert-authority * {CA}"]}, "host_keys of n2.*not a public SSH key"),
        ({"host_keys": [f"{KEY} comment"]}, "host_keys of n2"),
        ({"host_keys": [KEY.replace("ssh-ed25519", "ssh-rsa")]}, "host_keys of n2"),
        ({"host_keys": [key_of(n) for n in range(17)]}, "at most 16 host keys"),
        ({"key": f'command="sh" {KEY}'}, "key of n2"),
        ({"sshd_path": "/usr/sbin/sshd -o X"}, "sshd_path of n2"),
        ({"authorized_keys": "/home/x/../../root/.ssh/authorized_keys"}, "authorized_keys of n2"),
        ({"user": "*"}, "user of n2"),
        ({"clock": float("nan")}, "clock of n2"),
        ({"directory": "/home/${HOME}"}, "torchfleet_home of n2"),
    ],
)
def test_an_answer_that_is_not_as_it_must_be_is_refused(answer: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        member(2, ("keys", True, "system", False), **answer)


def test_a_node_without_a_key_is_refused_where_keys_are_made() -> None:
    setting = ("keys", True, "system", False)
    good, keyless, hostless = member(1, setting), member(2, setting, key=""), member(3, setting, host_keys=[])
    said = refusals.keyless([good, keyless, hostless])
    assert said == ["n2 has no key: run setup again", "n3 has no host key: run setup again"]


def test_what_the_user_asked_for_is_not_taken_from_the_node() -> None:
    """`staged` would hide a changed host key, and is for a node's own sshd only; who is no client has no key."""
    made = member(2, ("keys", False, "system", False), staged=True, key=KEY)
    assert (made.staged, made.key) == (False, "")


@pytest.mark.parametrize(
    "text", ["", KEY + "\n", f" {KEY}", KEY.replace(" ", "  "), "ssh-dss AAAAB3NzaC1kc3M=", 7, None]
)
def test_a_strict_key_is_just_that(text: Any) -> None:
    with pytest.raises(KeyFailed):
        strict_key(text)
    assert strict_key(KEY) == KEY


def test_what_was_written_down_is_checked_as_well(tmp_path: Path) -> None:
    """nodes.json may be from before answers were checked."""
    authority = Authority(str(tmp_path), "mine", dry_run=False)
    setting = ("certificates", False, "system", False)
    authority.remember([member(2, setting), member(3, setting)], {})
    assert list(authority.known()) == ["n2", "n3"]
    there = json.loads((tmp_path / "nodes.json").read_text())
    there["nodes"]["n2"]["addresses"] = [f"*\nMatch all\n  ProxyCommand {MARK}"]
    (tmp_path / "nodes.json").write_text(json.dumps(there))
    with pytest.raises(InputError, match="it is damaged: remove it"):
        authority.known()
