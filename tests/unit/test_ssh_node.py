"""What the SSH mesh does on a node: private files, keys that are what they say, and root only where it is due."""

from __future__ import annotations

import json
import os
import pwd
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh import apply as apply_module
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh import proof, shared, sshd, survey
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.apply import apply, as_user
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.files import MeshFailed, promote
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import (
    NEXT,
    KeyFailed,
    current_key,
    make_key,
    ssh_keygen,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.proof import certificate_of, days_left, prove
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.sshd import OwnSshd, pid_in

ME = pwd.getpwuid(os.getuid())
# Who is somebody else than the user of these tests, if these tests may be somebody else at all.
USER = "nobody" if os.getuid() == 0 else ME.pw_name


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def work_on(home: Path) -> dict[str, Any]:
    """Return the work of a node that logs in to others, as the plan gives it."""
    place = home / "ssh"
    step = {
        "by": "user",
        "files": {f"{place}/config": "Host *\n", f"{place}/known_hosts": "n1 ssh-ed25519 AAAA\n"},
        "promote": [],
        "absent": [],
        "authorized_keys": {"path": f"{home}/.ssh/authorized_keys", "lines": ["restrict ssh-ed25519 AAAA"]},
        "sshd": {"kind": "none", "config": f"{place}/sshd-n1/sshd_config", "unit": "torchfleet-sshd-mine.service"},
    }
    return {"user": ME.pw_name, "record": f"{place}/applied-n1.json", "steps": [step]}


def modes_below(top: Path) -> dict[str, int]:
    return {str(path.relative_to(top)): stat.S_IMODE(path.stat().st_mode) for path in top.rglob("*")}


def test_what_is_written_for_a_user_is_private_whatever_the_umask(tmp_path: Path, open_umask: None) -> None:
    apply("mine", work_on(tmp_path), dry_run=False)
    modes = modes_below(tmp_path)
    assert {modes.pop("ssh"), modes.pop(".ssh")} == {0o700}
    assert modes == dict.fromkeys(
        ("ssh/config", "ssh/known_hosts", "ssh/applied-n1.json", ".ssh/authorized_keys"), 0o600
    )


def test_a_file_that_somebody_opened_to_others_is_closed_again(tmp_path: Path) -> None:
    apply("mine", work_on(tmp_path), dry_run=False)
    config = tmp_path / "ssh" / "config"
    config.chmod(0o644)
    assert apply("mine", work_on(tmp_path), dry_run=True) == [f"{config} written"]
    assert stat.S_IMODE(config.stat().st_mode) == 0o644
    apply("mine", work_on(tmp_path), dry_run=False)
    assert stat.S_IMODE(config.stat().st_mode) == 0o600


def test_a_list_of_keys_keeps_the_mode_that_its_user_gave_it(tmp_path: Path) -> None:
    keys = tmp_path / ".ssh" / "authorized_keys"
    keys.parent.mkdir(mode=0o700)
    keys.write_text("ssh-rsa BBBB mine\n")
    keys.chmod(0o640)
    apply("mine", work_on(tmp_path), dry_run=False)
    assert stat.S_IMODE(keys.stat().st_mode) == 0o640
    assert keys.read_text().startswith("ssh-rsa BBBB mine\n# BEGIN torchfleet mine\n")


def test_a_users_part_is_done_with_the_rights_of_that_user_alone() -> None:
    wanted = pwd.getpwnam(USER)

    def who() -> list[str]:
        return [str((os.getresuid(), os.getresgid())), os.environ["HOME"], str(sorted(os.getgroups()))]

    ids, home, groups = as_user(USER, who)
    assert ids == str(((wanted.pw_uid,) * 3, (wanted.pw_gid,) * 3))
    own = str(sorted(os.getgrouplist(USER, wanted.pw_gid)))
    assert (home, groups) == (wanted.pw_dir, own) or wanted.pw_uid == os.getuid()


def test_a_directory_of_keys_that_others_can_open_is_closed(tmp_path: Path) -> None:
    place = tmp_path / "ssh"
    place.mkdir()
    place.chmod(0o755)
    survey.make_private_directory(str(place))
    assert stat.S_IMODE(place.stat().st_mode) == 0o700


def test_a_public_key_is_that_of_the_private_one(tmp_path: Path) -> None:
    """A public file that was lost or exchanged would have others trust a key that is not ours."""
    mine, other = str(tmp_path / "mine"), str(tmp_path / "other")
    make_key(mine, "mine")
    make_key(other, "other")
    key, made = current_key(mine, "mine", fresh=False, make=False)
    assert not made
    os.replace(f"{other}.pub", f"{mine}.pub")
    assert current_key(mine, "mine", fresh=False, make=False) == (key, False)
    os.unlink(f"{mine}.pub")
    assert current_key(mine, "mine", fresh=False, make=False) == (key, False)


def test_a_new_key_replaces_the_old_one_when_it_is_put_in_place_and_not_before(tmp_path: Path) -> None:
    path = str(tmp_path / "id_ed25519")
    make_key(path, "old")
    old = Path(path).read_text()
    key, made = current_key(path, "new", fresh=True, make=True)
    assert made and Path(path).read_text() == old
    assert current_key(path, "new", fresh=True, make=True) == (key, False)  # the one that waits, not a third
    assert promote(path, dry_run=True) and Path(path).read_text() == old
    assert promote(path, dry_run=False) and Path(path).read_text() != old
    assert not os.path.exists(path + NEXT) and not promote(path, dry_run=False)
    assert current_key(path, "new", fresh=False, make=False) == (key, False)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.parametrize("loose", ["", ".ssh"])
def test_a_home_that_others_can_write_to_is_named(tmp_path: Path, loose: str) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / ".ssh").mkdir(mode=0o700)
    assert survey.loose_path(str(tmp_path)) == ""
    (tmp_path / loose).chmod(0o775)
    assert survey.loose_path(str(tmp_path)).rstrip("/") == str(tmp_path / loose)


