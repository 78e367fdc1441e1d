"""Preflight on real nodes: each fault is found as exactly what it is, and nothing is changed on any node."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.driver import REPO, wait_until
from tests.lab.lab import ENVIRONMENT, Lab

HOME = "/home/fleet/preflight"  # of these tests, as others install into the usual one
PLAY = [{"hosts": "head:workers", "gather_facts": False, "roles": ["torchfleet.cluster.preflight"]}]
Hosts = dict[str, dict[str, Any]]
Fault = Callable[[Lab], AbstractContextManager[None]]


def fault(make: str, mend: str) -> Fault:
    """Return how to have a fault in n2 for a while, from two scripts."""

    @contextmanager
    def having_it(lab: Lab) -> Iterator[None]:
        lab.root("n2", "sh", "-ec", make)
        try:
            yield
        finally:
            lab.root("n2", "sh", "-ec", mend)

    return having_it


def mounted(options: str) -> Fault:
    """Return how to have a small file system of its own as the home of n2."""
    return fault(
        f"install -d -o fleet -g fleet {HOME}; mount -t tmpfs -o uid=1000,{options} tmpfs {HOME}",
        f"umount {HOME}; rmdir {HOME}",
    )


@dataclass
class Told:
    """What one run of preflight told."""

    rc: int
    text: str
    report: dict[str, Any]

    @property
    def found(self) -> set[tuple[str, str]]:
        return {(finding["id"], " ".join(finding["nodes"])) for finding in self.report.get("findings", [])}


@pytest.fixture
def preflight(lab: Lab, tmp_path: Path) -> Callable[..., Told]:
    """Return a function that runs the role. `hosts`: more hosts or variables for the inventory; others are extra."""

    def run(*words: str, hosts: Hosts | None = None, env: dict[str, str] | None = None, **extra: Any) -> Told:
        report = tmp_path / "report.json"
        report.unlink(missing_ok=True)
        (tmp_path / "play.yml").write_text(yaml.safe_dump(PLAY))
        (tmp_path / "more.yml").write_text(yaml.safe_dump({"workers": {"hosts": hosts or {}}}))
        variables = json.dumps({"preflight_report": str(report), "torchfleet_home": HOME, **extra})
        argv = ["ansible-playbook", "-i", lab.inventory, "-i", tmp_path / "more.yml", tmp_path / "play.yml"]
        environment = {**ENVIRONMENT, **(env or {})}
        done = subprocess.run(
            [*argv, "-e", variables, *words], cwd=REPO, env=environment, capture_output=True, text=True, check=False
        )
        assert "Traceback" not in done.stdout + done.stderr
        told = json.loads(report.read_text()) if report.exists() else {}
        return Told(done.returncode, done.stdout + done.stderr, told)

    return run


@pytest.mark.parametrize("words", [(), ("--check",), ("--user", "root")], ids=["fleet", "check", "root"])
def test_a_good_pair_has_no_findings_and_is_not_touched(
    lab: Lab, preflight: Callable[..., Told], words: tuple[str, ...]
) -> None:
    for node in ("n1", "n2"):
        lab.root(node, "touch", "/run/before")
    root = {
        "ansible_user": "root",
        "torchfleet_home": "/root/preflight",
    }  # a home below fleet's would be fleet's to exchange
    told = preflight(*words, **(root if words[1:] == ("root",) else {}))
    assert (told.rc, told.found) == (0, set())
    assert "preflight of 2 nodes: nothing found" in told.text
    assert told.report["ok"]
    assert "changed=0" in told.text
    places = ("/home", "/root", "/etc", "/usr", "/opt", "/srv", "/tmp", "/var/tmp", "/dev/shm")
    for node in ("n1", "n2"):
        assert lab.root(node, "find", *places, "-mindepth", "1", "-xdev", "-newer", "/run/before") == ""


def test_the_report_is_for_its_owner_and_has_clocks_and_one_digest(
    preflight: Callable[..., Told], tmp_path: Path
) -> None:
    told = preflight(preflight_needs_root=True)
    assert (tmp_path / "report.json").stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.glob(".report*")) == []
    clocks = told.report["clocks"]
    assert all(abs(clock["offset"]) <= clock["uncertainty"] for clock in clocks.values())  # it is the same clock
    assert len(set(told.report["drift"]["digests"].values())) == 1
    assert told.report["nodes"]["n1"]["sshd"]["from"] == "sshd -T"
    assert told.report["nodes"]["n1"]["user"] == {"name": "fleet", "uid": 1000, "sudo": "yes"}


DATE = (
    "printf '#!/bin/sh\\nexec /bin/date -d +100seconds +%%s.%%N\\n' >/usr/local/bin/date; chmod +x /usr/local/bin/date"
)
HOSTS = "cp /etc/hosts /run/hosts"
FAULTS = {
    "TF-DISK-HOME": mounted("size=1m"),
    "TF-HOME-READONLY": mounted("ro"),
    "TF-HOME-NOEXEC": mounted("noexec"),
    "TF-DISK-TMP": fault("mount -t tmpfs -o size=1m tmpfs /tmp", "umount /tmp"),
    "TF-SHM-SMALL": fault("mount -o remount,size=64m /dev/shm", "mount -o remount,size=256m /dev/shm"),
    "TF-SHM-FULL": fault("head -c 250M /dev/zero >/dev/shm/full", "rm /dev/shm/full"),
    "TF-HOSTNAME-LOOPBACK": fault(f"{HOSTS}; sed -i '1i 127.0.1.1 n2' /etc/hosts", "cat /run/hosts >/etc/hosts"),
    "TF-HOSTNAME-UNRESOLVED": fault(f"{HOSTS}; echo 127.0.0.1 localhost >/etc/hosts", "cat /run/hosts >/etc/hosts"),
    "TF-NO-PYTHON": fault("mv /usr/bin/python3 /usr/bin/gone", "mv /usr/bin/gone /usr/bin/python3"),
    "TF-NO-VENV": fault("cd /usr/lib/python3.*; mv venv gone", "cd /usr/lib/python3.*; mv gone venv"),
    "TF-CLOCK-SKEW": fault(DATE, "rm /usr/local/bin/date"),
    "TF-MAXSTARTUPS": fault(
        "echo MaxStartups 1:30:60 >/etc/ssh/sshd_config.d/00-few.conf", "rm /etc/ssh/sshd_config.d/00-few.conf"
    ),
    "TF-FIREWALL": fault("mkdir -p /etc/ufw; echo ENABLED=yes >/etc/ufw/ufw.conf", "rm /etc/ufw/ufw.conf"),
    "TF-NO-SUDO": fault("mv /usr/bin/sudo /usr/bin/gone", "mv /usr/bin/gone /usr/bin/sudo"),
}
# As many faults in one run as can be had together; warnings alone do not stop.
WARNINGS = ("TF-SHM-SMALL", "TF-HOSTNAME-LOOPBACK", "TF-MAXSTARTUPS", "TF-FIREWALL")
TOGETHER = [
    (WARNINGS, 0),
    (("TF-DISK-HOME", "TF-DISK-TMP", "TF-NO-VENV", "TF-CLOCK-SKEW"), 2),
    (("TF-HOME-READONLY", "TF-SHM-FULL", "TF-HOSTNAME-UNRESOLVED"), 2),
    (("TF-HOME-NOEXEC", "TF-NO-SUDO"), 2),
    (("TF-NO-PYTHON",), 2),
]


@pytest.mark.parametrize(
    ("names", "rc"), TOGETHER, ids=lambda value: "+".join(value) if isinstance(value, tuple) else ""
)
def test_faults_are_found_as_what_they_are(
    lab: Lab, preflight: Callable[..., Told], names: tuple[str, ...], rc: int
) -> None:
    with ExitStack() as faults:
        for name in names:
            faults.enter_context(FAULTS[name](lab))
        told = preflight(preflight_needs_root="TF-NO-SUDO" in names)
    assert (told.found, told.rc) == ({(name, "n2") for name in names}, rc), told.text
    assert told.report["ok"] == (rc == 0)
    assert all(f" {name}: " in told.text for name in names)


def test_every_fault_was_had() -> None:
    assert {name for names, _rc in TOGETHER for name in names} == set(FAULTS)


def test_a_sudo_that_forbids(lab: Lab, preflight: Callable[..., Told]) -> None:
    broken = fault("mv /etc/sudoers /run/own; mkdir /etc/sudoers", "rmdir /etc/sudoers; mv /run/own /etc/sudoers")
    with broken(lab):
        assert preflight(preflight_needs_root=True).found == {("TF-NO-SUDO", "n2")}


def test_cloned_machines(lab: Lab, preflight: Callable[..., Told]) -> None:
    with ExitStack() as faults:
        for path in ("/etc/machine-id", "/etc/ssh/ssh_host_ed25519_key.pub"):
            make = f"cp -p {path} {path}.own; echo '{lab.root('n1', 'cat', path).strip()}' >{path}"
            faults.enter_context(fault(make, f"cat {path}.own >{path}; rm {path}.own")(lab))
        told = preflight()
    assert (told.found, told.rc) == ({("TF-SAME-MACHINE-ID", "n1 n2"), ("TF-SAME-HOST-KEY", "n1 n2")}, 2)


@pytest.fixture
def shut(lab: Lab, tmp_path: Path) -> Hosts:
    """Return hosts that nobody gets into, each for another reason; n1 is one of them."""
    other_key = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other_key], check=True)
    n1, n2 = (lab.hosts()[name]["ansible_host"] for name in ("n1", "n2"))
    (tmp_path / "changed").write_text(f"{n1} {' '.join(other_key.with_suffix('.pub').read_text().split()[:2])}\n")
    (tmp_path / "known").write_text((lab.directory / "known_hosts").read_text())
    (tmp_path / "empty").write_text("")
    strict = "-o StrictHostKeyChecking=yes -o GlobalKnownHostsFile=/dev/null -o IdentitiesOnly=yes"

    def host(
        address: str, key: Path = lab.directory / "key", known_hosts: str = "known", **more: Any
    ) -> dict[str, Any]:
        return {
            "ansible_host": address,
            "ansible_user": "fleet",
            "ansible_ssh_private_key_file": str(key),
            "ansible_ssh_common_args": f"{strict} -o UserKnownHostsFile={tmp_path / known_hosts}",
            **more,
        }

    return {
        "n1": host(n1, known_hosts="changed"),
        "port": host(n2, ansible_port=2222),
        "key": host(n2, key=other_key),
        "stranger": host(n2, known_hosts="empty"),
        "nobody": host(f"{n2.rpartition('.')[0]}.250"),
        "name": host("no-such-host.invalid"),
    }


def test_ways_not_to_get_in(lab: Lab, preflight: Callable[..., Told], shut: Hosts, tmp_path: Path) -> None:
    """All at once: each node has its own finding, and the head, which is one of them, hides nothing."""
    n1, n2 = shut["n1"]["ansible_host"], shut["key"]["ansible_host"]
    with mounted("size=1m")(lab):
        # Hosts with the same address, port and user would share one connection, and so one key.
        told = preflight(hosts=shut, env={"ANSIBLE_SSH_ARGS": "-o ControlMaster=no -o ControlPath=none"})
    assert told.rc == 2
    assert {pair for pair in told.found if pair[0] != "TF-INVENTORY"} == {
        ("TF-HOST-KEY-CHANGED", "n1"),
        ("TF-SSH-PORT", "port"),
        ("TF-SSH-KEY", "key"),
        ("TF-HOST-KEY-UNKNOWN", "stranger"),
        ("TF-UNREACHABLE", "nobody"),
        ("TF-NAME-UNKNOWN", "name"),
        ("TF-DISK-HOME", "n2"),
    }
    for words in ("set ansible_port of port", f"ssh-copy-id fleet@{n2}", f"ssh-keygen -R '{n1}'"):
        assert words in told.text
    assert (tmp_path / "known").read_text() == (lab.directory / "known_hosts").read_text()
    assert n1 in (tmp_path / "changed").read_text()


def reload_sshd(lab: Lab) -> None:
    """Make sshd of n2 read its files, and wait until it listens again: then it writes its PID file."""

    def written() -> str:
        return lab.root("n2", "stat", "-c", "%y", "/run/sshd.pid", check=False)

    before = written()
    lab.root("n2", "systemctl", "reload", "ssh")
    wait_until(lambda: written() not in ("", before), 120)


@pytest.fixture
def one_login_at_a_time(lab: Lab) -> Iterator[None]:
    few = "/etc/ssh/sshd_config.d/00-few.conf"
    lab.root("n2", "sh", "-c", f"echo MaxStartups 1:100:1 >{few}")
    reload_sshd(lab)
    yield
    lab.root("n2", "rm", few)
    reload_sshd(lab)


def test_a_crowded_sshd_is_tried_again(lab: Lab, preflight: Callable[..., Told], one_login_at_a_time: None) -> None:
    """Somebody else's login lasts for the first seconds."""
    with socket.create_connection((lab.address("n2"), 22), timeout=60) as other:
        assert other.recv(4) == b"SSH-"
        leaves = threading.Timer(5, other.close)
        leaves.start()
        told = preflight(env={"ANSIBLE_SSH_ARGS": "-o ControlMaster=no -o ControlPath=none"})
        leaves.join()
    assert (told.rc, told.found) == (0, {("TF-MAXSTARTUPS", "n2")}), told.text


