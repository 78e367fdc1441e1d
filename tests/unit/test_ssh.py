"""The SSH mesh, without a node: what is decided, what is written, what is refused."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import resource
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.apply import applied, apply, digest
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.files import (
    MeshFailed,
    put,
    set_block,
    with_block,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import (
    KeyFailed,
    fingerprint,
    plain_key,
    read_certificate,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.proof import Attempt, explain, listen
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.survey import sshd_settings
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh import files
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh import mesh as mesh_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh import refusals as refusals_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh.mesh import Member, Mesh, Wanted

# Made with ssh-keygen (OpenSSH 9.2): -n fleet,root -O clear -O source-address=..., valid for the year 2026.
CA = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDaPOIEJFta572QMZ12MXJy3ih/4tNJvX73hg1cjFcfa"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJILq8aotMLm4OTu9eWN0vDPEkMCDHxRZ4DV2GWYOAq"
CERTIFICATE = (
    "ssh-ed25519-cert-v01@openssh.com AAAAIHNzaC1lZDI1NTE5LWNlcnQtdjAxQG9wZW5zc2guY29tAAAAIA/N1nB7S3bVXt3C7afVzIB90z9"
    "ReH/Yak+q4uoUCKieAAAAIGJILq8aotMLm4OTu9eWN0vDPEkMCDHxRZ4DV2GWYOAqAAAAAAAAAAcAAAABAAAADG1pbmUvbjEtdXNlcgAAABEAAAA"
    "FZmxlZXQAAAAEcm9vdAAAAABpVbkAAAAAAGs27IAAAAA0AAAADnNvdXJjZS1hZGRyZXNzAAAAHgAAABoxOTIuMC4yLjExLDE5OC41MS4xMDAuMC8"
    "yNAAAAAAAAAAAAAAAMwAAAAtzc2gtZWQyNTUxOQAAACA2jziBCRbWue9kDGddjFyct4of+LTSb1+94YNXIxXH2gAAAFMAAAALc3NoLWVkMjU1MTk"
    "AAABAyBik5hME18WY6Jzn8ZsrvH/6e9GMxlaEuCMcC2gRD251JEeaoFVxg2bCKQL4yCDiMHhrdpIcivos2SpFcCjKDA== k"
)
# The same authority, an ECDSA key, ssh-keygen's own extensions.
ECDSA_CERTIFICATE = (
    "ecdsa-sha2-nistp256-cert-v01@openssh.com AAAAKGVjZHNhLXNoYTItbmlzdHAyNTYtY2VydC12MDFAb3BlbnNzaC5jb20AAAAgxMM6Tkv"
    "dEHgw36XJREnJ74TuXI7OtTLUOlOzb4wUjOwAAAAIbmlzdHAyNTYAAABBBBhekcpVeln+O3KWUIrvoE+lb7t5rex/EhrfGHAmHqKrmxzh5ysWuKG"
    "e/Y9Jn1l4heLpePiitapqoMNgDScfQ44AAAAAAAAAAAAAAAEAAAABeAAAAAUAAAABYQAAAABpVbkAAAAAAGs27IAAAAAAAAAAggAAABVwZXJtaXQ"
    "tWDExLWZvcndhcmRpbmcAAAAAAAAAF3Blcm1pdC1hZ2VudC1mb3J3YXJkaW5nAAAAAAAAABZwZXJtaXQtcG9ydC1mb3J3YXJkaW5nAAAAAAAAAAp"
    "wZXJtaXQtcHR5AAAAAAAAAA5wZXJtaXQtdXNlci1yYwAAAAAAAAAAAAAAMwAAAAtzc2gtZWQyNTUxOQAAACA2jziBCRbWue9kDGddjFyct4of+LT"
    "Sb1+94YNXIxXH2gAAAFMAAAALc3NoLWVkMjU1MTkAAABAzPgQ0oTIIgcPAPApBUWnZnfBEJWmtVIZj/VpC21hU3k1pl3/y2ZXnM1fqifzH3rP0Gq"
    "eQkv2KisJ1SutUUZYDg== e"
)
STARTS, ENDS = 1767225600, 1798761600
WANTED = Wanted("n1-user", KEY, False, ("fleet", "root"), ("192.0.2.11", "198.51.100.0/24"))


def key_of(number: int) -> str:
    """Return a public key of its own, which nobody has the private part of."""
    return f"{KEY[:-4]}{number:04}"


def member(number: int, **changed: Any) -> Member:
    given: dict[str, Any] = {
        "name": f"n{number}",
        "address": f"192.0.2.{number}",
        "port": 22,
        "user": "fleet",
        "directory": "/home/fleet/.torchfleet/ssh",
        "sshd": "system",
        "become": False,
        "client": number == 1,
        "key": key_of(number) if number == 1 else "",
        "host_keys": (key_of(1000 + number),),
        "addresses": (f"192.0.2.{number}", f"198.51.100.{number}"),
        "authorized_keys": "/home/fleet/.ssh/authorized_keys",
        "sshd_path": "/usr/sbin/sshd",
        "version": (9, 2),
    }
    return Member(**{**given, **changed})


def mesh_of_two(trust: str = "certificates", first: dict[str, Any] | None = None, **second: Any) -> Mesh:
    return Mesh("mine", (member(1, **(first or {})), member(2, **second)), trust, user_ca=CA, host_ca=KEY)


# --- keys and certificates ------------------------------------------------------------------------------------------


def test_a_certificate_is_read() -> None:
    found = read_certificate(CERTIFICATE)
    assert (found.key, found.authority, found.is_host) == (KEY, CA, False)
    assert found.principals == ("fleet", "root")
    assert (found.valid_after, found.valid_before) == (STARTS, ENDS)
    assert found.options == {"source-address": "192.0.2.11,198.51.100.0/24"}
    assert found.extensions == {}
    other = read_certificate(ECDSA_CERTIFICATE)
    assert other.key.startswith("ecdsa-sha2-nistp256 AAAA")
    assert (other.authority, other.principals, other.options) == (CA, ("a",), {})
    assert "permit-pty" in other.extensions


@pytest.mark.parametrize("text", ["", "x", KEY, CERTIFICATE[:200], "ssh-ed25519-cert-v01@openssh.com AAAA"])
def test_what_is_no_certificate_is_told(text: str) -> None:
    with pytest.raises(KeyFailed):
        read_certificate(text)


def test_a_key_is_known_by_its_fingerprint() -> None:
    assert plain_key(f"{CA} some comment\n") == CA
    assert fingerprint(CA) == "SHA256:lnGBQ2jyA7vx8CvrDpD/8rBd2Kf/4bb42k1qq9ZUczk"
    with pytest.raises(KeyFailed, match="not a public SSH key"):
        plain_key("ssh-rsa AAAAC3NzaC1lZDI1NTE5")


@pytest.mark.parametrize(
    ("change", "now", "days", "serves"),
    [
        ({}, STARTS, 365, True),
        ({}, ENDS - 122 * 86400, 365, True),
        ({}, ENDS - 121 * 86400, 365, False),  # less than a third is left
        ({}, STARTS, 30, False),  # it would be valid for longer than is wanted now
        ({"principals": ("fleet",)}, STARTS, 365, False),
        ({"sources": ("192.0.2.11",)}, STARTS, 365, False),
        ({"key": CA}, STARTS, 365, False),
        ({"is_host": True}, STARTS, 365, False),
    ],
)
def test_a_certificate_is_kept_while_it_serves(change: dict[str, Any], now: float, days: int, serves: bool) -> None:
    assert mesh_module.serves(replace(WANTED, **change), CERTIFICATE, CA, now, days) is serves


def test_another_authority_or_more_rights_do_not_serve() -> None:
    assert not mesh_module.serves(WANTED, CERTIFICATE, KEY, STARTS, 365)
    loose = read_certificate(ECDSA_CERTIFICATE)
    assert not mesh_module.serves(Wanted("x", loose.key, False, ("a",)), ECDSA_CERTIFICATE, CA, STARTS, 365)


def test_a_certificate_is_asked_for_with_no_rights_but_commands() -> None:
    argv = mesh_module.signing_arguments(WANTED, "mine", "/ca", 10, 7)
    assert argv[-4:] == ["-O", "clear", "-O", "source-address=192.0.2.11,198.51.100.0/24"]
    assert "-3600s:+864000s" in argv
    assert mesh_module.signing_arguments(replace(WANTED, is_host=True), "mine", "/ca", 10, 7)[-1] == "-h"


# --- who is who -----------------------------------------------------------------------------------------------------


def test_an_address_of_several_nodes_means_none_of_them() -> None:
    bridge = "172.17.0.1"
    both = [member(number, addresses=(f"192.0.2.{number}", bridge)) for number in (1, 2)]
    assert mesh_module.aliases(both) == {"n1": ("n1", "192.0.2.1"), "n2": ("n2", "192.0.2.2")}
    # A node that calls itself by another's name is not believed.
    assert mesh_module.aliases([member(1), member(2, address="n1")])["n2"] == ("n2", "192.0.2.2", "198.51.100.2")


def test_keys_may_be_used_from_their_own_nodes_only() -> None:
    mesh = mesh_of_two(first={"address": "head.example.org"})
    assert mesh_module.sources(mesh, mesh.clients) == ["192.0.2.1", "198.51.100.1"]
    wider = replace(mesh, extra_sources=("203.0.113.0/24",))
    assert mesh_module.sources(wider, wider.clients)[-1] == "203.0.113.0/24"


def test_nodes_that_share_a_home_share_a_certificate() -> None:
    mesh = mesh_of_two(client=True, key=key_of(1))
    (one,) = [wanted for wanted in mesh_module.wanted_certificates(mesh) if not wanted.is_host]
    assert one.sources == ("192.0.2.1", "198.51.100.1", "192.0.2.2", "198.51.100.2")


FOUND = {
    **{"name": "n2", "address": "", "port": 0, "sshd": "system", "become": False, "client": False, "key": ""},
    **{"user": "fleet", "directory": "/h/ssh", "host_keys": [KEY], "addresses": ["192.0.2.2"], "primary": "192.0.2.2"},
}


@pytest.mark.parametrize(
    ("found", "variables", "address", "port"),
    [
        ({}, {}, "n2", 22),
        ({}, {"ansible_host": "192.0.2.7", "ansible_port": "2201"}, "192.0.2.7", 2201),
        ({"address": "198.51.100.2", "port": 23}, {"ansible_host": "192.0.2.7"}, "198.51.100.2", 23),
        ({"sshd": "own"}, {"ansible_port": 2201}, "n2", 2222),
        ({}, {"ansible_connection": "local", "ansible_host": "localhost"}, "192.0.2.2", 22),
        ({}, {"ansible_connection": "local"}, "192.0.2.2", 22),
    ],
)
def test_where_a_node_is_reached(found: dict[str, Any], variables: dict[str, Any], address: str, port: int) -> None:
    made = mesh_module.member_from({**FOUND, **found}, variables)
    assert (made.address, made.port) == (address, port)


@pytest.mark.parametrize(
    ("found", "says"),
    [
        ({"name": "-oProxyCommand=x"}, "a host name consists of"),
        ({"address": "root@n2"}, "ssh_mesh_address"),
        ({"port": 70000}, "ssh_mesh_port of n2: got 70000"),
        ({"user": "me, too"}, "user of n2"),
        ({"directory": '/home/"me"'}, "torchfleet_home of n2"),
    ],
)
def test_what_cannot_stand_in_a_configuration_is_refused(found: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        mesh_module.member_from({**FOUND, **found}, {})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"cluster": "a b"}, "ssh_mesh_cluster"),
        ({"valid_days": 0}, "ssh_mesh_valid_days: got 0"),
        ({"extra_sources": ["*"]}, "ssh_mesh_extra_sources"),
        ({"accept_changed": ["n9"]}, "ssh_mesh_accept_changed.*n1, n2"),
    ],
)
def test_a_request_that_cannot_be_meant_is_refused(given: dict[str, Any], says: str) -> None:
    good = {"cluster": "mine", "valid_days": 1, "extra_sources": ["192.0.2.0/24"], "accept_changed": []}
    assert mesh_module.check_request(good, ["n1", "n2"]) == good
    with pytest.raises(InputError, match=says):
        mesh_module.check_request({**good, **given}, ["n1", "n2"])


def test_nodes_that_are_away_stay_and_nodes_that_are_gone_go() -> None:
    request = {"cluster": "mine", "trust": "keys", "any_to_any": False, "extra_sources": [], "valid_days": 1}
    before = {f"n{number}": member(number) for number in (1, 2, 3)}
    news = member(1, address="192.0.2.99")
    mesh = mesh_module.mesh_of(request, [news], before, ["n1", "n2"])
    assert mesh.members == (news, member(2))
    assert "n2: in the mesh, but not in this run" in refusals_module.findings(mesh, [news])[0]


# --- what is written ------------------------------------------------------------------------------------------------


def test_ssh_is_told_all_it_needs_and_to_be_strict() -> None:
    mesh = mesh_of_two(user="other", port=2201)
    text = files.ssh_config(mesh, mesh.members[0])
    assert "Host n2 192.0.2.2 198.51.100.2\n    HostName 192.0.2.2\n    Port 2201\n    User other\n" in text
    for line in ("StrictHostKeyChecking yes", "BatchMode yes", "IdentitiesOnly yes", "UpdateHostKeys no"):
        assert f"    {line}\n" in text
    assert text.index("Host *") > text.index("Host n2")
    assert "CertificateFile" in text
    assert "CertificateFile" not in files.ssh_config(replace(mesh, trust="keys"), mesh.members[0])


def test_a_node_does_not_take_its_own_name_for_an_address() -> None:
    """Debian gives a machine's own name 127.0.1.1, from where its key is not good."""
    mesh = mesh_of_two(first={"address": "node1", "primary": "192.0.2.1"})
    assert "HostName 192.0.2.1\n" in files.ssh_config(mesh, mesh.members[0])
    assert "HostName node1\n" in files.ssh_config(mesh, mesh.members[1])