def test_a_node_without_ssh_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/none")
    with pytest.raises(KeyFailed, match=r"^ssh is missing; as root: "):
        survey.ssh_version()
    with pytest.raises(KeyFailed, match=r"^ssh-keygen is missing; as root: "):
        ssh_keygen(["-V"])


def test_others_are_told_of_addresses_that_lead_here_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every machine has 127.0.0.1, and fe80::1 is another machine on every link."""
    monkeypatch.setattr(survey, "addresses_4", lambda: ["192.0.2.1", "127.0.0.1", "169.254.7.7", "192.0.2.1"])
    monkeypatch.setattr(survey, "addresses_6", lambda: ["::1", "fe80::1", "2001:db8::1"])
    assert survey.own_addresses() == ["192.0.2.1", "2001:db8::1"]


# --- the system's sshd, which clusters share ------------------------------------------------------------------------


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the files of the system's sshd be below this directory. The nodes of the lab have sshd itself."""
    monkeypatch.setattr(apply_module, "drop_in_refusal", lambda _path: "")
    monkeypatch.setattr(sshd, "SSHD_CONFIG", str(tmp_path / "sshd_config"))
    monkeypatch.setattr(shared, "PLACE", str(tmp_path / "torchfleet"))
    monkeypatch.setattr(shared, "LOCK", str(tmp_path / "lock"))
    monkeypatch.setattr(shared, "DROP_IN", str(tmp_path / "sshd_config.d" / "40-torchfleet.conf"))
    (tmp_path / "sshd_config.d").mkdir()
    (tmp_path / "sshd_config").write_text(f"Include {tmp_path}/sshd_config.d/*.conf\nPidFile {tmp_path}/none\n")
    return tmp_path


def part(number: int, user: str = ME.pw_name, **changed: Any) -> str:
    """Return the part of one cluster."""
    given = {
        **{"user": user, "user_ca": f"ssh-ed25519 CA{number}", "principals": [f"restrict n{number}"]},
        **{"host_certificate": "", "startups": 100, "sessions": 64, "exempt": []},
    }
    return json.dumps({**given, **changed})


def apply_root(files: dict[str, str], absent: list[str], dry_run: bool = False) -> list[str]:
    none = {"kind": "none", "config": "/none", "unit": "none.service"}
    step = {"by": "root", "files": files, "absent": absent, "sshd": none}
    return apply("mine", {"user": ME.pw_name, "record": "", "steps": [step]}, dry_run)


def test_nobody_but_root_can_hold_the_lock(system: Path) -> None:
    with shared.alone(dry_run=False):
        assert (system / "lock").stat().st_mode & 0o777 == 0o600
    (system / "lock").unlink()
    (system / "lock").symlink_to(system / "other")
    with pytest.raises(OSError), shared.alone(dry_run=False):
        pass
    assert not (system / "other").exists()


