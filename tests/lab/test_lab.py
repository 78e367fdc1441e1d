"""The lab on real nodes: they come, they are told apart, they suffer what they are told to, and they go."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver import wait_until
from tests.lab.lab import Lab, ansible


def changed(done: subprocess.CompletedProcess[str]) -> bool:
    assert done.returncode == 0, done.stdout + done.stderr
    return "changed=0" not in done.stdout


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return what a playbook said once and for all, without a traceback, when it refused."""
    assert done.returncode != 0, done.stdout
    output = done.stdout + done.stderr
    assert output.count("[ERROR]: ") == 1, output
    assert "Traceback" not in output
    return output.partition("[ERROR]: ")[2].partition("Origin: ")[0]


def hears(lab: Lab, one: str, other: str, nic: int) -> bool:
    """Whether one node gets through to the other on the NIC of that number."""
    connect = f"import socket; socket.create_connection(({lab.address(other, nic)!r}, 22), timeout=1)"
    return lab.network(one, sys.executable, "-I", "-S", "-c", connect, check=False).returncode == 0


def podman(*argv: str) -> str:
    return subprocess.run(["podman", *argv], capture_output=True, text=True, check=True).stdout


# --- a lab that is there -------------------------------------------------------------------------------------------


def test_ansible_reaches_every_node_strictly(lab: Lab) -> None:
    done = ansible("ansible", "-i", str(lab.inventory), "all", "-m", "ansible.builtin.ping")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("SUCCESS") == 2
    assert stat.S_IMODE((lab.directory / "key").stat().st_mode) == 0o600


def test_a_wrong_host_key_is_refused(lab: Lab) -> None:
    known = lab.directory / "known_hosts"
    right = known.read_text()
    keys = [line.split(" ", 1)[1] for line in right.splitlines()]
    swapped = dict(zip(keys, [*keys[2:], *keys[:2]], strict=True))
    known.write_text("".join(f"{line.split(' ')[0]} {swapped[line.split(' ', 1)[1]]}\n" for line in right.splitlines()))
    try:
        done = lab.ssh("n1", "true", check=False)
        assert "Host key verification failed" in done.stderr
    finally:
        known.write_text(right)


def test_a_node_is_a_machine(lab: Lab) -> None:
    """Booted, root by sudo, named, its NICs in order, one way out, packages to be had by pip."""
    for number in (1, 2):
        node = f"n{number}"
        assert lab.ssh(node, "hostname").stdout == f"{node}\n"
        assert lab.ssh(node, "sudo", "-n", "id", "-u").stdout == "0\n"
        assert lab.ssh(node, "id", "-u", user="root").stdout == "0\n"
        assert lab.ssh(node, "getent", "hosts", node).stdout.split() == [lab.address(node), node]
        assert lab.ssh(node, "systemctl", "is-system-running", "--wait").stdout == "running\n"
        (default,) = json.loads(lab.ssh(node, "ip", "-json", "route", "show", "default").stdout)
        assert default["dev"] == "eth0"
        links = json.loads(lab.ssh(node, "ip", "-json", "-4", "address", "show", "scope", "global").stdout)
        found = {link["ifname"]: link["addr_info"][0]["local"] for link in links}
        assert found == {f"eth{nic}": lab.address(node, nic) for nic in (0, 1)}
        assert all(address.endswith(f".{10 + number}") for address in found.values())
    assert lab.ssh("n1", "df", "--output=size", "-m", "/dev/shm").stdout.split()[1] == "256"


def test_the_second_time_nothing_changes(lab: Lab) -> None:
    before = {path.name: path.read_text() for path in lab.directory.iterdir() if path.is_file()}
    assert not changed(lab.play())
    assert {path.name: path.read_text() for path in lab.directory.iterdir() if path.is_file()} == before


def test_check_mode_changes_nothing(lab: Lab) -> None:
    for state in ("absent", "kill", "pause", "cut"):
        whole = {} if state == "absent" else {"node": "all"}
        assert changed(lab.play(state, "--check", **whole))
    assert lab.states() == {"n1": "running", "n2": "running"}
    assert hears(lab, "n1", "n2", 0)


# --- what befalls it -----------------------------------------------------------------------------------------------


def test_a_link_is_cut_and_healed(lab: Lab) -> None:
    assert changed(lab.play("cut", node="n2", nic="eth1"))
    assert not changed(lab.play("cut", node="n2", nic="eth1"))
    assert [hears(lab, "n1", "n2", nic) for nic in (0, 1)] == [True, False]
    assert not hears(lab, "n2", "n1", 1)
    assert changed(lab.play("heal", node="n2", nic="eth1"))
    assert not changed(lab.play("heal", node="n2", nic="eth1"))
    assert hears(lab, "n1", "n2", 1)