def test_paths_of_all_kinds() -> None:
    odd = member(1, directory="/home/a b/50%/ssh")
    text = "\n".join(files.common_block(mesh_of_two(), odd))
    assert 'IdentityFile "/home/a b/50%%/ssh/id_ed25519"' in text
    # A socket's path is limited to 107 bytes, and a longer one would make ssh fail.
    assert files.control_path("/h" * 20)
    assert files.control_path("/h" * 30) == []


@pytest.mark.parametrize("second", [{}, {"become": True}, {"sshd": "own", "port": 2222}])
def test_every_name_and_address_is_pinned(second: dict[str, Any]) -> None:
    mesh = mesh_of_two(**second)
    rows = [line for line in files.known_hosts(mesh).splitlines() if "n2" in line]
    line, certified = rows[0], second != {}
    names = line.split()[certified].split(",")
    assert names[:3] == ["n2", "192.0.2.2", "198.51.100.2"]
    assert names[3:] == (["[n2]:2222", "[192.0.2.2]:2222", "[198.51.100.2]:2222"] if "port" in second else [])
    assert line.startswith("@cert-authority ") is certified
    assert line.endswith(mesh.host_ca if certified else key_of(1002))
    # The system's sshd shows one certificate, which may be of another cluster.
    assert [key_of(1002) in row for row in rows[1:]] == ([True] if "become" in second else [])
    keys_only = files.known_hosts(replace(mesh, trust="keys"))
    assert "@" not in keys_only
    assert keys_only.count(key_of(1002)) == 1