def test_a_drop_in_that_sshd_would_not_read_is_not_written(system: Path) -> None:
    """All would look well, and certificates be refused."""
    (system / "sshd_config").write_text("Port 22\n")
    with pytest.raises(MeshFailed, match=f"includes no drop-ins: make 'Include {system}/sshd_config.d/"):
        apply_root({shared.part_of("mine"): part(1)}, [])
    assert sorted(path.name for path in system.iterdir()) == ["sshd_config", "sshd_config.d"]


def test_a_sites_own_authority_is_never_hidden(system: Path) -> None:
    """Whoever logs in as this user with a certificate of the site would be locked out, the operator too."""
    before = (system / "sshd_config").read_text()
    (system / "sshd_config.d" / "10-site.conf").write_text("TrustedUserCAKeys /etc/ssh/site_ca.pub\n")
    with pytest.raises(MeshFailed, match=r"trusts the authorities in /etc/ssh/site_ca\.pub .*ssh_mesh_become: false"):
        apply_root({shared.part_of("mine"): part(1)}, [])
    assert sorted(path.name for path in system.iterdir()) == ["sshd_config", "sshd_config.d"]
    apply_root({shared.part_of("mine"): part(1, user_ca="", principals=[])}, [])  # ssh_mesh_trust: keys
    (system / "sshd_config").write_text(f"{before}TrustedUserCAKeys none\n")
    (system / "sshd_config.d" / "10-site.conf").unlink()
    assert apply_root({shared.part_of("mine"): part(1)}, [])


def test_two_clusters_share_one_sshd_and_each_goes_alone(system: Path, open_umask: None) -> None:
    os.umask(0o077)  # sshd reads these files as the user
    before = modes_below(system)
    first, second = (shared.part_of(name) for name in ("one", "two"))
    assert apply_root({first: part(1)}, [], dry_run=True) == [f"{first} written"]
    assert modes_below(system) == before
    apply_root({first: part(1)}, [])
    alone = {path: path.read_text() for path in system.rglob("*") if path.is_file()}
    users = system / "torchfleet" / "users" / ME.pw_name
    assert [path.stat().st_mode & 0o777 for path in (users.parent, users, users / "principals")] == [
        0o755,
        0o755,
        0o644,
    ]
    apply_root({second: part(2)}, [])
    assert (users / "user_ca.pub").read_text() == "ssh-ed25519 CA1\nssh-ed25519 CA2\n"
    assert (users / "principals").read_text() == "restrict n1\nrestrict n2\n"
    assert "MaxStartups 200:30:400\n" in Path(shared.DROP_IN).read_text()
    assert apply_root({first: part(1)}, [], dry_run=True) == []
    apply_root({}, [second])
    assert {path: path.read_text() for path in system.rglob("*") if path.is_file()} == alone
    apply_root({}, [first])
    (system / "lock").unlink()
    assert modes_below(system) == before


def test_a_drop_in_only_adds_and_keeps_users_apart() -> None:
    """Nothing in it may take away a way to log in, and the authority of one user is not trusted for another one."""
    certificate = "/etc/ssh/torchfleet/clusters/one-host-cert.pub"
    parts = [
        json.loads(part(1, "alice", host_certificate=certificate)),
        json.loads(part(2, "bob", exempt=["192.0.2.1"])),
    ]
    made = shared.composed(parts)
    rows = made[shared.DROP_IN].splitlines()[1:]
    words = [row.split()[0] for row in rows]
    one_user = ["Match", "TrustedUserCAKeys", "AuthorizedPrincipalsFile"]
    assert words == ["MaxStartups", "MaxSessions", "PerSourcePenaltyExemptList", "HostCertificate", *one_user * 2]
    assert made[f"{shared.PLACE}/users/alice/user_ca.pub"] == "ssh-ed25519 CA1\n"
    assert made[f"{shared.PLACE}/users/bob/user_ca.pub"] == "ssh-ed25519 CA2\n"
    assert list(made)[-1] == shared.DROP_IN  # when sshd reads it, the files are there
    only_keys = shared.composed([json.loads(part(3, user_ca="", principals=[]))])
    assert "TrustedUserCAKeys" not in str(only_keys)
    assert shared.composed([]) == {}


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"user": 1}'])
def test_a_part_that_is_damaged_is_named(system: Path, text: str) -> None:
    apply_root({shared.part_of("one"): part(1)}, [])
    Path(shared.part_of("one")).write_text(text)
    with pytest.raises(MeshFailed, match=r"one.json is damaged: remove it, and run setup.yml of that cluster again"):
        apply_root({shared.part_of("two"): part(2)}, [])