def test_host_keys_are_saved_once_they_were_compared(lab: Lab, tmp_path: Path) -> None:
    known = tmp_path / "known"
    strict = "-o StrictHostKeyChecking=yes -o GlobalKnownHostsFile=/dev/null -o IdentitiesOnly=yes"
    more = {"ansible_ssh_common_args": f"{strict} -o UserKnownHostsFile={known}"}

    def play(book: str, **given: str) -> tuple[int, str]:
        argv = ["ansible-playbook", "-i", lab.inventory, book, "-e", json.dumps({**more, **given})]
        done = subprocess.run(argv, cwd=REPO, env=ENVIRONMENT, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    status, said = play("setup.yml")
    assert status == 2 and "PLAY [Preflight]" not in said, said
    for node in ("n1", "n2"):
        (key,) = lab.root(node, "ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub").split()[1:2]
        (shown,) = [line for line in said.splitlines() if line.startswith(f"{node} ") and "SHA256:" in line]
        assert shown.split() == [node, lab.address(node), "ssh-ed25519", key]
    (digest,) = set(re.findall(r"-e\s+accept=([0-9a-f]{32})", said))
    status, said = play("playbooks/host_keys.yml", accept="0" * 32)
    assert status == 2 and f"the table above has {digest}" in " ".join(said.split())
    assert not known.exists()
    assert play("playbooks/host_keys.yml", accept=digest)[0] == 0
    assert len(known.read_text().splitlines()) == 2
    assert play("playbooks/host_keys.yml")[0] == 0


def test_a_machine_under_two_names(lab: Lab, preflight: Callable[..., Told], tmp_path: Path) -> None:
    """By its other NIC, where the addresses differ; and by the same address, which the inventory alone tells."""
    one, other = lab.address("n1"), lab.address("n1", 1)
    key = lab.root("n1", "cat", "/etc/ssh/ssh_host_ed25519_key.pub").split()[:2]
    (tmp_path / "known").write_text(f"{one},{other} {' '.join(key)}\n")
    n3 = {
        **lab.hosts()["n1"],
        "ansible_host": other,
        "ansible_ssh_private_key_file": f"{lab.directory}/key",
        "ansible_ssh_common_args": f"-o StrictHostKeyChecking=yes -o UserKnownHostsFile={tmp_path}/known",
    }
    told = preflight(hosts={"n3": n3, "n4": {**n3, "ansible_host": one}})
    assert (told.rc, told.found) == (2, {("TF-SAME-MACHINE", "n1 n3 n4"), ("TF-INVENTORY", "")}), told.text
    assert "n1 and n4 both have" in told.text


def test_what_is_ignored_stops_nothing(lab: Lab, preflight: Callable[..., Told]) -> None:
    with mounted("size=1m")(lab):
        told = preflight(preflight_ignore=["TF-DISK-HOME"])
    assert (told.rc, told.found, told.report["ok"]) == (0, {("TF-DISK-HOME", "n2")}, True)
    assert "ignored TF-DISK-HOME" in told.text


def test_a_report_that_cannot_be_written_is_one_line(preflight: Callable[..., Told]) -> None:
    told = preflight(preflight_report="/proc/report.json")
    assert (told.rc, told.report) == (2, {})
    assert 'preflight_report: got "/proc/report.json"; ' in told.text