def test_who_is_let_in() -> None:
    mesh = mesh_of_two()
    limits = 'restrict,from="192.0.2.1,198.51.100.1"'
    name = mesh_module.principal(mesh.clients)
    assert re.fullmatch(r"n1-[0-9a-f]{16}", name)
    expected = f'cert-authority,{limits},principals="{name}" {CA} torchfleet mine n1'
    assert files.authorized_keys(mesh) == [expected]
    assert files.principals(mesh) == [f"{limits} {name}"]
    assert files.authorized_keys(replace(mesh, trust="keys")) == [f"{limits} {key_of(1)} torchfleet mine n1"]


def test_the_certificate_of_a_key_that_its_node_lost_is_worth_nothing() -> None:
    """The nodes let in names, and another key of the same node has another name."""
    before, after = (mesh_of_two(first={"key": key_of(number)}) for number in (1, 7))
    (old, *_hosts), (new, *_others) = (mesh_module.wanted_certificates(mesh) for mesh in (before, after))
    assert old.principals[0] in files.authorized_keys(before)[0]
    assert new.principals[0] in files.authorized_keys(after)[0]
    assert old.principals[0] not in str([files.authorized_keys(after), files.principals(after)])


@pytest.mark.parametrize(
    ("changed", "warned"),
    [
        ({"sshd": "own", "service": "system"}, True),  # which takes root
        ({"sshd": "own", "service": ""}, True),
        ({"sshd": "own", "service": "user"}, False),
        ({"sshd": "own", "service": "system", "become": True}, False),
        ({"sshd": "system"}, False),
    ],
)
def test_an_sshd_that_a_reboot_ends_is_told(changed: dict[str, Any], warned: bool) -> None:
    mesh = mesh_of_two(**changed)
    found = [
        line for line in refusals_module.findings(mesh, mesh.members) if "does not come back after a reboot" in line
    ]
    assert [line[:4] for line in found] == ["n2: "] * warned