def test_a_node_that_is_cut_off_still_lets_the_controller_in(lab: Lab) -> None:
    lab.cut("n2")
    assert [hears(lab, "n1", "n2", nic) for nic in (0, 1)] == [False, False]
    assert lab.ssh("n2", "hostname").stdout == "n2\n"


SEND = """
import socket, sys
peer = socket.create_connection((sys.argv[1], 5000))
for _ in range(int(sys.argv[2])):
    peer.sendall(bytes(1 << 20))
peer.shutdown(socket.SHUT_WR)
peer.recv(1)
"""
RECEIVE = """
import socket, time
server = socket.create_server(("", 5000))
print("ready", flush=True)
peer, _ = server.accept()
begin, count = time.monotonic(), 0
while block := peer.recv(1 << 20):
    count += len(block)
print(count * 8 / (time.monotonic() - begin))
"""


def bandwidth(lab: Lab, sender: str, receiver: str, nic: int) -> float:
    """Return the bit/s of 4 MB over TCP."""
    argv = lab.ssh_argv(receiver, f"python3 -c '{RECEIVE}'")
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        lab.ssh(sender, f"python3 -c '{SEND}' {lab.address(receiver, nic)} 4")
        return float(server.stdout.readline())


@pytest.mark.parametrize(("sender", "receiver"), [("n1", "n2"), ("n2", "n1")])
def test_a_slow_link_is_slow_both_ways(lab: Lab, sender: str, receiver: str) -> None:
    """Not a bit faster than 20 Mbit/s, but for the bucket's first 128 kB, while the other NIC is left alone."""
    assert lab.shape("n2", "20mbit", "eth1")
    assert not lab.shape("n2", "20mbit", "eth1")
    assert bandwidth(lab, sender, receiver, 1) < 21e6
    assert bandwidth(lab, sender, receiver, 0) > 21e6
    assert lab.heal("n2")
    assert bandwidth(lab, sender, receiver, 1) > 21e6


def test_a_node_is_paused_and_resumed(lab: Lab) -> None:
    assert changed(lab.play("pause", node="n2"))
    assert not changed(lab.play("pause", node="n2"))
    assert lab.states() == {"n1": "running", "n2": "paused"}
    assert changed(lab.play("resume", node="n2"))
    assert not changed(lab.play("resume", node="n2"))
    assert lab.ssh("n2", "hostname").stdout == "n2\n"


def test_a_node_that_was_killed_comes_back_the_same(lab: Lab) -> None:
    lab.ssh("n2", "touch", "mine")
    before = lab.ssh("n2", "cat", "/etc/ssh/ssh_host_ed25519_key.pub").stdout
    assert changed(lab.play("kill", node="n2"))
    assert not changed(lab.play("kill", node="n2"))
    assert lab.states()["n2"] == "exited"
    assert changed(lab.play("restart", node="n2"))
    after = lab.ssh("n2", "cat", "/etc/ssh/ssh_host_ed25519_key.pub").stdout
    assert after == before
    assert lab.ssh("n2", "ls").stdout == "mine\n"
    assert not changed(lab.play())


def test_a_running_node_is_restarted_and_healed(lab: Lab) -> None:
    lab.cut("n2")
    lab.ssh("n2", "touch", "/run/user-was-here", user="root")
    lab.restart("n2")
    assert hears(lab, "n1", "n2", 0)
    assert lab.ssh("n2", "ls", "/run/user-was-here", check=False).returncode != 0


def test_present_brings_back_what_does_not_run(lab: Lab) -> None:
    lab.kill("n1")
    lab.pause("n2")
    assert changed(lab.play())
    assert lab.states() == {"n1": "running", "n2": "running"}


def test_the_processes_of_a_node_are_seen_by_their_mark(lab: Lab) -> None:
    argv = lab.ssh_argv("n2", "LAB_TEST_MARK=x1 sleep 60")
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL) as sleeper:
        wait_until(lambda: lab.pids("n2", "LAB_TEST_MARK=x1"), 20)
        assert lab.pids("n1", "LAB_TEST_MARK=x1") == []
        sleeper.terminate()


# --- labs that come and go -----------------------------------------------------------------------------------------


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Lab]:
    """A lab that is not there yet, beside the one of all tests."""
    made = Lab(f"t{os.getpid()}b", tmp_path / "in ventory", nodes=1)
    yield made
    made.down()


def test_nodes_differ_as_they_are_told_to(lab: Lab, other: Lab) -> None:
    """In user, port, slots, name and release; in a directory with a space in its name; and one more comes later."""
    different = {"user": "other", "port": 2222, "slots": 1, "hostname": "w.example", "release": "trixie"}
    other.up(shm_mb=64)
    before = (other.directory / "known_hosts").read_text()
    other.up(nodes=2, overrides={"n2": different}, slots=3)
    assert (other.directory / "known_hosts").read_text().startswith(before)
    done = ansible("ansible", "-i", str(other.inventory), "all", "-m", "ansible.builtin.ping")
    assert done.returncode == 0, done.stdout + done.stderr
    assert other.ssh("n2", "hostname; whoami; . /etc/os-release; echo $VERSION_ID").stdout.split() == [
        *("w.example", "other", "13")
    ]
    assert {name: host["slots"] for name, host in other.hosts().items()} == {"n1": 3, "n2": 1}
    assert not changed(other.play())
    # Two labs do not see each other's addresses as their own, and one does not go with the other.
    assert not {other.address("n1"), other.address("n2")} & {lab.address("n1"), lab.address("n2")}
    other.down()
    assert lab.states() == {"n1": "running", "n2": "running"}
    assert not changed(lab.play())