def test_another_cluster_in_the_same_home_is_named(tmp_path: Path) -> None:
    """It would lose its keys."""
    assert survey.other_tenant(str(tmp_path), "mine") == ""
    for name, text in (("n1", "{}"), ("n2", '{"cluster": "mine"}')):
        (tmp_path / f"applied-{name}.json").write_text(text)
    assert survey.other_tenant(str(tmp_path), "mine") == ""
    assert survey.other_tenant(str(tmp_path), "theirs") == "mine"


# --- an sshd of the user's own --------------------------------------------------------------------------------------


def test_a_process_that_took_the_number_of_an_sshd_is_not_taken_for_it(tmp_path: Path) -> None:
    """The number in a PID file may be anybody's after a reboot, and what it names is sent signals."""
    pid_file = tmp_path / "sshd.pid"
    assert pid_in(str(pid_file), "sshd_config") is None
    pid_file.write_text(f"{os.getpid()}\n")
    assert pid_in(str(pid_file), str(tmp_path / "sshd_config")) is None
    assert pid_in(str(pid_file), sys.executable.rpartition("/")[2][:6]) == os.getpid()


def test_a_port_that_another_program_has_is_named_before_sshd_is_started(tmp_path: Path) -> None:
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        service = {"kind": "plain", "config": f"{tmp_path}/sshd_config", "unit": "none.service", "port": port}
        own = OwnSshd({**service, "program": "/no/such/sshd"}, dry_run=False)
        with pytest.raises(MeshFailed, match=f"port {port} is used by another program: give another ssh_mesh_port"):
            own.keep()


# --- the proof ------------------------------------------------------------------------------------------------------

# Called as ssh: -F config -o ControlPath=none name command.
SSH = """#!/bin/sh
case $5 in
talks) echo hello; echo torchfleet;;
busy) echo "$$" >>"$COUNT"
      [ "$(wc -l <"$COUNT")" -gt 2 ] && { echo torchfleet; exit 0; }
      echo "kex_exchange_identification: Connection closed by remote host" >&2; exit 255;;
closed) echo "$$" >>"$COUNT"; echo "Connection refused" >&2; exit 255;;
*) echo torchfleet;;
esac
"""


@pytest.fixture
def logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program in place of ssh; return the file in which each login to some nodes is a line."""
    (tmp_path / "ssh").write_text(SSH)
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    monkeypatch.setattr(proof.random, "uniform", lambda _least, _most: 0.0)  # seconds between two tries
    return tmp_path / "count"


def failures(*names: str) -> list[tuple[str, str]]:
    nodes = {name: {"name": name, "address": "192.0.2.2", "port": 22, "config": "/none/config"} for name in names}
    return [(row["to"], row["why"]) for row in prove("n1", nodes, any_to_any=False)]


def test_a_shell_that_prints_on_its_own_fails_the_proof(logins: Path) -> None:
    """Its status is 0, and whoever talks with a program there would read `hello` as its answer."""
    ((name, why),) = failures("n1", "talks")
    assert name == "talks" and why.startswith("its shell prints 'hello")


def test_a_login_that_sshd_hung_up_on_is_tried_again(logins: Path) -> None:
    assert failures("n1", "busy") == []
    assert len(logins.read_text().splitlines()) == 3


def test_a_login_that_fails_otherwise_is_tried_once(logins: Path) -> None:
    ((name, why),) = failures("n1", "closed")
    assert name == "closed" and why.startswith("nothing listens on 192.0.2.2 port 22")
    assert len(logins.read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("valid", "says", "days"),
    [
        ("20200101000000Z:20210101000000Z", "the certificate ended on 2021-01-01 00:00 UTC", 0),
        ("29990101000000Z:29991231000000Z", "the certificate starts on 2999-01-01 00:00 UTC", 100_000),
        ("20200101000000Z:29991231000000Z", "", 100_000),
        ("-1h:+36h", "", 1),
    ],
)
def test_a_certificate_that_is_not_valid_now_is_the_reason_of_a_refused_login(
    tmp_path: Path, valid: str, says: str, days: int
) -> None:
    assert days_left(str(tmp_path / "config")) == -1
    make_key(str(tmp_path / "ca"), "ca")
    make_key(str(tmp_path / "id_ed25519"), "mine")
    sign = ["-q", "-s", "ca", "-I", "mine", "-n", "fleet", "-V", valid, "id_ed25519.pub"]
    ssh_keygen(sign, str(tmp_path))
    assert certificate_of(str(tmp_path / "config"), here=True) == says
    assert days_left(str(tmp_path / "config")) == days
    assert certificate_of(str(tmp_path / "config"), here=False) == ""  # another node's is not to be seen