def test_a_key_of_a_node_that_was_removed_or_replaced_is_revoked() -> None:
    members = [member(number) for number in (1, 2, 3)]
    before = {one.name: one for one in members}
    revoke = mesh_module.revoked_keys
    assert revoke({}, before, members) == {}
    gone = revoke({}, before, members[:2])
    assert gone == {key_of(1003): "n3"}
    replaced = revoke(gone, before, [members[0], replace(members[1], host_keys=(CA,))])
    assert replaced == {key_of(1003): "n3", key_of(1002): "n2"}
    assert revoke(gone, before, members) == {}  # the same machine is back
    assert revoke({}, before, [replace(members[1], name="n9"), members[0], members[2]]) == {}  # it has another name
    assert revoke({}, before, [*members[:2], replace(members[2], sshd="own", host_keys=(CA,))]) == {}  # another sshd
    text = files.known_hosts(replace(mesh_of_two(), revoked=tuple(gone)))
    assert text.endswith(f"\n@revoked * {key_of(1003)}\n")


def test_a_revoked_key_does_not_come_back_under_another_name() -> None:
    """Its machine could pose as the one that has the name now, with the certificate that it was given."""
    mesh = mesh_of_two()
    (line,) = refusals(mesh, revoked={key_of(1002): "n3"})
    assert line.startswith(f"n2 has the host key of n3 ({fingerprint(key_of(1002))}), which was removed or replaced")
    assert "-e replace=n2" in line
    assert refusals(mesh, revoked={key_of(1002): "n3"}, accepted=("n2",)) == []
    assert refusals(mesh, revoked={key_of(1002): "n2"}) == []