def test_nothing_of_a_lab_is_left(other: Lab) -> None:
    other.up()
    stranger = podman("network", "create", f"{other.name}-stranger").strip()
    try:
        assert changed(other.play("absent"))
        assert not changed(other.play("absent"))
        assert podman("ps", "--all", "--format={{.Names}}", f"--filter=name=^{other.name}-") == ""
        assert podman("network", "ls", "--format={{.Name}}", f"--filter=name=^{other.name}-").split() == [stranger]
        assert not other.directory.exists()
    finally:
        podman("network", "rm", stranger)


def test_what_was_interrupted_is_finished(other: Lab) -> None:
    """Killed when there was a network and a key, and nothing else."""
    other.up()
    podman("rm", "--force", "--time", "0", f"{other.name}-n1")
    other.inventory.unlink()
    assert changed(other.play())
    assert other.ssh("n1", "hostname").stdout == "n1\n"


def test_a_lab_that_is_there_is_not_made_into_another(lab: Lab) -> None:
    for change in ({"nodes": 1}, {"nics": 1}, {"shm_mb": 64}, {"subnets": ["10.1.1.0/24", "10.1.2.0/24"]}):
        said = refusal(lab.play(**change))
        assert f"lab_{next(iter(change))}: lab '{lab.name}' exists with another value" in said
        assert f"ansible-playbook playbooks/lab.yml -e lab_name={lab.name} -e lab_state=absent" in said
    assert not changed(lab.play())


def test_what_is_none_of_ours_is_left_alone(lab: Lab, other: Lab, tmp_path: Path) -> None:
    """A network of that name, an inventory of somebody's own, a subnet in use."""
    podman("network", "create", f"{other.name}-0")
    try:
        assert f"lab_name: {other.name}-0 exists and is not part of lab '{other.name}'" in refusal(other.play())
        assert not changed(other.play("absent"))
        assert podman("network", "ls", "--format={{.Name}}", f"--filter=name=^{other.name}-0$").split()
    finally:
        podman("network", "rm", f"{other.name}-0")
    mine = tmp_path / "mine/hosts.yml"
    mine.parent.mkdir()
    mine.write_text("all:\n")
    assert "mine exists and has no lab's inventory" in refusal(other.play(directory=str(mine.parent)))
    assert not changed(other.play("absent", directory=str(mine.parent)))
    assert mine.read_text() == "all:\n"
    taken = lab.address("n1").rpartition(".")[0] + ".0/24"
    assert f"lab_subnets: {taken} is in use on this machine" in refusal(other.play(subnets=[taken]))
    assert not other.directory.exists()


@pytest.mark.parametrize(
    ("state", "variables", "says"),
    [
        ("present", {"nodes": 0}, "lab_nodes: got 0; give 1 to 200"),
        ("present", {"nics": "x"}, "lab_nics"),
        ("present", {"release": "sid"}, "must be one of: bullseye, bookworm, trixie, got: sid"),
        ("present", {"name": "a b"}, "lab_name: got 'a b'"),
        ("broken", {}, "must be one of: present, absent, cut, heal, shape, pause, resume, kill, restart, got: broken"),
        ("cut", {}, "lab_node: got ''; give n1, n2 or all"),
        ("kill", {"node": "n3"}, "lab_node: got 'n3'; give n1, n2 or all"),
        ("cut", {"node": "n2", "nic": "eth2"}, "lab_nic: got 'eth2'; give eth0 or eth1"),
        ("shape", {"node": "n2", "rate": "fast"}, "lab_rate: got 'fast'; give a whole number"),
        (
            "cut",
            {"name": "nosuchlab", "node": "n1"},
            "lab_name: there is no lab 'nosuchlab'; create it: ",
        ),
    ],
)
def test_bad_input_is_refused_in_one_line(lab: Lab, state: str, variables: dict[str, object], says: str) -> None:
    assert says in refusal(lab.play(state, **variables))


def test_a_dead_node_cannot_be_cut(lab: Lab) -> None:
    lab.kill("n2")
    said = refusal(lab.play("cut", node="all"))
    assert f"lab_node: {lab.name}-n2 is exited; start it with lab_state=restart" in said
    lab.restart("n2")
    assert hears(lab, "n1", "n2", 0)  # n1 was not cut either
