"""The authority of an SSH mesh on the controller: its directory is private, of one cluster, and goes with it."""

from __future__ import annotations

import re
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import KeyFailed, read_certificate
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh.authority import Authority
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._ssh.mesh import Member, Mesh
from tests.driver import wait_until

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGJILq8aotMLm4OTu9eWN0vDPEkMCDHxRZ4DV2GWYOAq"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDaPOIEJFta572QMZ12MXJy3ih/4tNJvX73hg1cjFcfa"


def mesh() -> Mesh:
    node = Member(
        name="n1",
        address="192.0.2.1",
        port=22,
        user="fleet",
        directory="/home/fleet/.torchfleet/ssh",
        sshd="system",
        become=False,
        client=True,
        key=KEY,
        host_keys=(KEY,),
        addresses=("192.0.2.1",),
    )
    return Mesh("mine", (node,))


def made(directory: Path, cluster: str = "mine") -> Authority:
    """Return an authority that signed for a mesh, with the directory that it made."""
    authority = Authority(str(directory), cluster, dry_run=False)
    with authority.held(make=True):
        signed = authority.sign_for(mesh(), fresh=False)
        authority.issue(signed)
        authority.remember(signed.members, {})
    return authority


def test_its_directory_and_its_private_keys_are_the_users_alone(tmp_path: Path) -> None:
    made(tmp_path / "ca")
    assert stat.S_IMODE((tmp_path / "ca").stat().st_mode) == 0o700
    for name in ("user_ca", "host_ca"):
        assert stat.S_IMODE((tmp_path / "ca" / name).stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o755, 0o710, 0o707])
def test_a_directory_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    authority = made(tmp_path / "ca")
    (tmp_path / "ca").chmod(mode)
    with pytest.raises(InputError, match="only you may have access to it: chmod 700"), authority.held(make=True):
        pass


def test_a_private_key_that_others_can_read_signs_nothing(tmp_path: Path) -> None:
    authority = made(tmp_path / "ca")
    before = authority.sign_for(mesh(), fresh=False)
    (tmp_path / "ca" / "user_ca").chmod(0o640)
    with pytest.raises(InputError, match="other users could read it: -e ssh_mesh_rotate=true"):
        authority.sign_for(mesh(), fresh=False)
    after = authority.sign_for(mesh(), fresh=True)  # as the message says
    assert after.user_ca != before.user_ca
    assert stat.S_IMODE((tmp_path / "ca" / "user_ca").stat().st_mode) == 0o600


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An ssh-agent of the test's own."""
    socket = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    wait_until(socket.exists)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    yield
    process.terminate()
    process.wait()


def test_an_agent_signs_where_the_keys_are_encrypted_or_elsewhere(tmp_path: Path, agent: None) -> None:
    authority, place = made(tmp_path / "ca"), tmp_path / "ca"
    before = authority.sign_for(mesh(), fresh=False)
    subprocess.run(["ssh-add", "-q", str(place / "user_ca")], check=True)
    subprocess.run(["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(place / "user_ca")], check=True)
    text = (place / "user_ca.pub").read_text()
    (place / "user_ca.pub").unlink()
    with pytest.raises(InputError, match=r"it is encrypted, and user_ca.pub is missing: ssh-keygen -y -f"):
        authority.sign_for(mesh(), fresh=False)
    (place / "user_ca.pub").write_text(text)
    for there in (True, False):
        if not there:
            (place / "user_ca").unlink()
        (place / "certificates" / "n1-user.pub").unlink()
        after = authority.sign_for(mesh(), fresh=False)
        assert after.user_ca == before.user_ca
        assert read_certificate(authority.issue(after)["n1-user"]).authority == before.user_ca
    subprocess.run(["ssh-add", "-q", "-D"], check=True)
    (place / "certificates" / "n1-user.pub").unlink()
    with pytest.raises(KeyFailed, match=r"user_ca is encrypted, or not here: ssh-add it, and run this again"):
        authority.issue(authority.sign_for(mesh(), fresh=False))


def test_two_clusters_do_not_share_an_authority(tmp_path: Path) -> None:
    made(tmp_path / "ca", "mine")
    with pytest.raises(InputError, match="it belongs to cluster mine: give each cluster its own directory"):
        Authority(str(tmp_path / "ca"), "other", dry_run=False).known()


def test_a_certificate_that_serves_is_kept_and_one_of_a_node_that_is_gone_is_removed(tmp_path: Path) -> None:
    authority = made(tmp_path / "ca")
    signed = authority.sign_for(mesh(), fresh=False)
    first = authority.issue(signed)
    assert authority.issue(signed) == first
    assert [path.name for path in (tmp_path / "ca" / "certificates").iterdir()] == ["n1-user.pub"]
    authority.issue(replace(signed, members=()))
    assert list((tmp_path / "ca" / "certificates").iterdir()) == []


def test_the_authority_goes_with_the_last_node_and_not_before(tmp_path: Path) -> None:
    authority = made(tmp_path / "ca")
    second = replace(mesh().members[0], name="n2", address="192.0.2.2", host_keys=(OTHER,))
    authority.remember([*mesh().members, second], {})
    (tmp_path / "ca" / "mine.txt").write_text("of the user's own")
    authority.forget(["n2"])
    assert list(authority.known()) == ["n1"] and (tmp_path / "ca" / "user_ca").exists()
    assert authority.revoked() == {OTHER: "n2"}
    authority.forget(["n1"])
    assert [path.name for path in (tmp_path / "ca").iterdir()] == ["mine.txt"]
    (tmp_path / "ca" / "mine.txt").unlink()
    made(tmp_path / "ca").forget(["n1"])
    assert not (tmp_path / "ca").exists()


def test_check_mode_makes_and_removes_nothing(tmp_path: Path) -> None:
    authority = Authority(str(tmp_path / "ca"), "mine", dry_run=True)
    with authority.held(make=True):
        signed = authority.sign_for(mesh(), fresh=False)
        assert all(re.search("made-by-the-run", text) for text in authority.issue(signed).values())
    assert not (tmp_path / "ca").exists()
    made(tmp_path / "ca")
    before = {path.name: path.read_text() for path in (tmp_path / "ca").iterdir() if path.is_file()}
    authority.sign_for(mesh(), fresh=True)
    authority.forget(["n1"])
    assert {path.name: path.read_text() for path in (tmp_path / "ca").iterdir() if path.is_file()} == before