def test_what_a_cluster_needs_of_the_systems_sshd() -> None:
    mesh = mesh_of_two(become=True)
    old, new = (
        json.loads(files.part(mesh, replace(mesh.members[1], version=version), "/cert")) for version in ((9, 7), (9, 8))
    )
    assert old["exempt"] == [] and new["exempt"] == ["192.0.2.1", "198.51.100.1"]
    assert (old["user"], old["user_ca"], old["principals"]) == ("fleet", CA, files.principals(mesh))
    keys = json.loads(files.part(replace(mesh, trust="keys"), mesh.members[1], ""))
    assert (keys["user_ca"], keys["principals"], keys["host_certificate"]) == ("", [], "")


def test_an_sshd_of_the_users_own_admits_keys_of_one_user_only() -> None:
    mesh = mesh_of_two(sshd="own", port=2222)
    text = files.own_sshd_config(mesh, mesh.members[1])
    for line in ("Port 2222", "AllowUsers fleet", "PasswordAuthentication no", "DisableForwarding yes", "PermitTTY no"):
        assert f"{line}\n" in text
    assert "AuthorizedKeysFile none" in text
    assert "AuthorizedKeysFile none" not in files.own_sshd_config(replace(mesh, trust="keys"), mesh.members[1])
    assert "PerSource" not in text
    assert "PerSourcePenalties no" in files.own_sshd_config(mesh, replace(mesh.members[1], version=(10, 0)))


@pytest.mark.parametrize(("user", "root"), [("fleet", "no"), ("root", "prohibit-password")])
def test_root_logs_in_to_an_sshd_of_its_own_by_key_and_to_no_other(user: str, root: str) -> None:
    mesh = mesh_of_two(sshd="own", user=user)
    assert f"PermitRootLogin {root}\n" in files.own_sshd_config(mesh, mesh.members[1])


def test_sshd_takes_as_many_logins_as_there_are_nodes() -> None:
    assert (mesh_module.max_startups(2), mesh_module.max_sessions(2)) == ("100:30:200", 64)
    assert (mesh_module.max_startups(256), mesh_module.max_sessions(256)) == ("512:30:1024", 512)
    few = Mesh("mine", tuple(member(number) for number in range(1, 12)), any_to_any=True)
    (line,) = refusals_module.findings(few, few.members)
    assert "sshd drops logins when 11 nodes log in at once" in line
    assert refusals_module.findings(replace(few, any_to_any=False), few.members) == []


ISSUED = {"n1-user": "user certificate", "n1-host": "host certificate 1", "n2-host": "host certificate 2"}


def test_the_work_of_a_node() -> None:
    mesh = mesh_of_two()
    head, worker = (files.node_work(mesh, one, ISSUED) for one in mesh.members)
    home = "/home/fleet/.torchfleet/ssh"
    (heads,), (workers,) = head["steps"], worker["steps"]
    assert (head["user"], heads["by"]) == ("fleet", "user")
    assert [path.rpartition("/")[2] for path in heads["files"]] == ["id_ed25519-cert.pub", "known_hosts", "config"]
    assert heads["promote"] == [f"{home}/id_ed25519"]
    assert (workers["files"], workers["promote"]) == ({}, [])
    assert {f"{home}/id_ed25519", f"{home}/config"} <= set(workers["absent"])
    assert not {f"{home}/id_ed25519", f"{home}/config"} & set(heads["absent"])
    assert workers["authorized_keys"]["lines"] == files.authorized_keys(mesh)


def test_work_that_stands_is_not_done_again() -> None:
    mesh = mesh_of_two()
    work = files.node_work(mesh, mesh.members[0], ISSUED)
    done = replace(mesh.members[0], applied=digest(work))
    assert files.node_work(mesh, done, ISSUED) == {**work, "steps": []}
    assert files.node_work(mesh, done, {**ISSUED, "n1-user": "a new certificate"})["steps"] != []


def test_what_was_done_stands_until_something_is_changed(tmp_path: Path) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    member_here = replace(mesh_of_two().members[0], user=user, directory=str(tmp_path / "ssh"), authorized_keys="")
    work = files.node_work(mesh_of_two(), member_here, ISSUED)
    record = tmp_path / "ssh/applied-n1.json"
    assert applied(str(record)) == ""
    assert apply("mine", work, dry_run=True) != []
    assert not record.exists()
    assert apply("mine", work, dry_run=False) != []
    assert record.stat().st_mode & 0o777 == 0o600
    assert applied(str(record)) == digest(work)
    config = tmp_path / "ssh/config"
    config.write_text(config.read_text() + "# mine\n")
    assert applied(str(record)) == ""
    assert apply("mine", work, dry_run=False) == [f"{config} written"]
    assert applied(str(record)) == digest(work)
    record.write_text("{")
    assert applied(str(record)) == ""


def test_the_work_of_root() -> None:
    mesh = mesh_of_two(become=True, service="system")
    root, user = files.node_work(mesh, mesh.members[1], ISSUED)["steps"]
    assert (root["by"], user["by"]) == ("root", "user")  # first the new way in, then the old one goes
    names = [path.rpartition("/")[2] for path in root["files"]]
    assert names == ["mine-host-cert.pub", "mine.json"]
    assert user["authorized_keys"]["lines"] == []  # the system's sshd trusts the authority itself
    own = mesh_of_two(become=True, service="system", sshd="own")
    user, root = files.node_work(own, own.members[1], ISSUED)["steps"]
    assert (user["by"], root["by"]) == ("user", "root")
    assert list(root["files"]) == ["/etc/systemd/system/torchfleet-sshd-mine.service"]
    assert {"/etc/ssh/torchfleet/clusters/mine.json", "/etc/ssh/sshd_config.d/40-torchfleet-mine.conf"} < set(
        root["absent"]
    )


@pytest.mark.parametrize(
    ("second", "kind"),
    [
        ({"sshd": "system", "service": "system", "become": True}, "none"),
        ({"sshd": "own"}, "plain"),
        ({"sshd": "own", "become": True}, "plain"),  # a container without systemd
        ({"sshd": "own", "service": "system"}, "plain"),
        ({"sshd": "own", "service": "user"}, "user"),
        ({"sshd": "own", "service": "user", "become": True}, "system"),
    ],
)
def test_who_keeps_an_sshd_of_the_users_own_running(second: dict[str, Any], kind: str) -> None:
    mesh = mesh_of_two(**second)
    assert files.own_service(mesh, mesh.members[1])["kind"] == kind


@pytest.mark.parametrize("system", [True, False])
def test_a_restart_of_sshd_leaves_the_ranks_below_it_alone(system: bool) -> None:
    """systemd.kill(5): without KillMode=process the whole control group goes, and with it every job of the node."""
    mesh = mesh_of_two(sshd="own", become=system, service="system" if system else "user")
    text = files.unit(mesh, mesh.members[1], system)
    assert {"KillMode=process", "OOMPolicy=continue", "TasksMax=infinity"} < set(text.splitlines())


def test_removal_names_every_file_that_is_ever_written() -> None:
    for second in (
        {"become": True},
        {"sshd": "own", "become": True, "service": "system"},
        {"client": True, "key": KEY},
    ):
        for trust in ("certificates", "keys"):
            mesh = mesh_of_two(trust, **second)
            work = files.node_work(mesh, mesh.members[1], {**ISSUED, "n2-user": "another"})
            removal = {step["by"]: step for step in files.node_removal(mesh, mesh.members[1])["steps"]}
            assert removal.keys() == {step["by"] for step in work["steps"]}
            for step in work["steps"]:
                assert set(step["files"]) <= set(removal[step["by"]]["absent"])


# --- what is refused ------------------------------------------------------------------------------------------------


def refusals(mesh: Mesh, before: dict[str, Member] | None = None, **changed: Any) -> list[str]:
    given = {"accepted": (), "now": 1e9, "revoked": {}, **changed}
    return refusals_module.refusals(mesh, before or {}, given["revoked"], given["accepted"], given["now"])


def test_a_good_mesh_is_not_refused() -> None:
    mesh = mesh_of_two()
    assert refusals(mesh) == []
    assert refusals(mesh, {one.name: one for one in mesh.members}) == []


def test_a_changed_host_key_is_told_with_both_fingerprints() -> None:
    mesh = mesh_of_two(host_keys=(CA,))
    before = {"n2": member(2)}
    (line,) = refusals(mesh, before)
    assert f"it was {fingerprint(key_of(1002))}, now it is {fingerprint(CA)}" in line
    assert "-e replace=n2" in line
    assert refusals(mesh, before, accepted=("n2",)) == []
    # More kinds of keys than before are no change, nor is a key that we have just made for a node's own sshd.
    assert refusals(mesh_of_two(host_keys=(key_of(1002), "ecdsa-sha2-nistp256 AAAA")), before) == []
    own = mesh_of_two(sshd="own", port=2222, host_keys=(CA,))
    staged = mesh_of_two(sshd="own", port=2222, host_keys=(CA,), staged=True)
    assert refusals(staged, {"n2": member(2, sshd="own")}) == []
    assert len(refusals(own, {"n2": member(2, sshd="own")})) == 1
    assert refusals(own, before) == []


@pytest.mark.parametrize(
    ("second", "says"),
    [
        ({"host_keys": (key_of(1001),)}, "n1 and n2 have the same host key .* cloned.*ssh-keygen -A"),
        ({"host_keys": (key_of(1001),), "addresses": ("192.0.2.1", "198.51.100.1")}, "n1 and n2 are one machine"),
        ({"host_keys": (CA, key_of(1001))}, "n1 and n2 have the same host key"),
        ({"address": "192.0.2.1"}, "n1 and n2 have the same address, 192.0.2.1 port 22"),
        ({"tenant": "theirs"}, "n2: .*/ssh has the keys of cluster theirs: give each its own torchfleet_home"),
        ({"loose": "/home/fleet"}, "n2: other users can write to /home/fleet.*chmod go-w /home/fleet"),
        ({"authorized_keys": ""}, "n2: sshd reads no user's keys"),
        ({"sshd": "own", "sshd_path": ""}, "n2: sshd is missing; as root: apt-get install -y openssh-server || dnf"),
        ({"clock": 1e9 - 7200}, "the clock of n2 is 2.0 h behind"),
        ({"clock": 1e9 + 86400}, "the clock of n2 is 24.0 h ahead"),
        ({"root_files": ("/x.service",)}, "n2: /x.service is root's"),
    ],
)
def test_what_must_not_be_is_refused_in_one_line(second: dict[str, Any], says: str) -> None:
    (line,) = refusals(mesh_of_two(**second))
    assert re.search(says, line)
    assert "\n" not in line


def test_a_clock_matters_to_certificates_only() -> None:
    assert refusals(mesh_of_two("keys", clock=1e9 - 7200)) == []


# --- files ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "ssh-rsa AAAA me\n", "ssh-rsa AAAA no line end", "# comment\n\nssh-rsa AAAA\r\n"])
def test_a_block_comes_and_goes_without_a_trace(text: str) -> None:
    there = with_block(text, "mine", ["one", "two"], "keys")
    assert there.endswith("# BEGIN torchfleet mine\none\ntwo\n# END torchfleet mine\n")
    assert there.startswith(text)
    assert with_block(there, "mine", ["one", "two"], "keys") == there
    changed = with_block(f"{there}ssh-rsa BBBB\n", "mine", ["three"], "keys")
    assert changed.endswith("# BEGIN torchfleet mine\nthree\n# END torchfleet mine\nssh-rsa BBBB\n")
    assert with_block(there, "mine", [], "keys").rstrip("\n") == text.rstrip("\n")
    assert with_block(there, "another", [], "keys") == there


def test_a_block_without_an_end_is_left_to_people() -> None:
    with pytest.raises(MeshFailed, match="has no end: remove that block by hand"):
        with_block("# BEGIN torchfleet mine\nssh-rsa AAAA\n", "mine", ["one"], "keys")


def test_a_file_that_only_held_our_block_goes_with_it(tmp_path: Path) -> None:
    path = tmp_path / ".ssh/authorized_keys"
    assert set_block(str(path), "mine", ["one"], dry_run=True) and not path.exists()
    assert set_block(str(path), "mine", ["one"], dry_run=False)
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert not set_block(str(path), "mine", ["one"], dry_run=False)
    assert set_block(str(path), "mine", [], dry_run=False) and not path.exists()
    assert not set_block(str(path), "mine", [], dry_run=False)


def test_a_file_that_is_refused_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "sshd_config"
    assert put(str(path), "good\n", 0o600, dry_run=False)
    with pytest.raises(MeshFailed, match=r"sshd refuses the new content of .*: no"):
        put(
            str(path), "bad\n", 0o600, False, lambda unfinished: "no" if Path(unfinished).read_text() == "bad\n" else ""
        )
    assert path.read_text() == "good\n"
    assert list(tmp_path.iterdir()) == [path]


def test_settings_of_sshd_are_read_as_sshd_does(tmp_path: Path) -> None:
    (tmp_path / "a.conf").write_text("MaxStartups 5\nMatch User x\n  MaxSessions 1\n")
    (tmp_path / "main").write_text(
        f"# MaxSessions 3\nInclude {tmp_path}/*.conf\nmaxstartups=7 # later\nHostKey /a\nHostKey /b\n"
        "AuthorizedKeysFile .ssh/keys\nMatch all\nPidFile /never\n"
    )
    found = sshd_settings(str(tmp_path / "main"))
    assert found["maxstartups"] == ["5", "7"]
    assert found["hostkey"] == ["/a", "/b"]
    assert "maxsessions" not in found and "pidfile" not in found
    assert sshd_settings("/no/such") == {}


# --- what a failed login means --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "means"),
    [
        ("ssh: connect to host 192.0.2.2 port 2201: Connection refused", "nothing listens on 192.0.2.2 port 2201"),
        (
            "ssh: connect to host 192.0.2.2 port 22: No route to host",
            "no route to 192.0.2.2: set ssh_mesh_address of n2",
        ),
        ("ssh: connect to host 192.0.2.2 port 22: Connection timed out", "no answer from 192.0.2.2 port 2201"),
        ("ssh: Could not resolve hostname x: Name or service not known", "n1 cannot resolve 192.0.2.2"),
        ("fleet@192.0.2.2: Permission denied (publickey).", "refuses the key: journalctl -u ssh -u sshd on n2"),
        ("Host key verification failed.", "does not show the host key of n2"),
        (
            "Certificate invalid: expired\nHost key verification failed.",
            "host certificate is not valid by the clock of n1",
        ),
        ("kex_exchange_identification: Connection closed by remote host", "hangs up before the login"),
        ("something new\nand more", "192.0.2.2 port 2201: something new; and more"),
    ],
)
def test_a_failed_login_is_explained(said: str, means: str) -> None:
    where = {"name": "n2", "address": "192.0.2.2", "port": 2201}
    line = explain(Attempt(255, "", said), "n1", where, "")
    assert means in line
    assert "\n" not in line


def test_a_wrong_clock_and_a_shell_that_talks_are_explained() -> None:
    where = {"name": "n2", "address": "192.0.2.2", "port": 22}
    refused = Attempt(255, "", "Permission denied (publickey).")
    line = explain(refused, "n1", where, "the certificate ended on 2026-01-01 00:00 UTC")
    assert "the certificate ended on 2026-01-01 00:00 UTC; the clocks differ" in line
    assert "its shell prints 'hello" in explain(Attempt(0, "hello\ntorchfleet\n", ""), "n1", where, "")


def test_a_node_that_talks_without_end_is_hung_up_on() -> None:
    """Its sshd prints what it likes: the head must not keep it all, nor wait for the end of it."""
    for stream in ("", " >&2"):
        assert listen(["sh", "-c", f"yes{stream}"], 30.0) == Attempt(255, "", "its output is too long")
    assert listen(["sh", "-c", "echo said; echo why >&2; exit 3"], 30.0) == Attempt(3, "said\n", "why\n")
    assert listen(["sh", "-c", "echo said; sleep 60"], 0.2).errors.startswith("timed out")


def test_a_login_is_listened_to_with_any_number_of_open_files() -> None:
    """Reproduced before: `filedescriptor out of range in select()` with more than 1,024."""
    with contextlib.ExitStack() as nothing:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
        nothing.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _number in range(1100):
            nothing.enter_context(open(os.devnull))
        assert listen(["sh", "-c", "echo said; echo why >&2; exit 3"], 30.0) == Attempt(3, "said\n", "why\n")


def test_what_another_machine_says_does_not_reach_a_terminal() -> None:
    where = {"name": "n2", "address": "192.0.2.2", "port": 22}
    line = explain(Attempt(255, "", f"\x1b]0;owned\x07\u202e{'x' * 9000}"), "n1", where, "")
    assert "\x1b" not in line and "\u202e" not in line and len(line) < 400
