"""The SSH mesh on real nodes: who gets in, who does not, and what a run says when something is wrong."""

from __future__ import annotations

import json
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.lab.lab import Lab, ansible

HOME = "/home/fleet/.torchfleet/ssh"
CONFIG = f"{HOME}/config"
PLAY = [{"hosts": "head:workers", "gather_facts": False, "roles": ["torchfleet.cluster.ssh_mesh"]}]
Done = subprocess.CompletedProcess[str]


class Mesh:
    """The role on a lab's nodes, with the controller's directory in a place of its own."""

    def __init__(self, lab: Lab, place: Path) -> None:
        self.lab, self.place, self.directory = lab, place, place / "ca"
        (place / "mesh.yml").write_text(yaml.safe_dump(PLAY))

    def play(self, *words: str, **variables: Any) -> Done:
        """Run the role to its end, whatever that is. Variables go without `ssh_mesh_`."""
        given = {"directory": str(self.directory), "cluster": "tested", **variables}
        extra = json.dumps({f"ssh_mesh_{name}": value for name, value in given.items()})
        return ansible(
            "ansible-playbook", "-i", str(self.lab.inventory), str(self.place / "mesh.yml"), "-e", extra, *words
        )

    def make(self, *words: str, **variables: Any) -> Done:
        done = self.play(*words, **variables)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def settles(self, **variables: Any) -> bool:
        """Whether another run changes nothing."""
        return not re.search(r"changed=[1-9]", self.make(**variables).stdout)

    def refusal(self, **variables: Any) -> str:
        """Return the one line by which the role refuses."""
        done = self.play(**variables)
        assert done.returncode != 0, done.stdout
        said = done.stdout + done.stderr
        assert "Traceback" not in said
        (line,) = {line for line in said.splitlines() if line.startswith("[ERROR]: ")}
        return line

    def login(self, by: str, to: str, *command: str, options: tuple[str, ...] = ()) -> Done:
        """Log in from one node to another, as a job does."""
        return self.lab.ssh(by, "ssh", "-F", CONFIG, *options, to, *(command or ("hostname",)), check=False)

    def reaches(self, by: str, to: str) -> bool:
        return self.login(by, to).stdout == f"{to}\n"


def write(mesh: Mesh, node: str, path: str, text: str) -> None:
    """Put a text into a file that root may write on a node."""
    argv = mesh.lab.ssh_argv(node, "tee", path, user="root")
    subprocess.run(argv, input=text, text=True, check=True, capture_output=True, timeout=60)


def listing(lab: Lab, node: str) -> str:
    """Return what there is on a node of all that the role touches, with every byte of authorized_keys."""
    places = "/etc/ssh", "/etc/systemd/system", "/home/fleet"
    found = lab.root(node, "find", *places, "!", "-type", "d", "-printf", "%p %m %u %s\\n")
    return "".join(sorted(found.splitlines(keepends=True))) + lab.root(node, "cat", "/home/fleet/.ssh/authorized_keys")


def own_sshd(lab: Lab, node: str) -> list[int]:
    """Return the processes of the user's own sshd that listen."""
    done = lab.root(node, "pgrep", "-f", rf"{HOME}/sshd-{node}/sshd_config.*\[listener\]", check=False)
    return [int(pid) for pid in done.split()]


@pytest.fixture(scope="module")
def untouched(two_nodes: Lab) -> dict[str, str]:
    """The nodes as they are before the first mesh."""
    return {node: listing(two_nodes, node) for node in ("n1", "n2")}


@pytest.fixture(scope="module")
def mesh(two_nodes: Lab, untouched: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Mesh:
    """One for all tests, each of which asks the role for what it wants. The last one removes it."""
    return Mesh(two_nodes, tmp_path_factory.mktemp("mesh"))


@pytest.fixture
def roots(mesh: Mesh) -> Iterator[None]:
    """For tests that write as root: afterwards nothing of it is left."""
    yield
    mesh.make(state="absent", become=True)


# --- who gets in ----------------------------------------------------------------------------------------------------


def test_the_head_gets_in_everywhere_and_a_second_run_changes_nothing(mesh: Mesh) -> None:
    looked = mesh.make("--check")
    assert re.search(r"n2 .*changed=1", looked.stdout)
    assert mesh.lab.ssh("n1", "ls", CONFIG, check=False).returncode != 0
    assert not mesh.directory.exists()
    said = mesh.make("-vvv")
    assert mesh.settles()
    for node in ("n1", "n2"):
        names = node, mesh.lab.address(node, 0), mesh.lab.address(node, 1)
        assert [mesh.login("n1", name).stdout for name in names] == [f"{node}\n"] * 3
    # Whoever is not known by his key is refused, also under a name of the mesh.
    stranger = mesh.login("n1", "n2", options=("-o", "HostKeyAlias=stranger"))
    assert "Host key verification failed" in stranger.stderr
    # The worker has no key, and so no way in anywhere.
    assert mesh.lab.ssh("n2", "ls", HOME).stdout == "applied-n2.json\n"
    require_secrecy(mesh, said.stdout + said.stderr)


def require_secrecy(mesh: Mesh, said: str) -> None:
    """Private keys are where they were made, 0600, and nowhere else."""
    authorities = [mesh.directory / "user_ca", mesh.directory / "host_ca"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in (mesh.directory, *authorities)] == [0o700, 0o600, 0o600]
    for secret in [*(path.read_text() for path in authorities), mesh.lab.root("n1", "cat", f"{HOME}/id_ed25519")]:
        assert secret.splitlines()[2] not in said
    assert "PRIVATE KEY" not in said
    others = [path.read_text() for path in mesh.directory.rglob("*") if path.is_file() and path not in authorities]
    assert "PRIVATE KEY" not in "".join(others)
    assert mesh.lab.root("n1", "stat", "-c", "%a", f"{HOME}/id_ed25519", HOME) == "600\n700\n"


@pytest.mark.parametrize("trust", ["certificates", "keys"])
def test_a_key_is_good_for_commands_from_its_own_node_only(mesh: Mesh, trust: str) -> None:
    mesh.make(trust=trust)
    thief = "/tmp/stolen"
    mesh.lab.root("n2", "mkdir", "-p", thief)
    for name in ("id_ed25519", "id_ed25519-cert.pub", "config", "known_hosts"):
        text = mesh.lab.root("n1", "cat", f"{HOME}/{name}", check=trust == "certificates" or "cert" not in name)
        write(mesh, "n2", f"{thief}/{name}", text.replace(HOME, thief))
    mesh.lab.root("n2", "chmod", "-R", "go=", thief)
    mesh.lab.root("n2", "chown", "-R", "fleet", thief)
    stolen = mesh.lab.ssh("n2", "ssh", "-F", f"{thief}/config", "n1", "hostname", check=False)
    mesh.lab.root("n2", "rm", "-r", thief)
    assert "Permission denied" in stolen.stderr
    assert mesh.reaches("n1", "n2")
    assert "PTY allocation request failed" in mesh.login("n1", "n2", "true", options=("-tt",)).stderr
    forward = ("-o", "ClearAllForwardings=no", "-o", "ExitOnForwardFailure=yes", "-R", "9999:127.0.0.1:22")
    assert "remote port forwarding failed" in mesh.login("n1", "n2", "true", options=forward).stderr


def test_any_node_gets_in_everywhere_by_keys(mesh: Mesh) -> None:
    mesh.make(trust="keys", any_to_any=True)
    assert mesh.settles(trust="keys", any_to_any=True)
    assert all(mesh.reaches(by, to) for by in ("n1", "n2") for to in ("n1", "n2"))
    # Every pair is proved, also those that the head has no part in.
    rule = f"ip saddr {mesh.lab.address('n2')} tcp dport 22 reject with tcp reset"
    chain = "add table inet mesh; add chain inet mesh in { type filter hook input priority 0; }"
    mesh.lab.network("n1", "nft", f"{chain}; add rule inet mesh in {rule}")
    try:
        line = mesh.refusal(trust="keys", any_to_any=True)
    finally:
        mesh.lab.network("n1", "nft", "delete table inet mesh")
    assert f"1 login fails: n2 to n1: nothing listens on {mesh.lab.address('n1')} port 22" in line
    # What is no longer wanted is taken away.
    mesh.make(trust="keys")
    assert mesh.lab.ssh("n2", "ls", HOME).stdout == "applied-n2.json\n"
    assert mesh.lab.ssh("n2", "grep", "-c", "restrict", ".ssh/authorized_keys").stdout == "1\n"


def test_bytes_go_through_unharmed_and_twenty_at_once(mesh: Mesh, roots: None) -> None:
    mesh.make(become=True)
    assert mesh.settles(become=True)
    program = (
        "import subprocess, os\n"
        f"argv = ['ssh', '-F', '{CONFIG}', 'n2', 'cat']\n"
        "data = bytes(range(256)) * 4000\n"
        "run = lambda: subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "many = [run() for each in range(20)]\n"
        "print(sum(one.communicate(data)[0] == data for one in many))\n"
    )
    done = mesh.lab.ssh("n1", "python3", "-c", f'"{program}"')
    assert done.stdout == "20\n", done.stderr
    settings = mesh.lab.root("n2", "sshd", "-T", "-C", "user=fleet,host=x,addr=10.0.0.1")
    assert "maxstartups 100:30:200" in settings
    assert "trustedusercakeys /etc/ssh/torchfleet/users/fleet/user_ca.pub" in settings
    # The node shows a certificate, and others' names are not in it.
    known = mesh.lab.ssh("n1", "cat", f"{HOME}/known_hosts").stdout
    assert re.findall(r"^(\S+) n2", known, re.MULTILINE) == ["@cert-authority"]
    other = mesh.login("n1", mesh.lab.address("n2"), options=("-o", "HostKeyAlias=n1"))
    assert "Host key verification failed" in other.stderr


def test_two_clusters_share_one_sshd_and_one_goes_without_the_other(mesh: Mesh, roots: None) -> None:
    mesh.make(become=True)
    before = listing(mesh.lab, "n2")
    other: dict[str, Any] = {"cluster": "other", "directory": str(mesh.place / "other"), "home": "/home/fleet/.other"}
    mesh.make(become=True, **other)
    assert mesh.settles(become=True)
    assert mesh.settles(become=True, **other)
    assert mesh.reaches("n1", "n2")
    theirs = ("ssh", "-F", "/home/fleet/.other/ssh/config")
    assert mesh.lab.ssh("n1", *theirs, "n2", "hostname").stdout == "n2\n"
    mesh.make(state="absent", become=True, **other)
    assert listing(mesh.lab, "n2") == before
    assert mesh.settles(become=True)
    assert mesh.reaches("n1", "n2")


# --- an sshd of the user's own --------------------------------------------------------------------------------------


def test_an_sshd_of_the_users_own(mesh: Mesh) -> None:
    mesh.make(sshd="own")
    (listener,) = own_sshd(mesh.lab, "n2")
    assert mesh.settles(sshd="own")
    assert own_sshd(mesh.lab, "n2") == [listener]
    assert "Port 2222" in mesh.lab.ssh("n1", "cat", CONFIG).stdout
    assert mesh.reaches("n1", "n2")
    # A session that is open survives another configuration, here another port.
    session = subprocess.Popen(
        mesh.lab.ssh_argv("n1", "ssh", "-F", CONFIG, "n2", "cat"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert session.stdin and session.stdout
    session.stdin.write(b"before\n")
    session.stdin.flush()
    assert session.stdout.readline() == b"before\n"
    mesh.make(sshd="own", port=2223)
    assert own_sshd(mesh.lab, "n2") == [listener]
    assert session.communicate(b"after\n", timeout=30)[0] == b"after\n"
    assert mesh.reaches("n1", "n2")
    # Whatever ended it, the next run starts it again.
    mesh.lab.root("n2", "kill", "-KILL", str(listener))
    mesh.make(sshd="own", port=2223)
    assert len(own_sshd(mesh.lab, "n2")) == 1
    assert "port 22 needs root: give another ssh_mesh_port" in mesh.refusal(sshd="own", port=22)
    mesh.make()
    assert own_sshd(mesh.lab, "n2") == []


def test_an_sshd_of_the_users_own_comes_back_with_the_machine(mesh: Mesh, lab: Lab, roots: None) -> None:
    mesh.make(sshd="own", become=True)
    assert mesh.settles(sshd="own", become=True)
    mesh.lab.kill("n2")
    mesh.lab.restart("n2")
    mesh.lab.root("n2", "systemctl", "start", "torchfleet-sshd-tested.service")  # which waits until it has started
    assert len(own_sshd(mesh.lab, "n2")) == 1
    assert mesh.reaches("n1", "n2")
    mesh.make(state="absent")  # which takes root without being told so
    assert own_sshd(mesh.lab, "n2") == []


# --- rotation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", ["certificates", "keys"])
def test_rotation_makes_the_old_keys_worthless(mesh: Mesh, trust: str) -> None:
    mesh.make(trust=trust)
    mesh.lab.ssh("n1", "cp", "-r", HOME, "old")
    old = ("-F", "none", "-i", "old/id_ed25519", "-o", f"UserKnownHostsFile={HOME}/known_hosts", "-o", "BatchMode=yes")
    assert mesh.lab.ssh("n1", "ssh", *old, mesh.lab.address("n2"), "hostname").stdout == "n2\n"
    mesh.make(trust=trust, rotate=True)
    assert mesh.reaches("n1", "n2")
    done = mesh.lab.ssh("n1", "ssh", *old, mesh.lab.address("n2"), "hostname", check=False)
    assert "Permission denied" in done.stderr
    mesh.lab.ssh("n1", "rm", "-r", "old")


@pytest.mark.parametrize("become", [False, True])
def test_the_certificate_of_a_key_that_its_node_lost_is_worthless(mesh: Mesh, roots: None, become: bool) -> None:
    mesh.make(any_to_any=True, become=become)
    mesh.lab.ssh("n2", "cp", "-r", HOME, "old")
    old = ("-F", "none", "-i", "old/id_ed25519", "-o", f"UserKnownHostsFile={HOME}/known_hosts", "-o", "BatchMode=yes")
    assert mesh.lab.ssh("n2", "ssh", *old, mesh.lab.address("n1"), "hostname").stdout == "n1\n"
    mesh.lab.ssh("n2", "rm", f"{HOME}/id_ed25519", f"{HOME}/id_ed25519.pub")
    mesh.make(any_to_any=True, become=become)
    assert mesh.reaches("n2", "n1")
    done = mesh.lab.ssh("n2", "ssh", *old, mesh.lab.address("n1"), "hostname", check=False)
    assert "Permission denied" in done.stderr
    mesh.lab.ssh("n2", "rm", "-r", "old")


def test_the_certificates_of_a_node_that_was_shut_out_are_worthless(mesh: Mesh, roots: None) -> None:
    """Both are still valid. Nothing is asked of the node, which has all its keys, and n1 had let it in by them."""
    given: dict[str, Any] = {"any_to_any": True, "become": True}
    mesh.make(**given)
    assert mesh.reaches("n2", "n1") and mesh.reaches("n1", "n2")
    mesh.make("--limit", "n1", "-e", '{"__remove_nodes": ["n2"], "shut_out": true}', **given)
    assert "Permission denied" in mesh.login("n2", "n1").stderr
    asks = ("-o", "HostKeyAlias=n2", "-o", "Port=22", "-o", "User=fleet")
    posing = mesh.login("n1", mesh.lab.address("n2"), options=asks)
    assert "Host key verification failed" in posing.stderr, posing.stderr
    assert "n2 was shut out (host key SHA256:" in mesh.refusal(**given)
    mesh.make(accept_changed=["n2"], **given)
    assert mesh.reaches("n2", "n1") and mesh.reaches("n1", "n2")


def test_a_certificate_that_ended_is_told(mesh: Mesh, tmp_path: Path) -> None:
    mesh.make()
    (tmp_path / "key.pub").write_text(mesh.lab.ssh("n1", "cat", f"{HOME}/id_ed25519.pub").stdout)
    validity = ["-n", "fleet", "-V", "20260101000000Z:20260102000000Z"]
    argv = ["ssh-keygen", "-q", "-s", mesh.directory / "user_ca", "-I", "x", *validity, tmp_path / "key.pub"]
    subprocess.run(argv, check=True)
    write(mesh, "n1", f"{HOME}/id_ed25519-cert.pub", (tmp_path / "key-cert.pub").read_text())
    nodes = [{"name": name, "address": mesh.lab.address(name), "config": CONFIG} for name in ("n1", "n2")]
    arguments = json.dumps({"name": "n1", "nodes": nodes})
    done = ansible(
        "ansible", "-i", str(mesh.lab.inventory), "n1", "-m", "torchfleet.cluster.ssh_mesh_prove", "-a", arguments
    )
    assert "the certificate ended on 2026-01-02 00:00 UTC" in " ".join(done.stdout.split())
    mesh.make()
    assert mesh.reaches("n1", "n2")


# --- what is refused, and what is said about it ---------------------------------------------------------------------


@pytest.fixture
def other_host_keys(mesh: Mesh) -> Iterator[None]:
    """Afterwards n2 has the host keys again that it had, and so has Ansible's list."""
    known = mesh.lab.directory / "known_hosts"
    before = known.read_text()
    mesh.lab.root("n2", "cp", "-a", "/etc/ssh", "/root/ssh")
    yield
    mesh.lab.root("n2", "sh", "-c", "cp -a /root/ssh/ssh_host_* /etc/ssh/ && rm -r /root/ssh")
    known.write_text(before)
    mesh.make(accept_changed="n2")


def give_host_keys(mesh: Mesh, keys: dict[str, str]) -> None:
    """Put host keys (file name: text) on n2 and into Ansible's list, as who reinstalls or clones a machine does."""
    for name, text in keys.items():
        write(mesh, "n2", f"/root/{name}", text)
    # All at once and not over SSH, which would meet the first of them.
    mesh.lab.root("n2", "sh", "-c", "chmod 600 /root/ssh_host_*_key && mv /root/ssh_host_* /etc/ssh/")
    known = mesh.lab.directory / "known_hosts"
    address = mesh.lab.address("n2")
    left = [line for line in known.read_text().splitlines() if address not in line]
    news = [f"{address} {' '.join(text.split()[:2])}" for name, text in keys.items() if name.endswith(".pub")]
    known.write_text("\n".join([*left, *news]) + "\n")


def test_a_changed_host_key_is_never_overwritten_silently(mesh: Mesh, other_host_keys: None, tmp_path: Path) -> None:
    mesh.make()
    known = mesh.lab.ssh("n1", "cat", f"{HOME}/known_hosts").stdout
    keys = {}
    for kind in ("ed25519", "ecdsa"):
        subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", tmp_path / kind], check=True)
        keys |= {f"ssh_host_{kind}_key{end}": (tmp_path / f"{kind}{end}").read_text() for end in ("", ".pub")}
    give_host_keys(mesh, keys)
    line = mesh.refusal()
    assert "the host key of n2 changed since the last setup" in line
    assert len(set(re.findall(r"SHA256:\S{43}", line))) == 2
    assert "-e replace=n2" in line
    assert mesh.lab.ssh("n1", "cat", f"{HOME}/known_hosts").stdout == known
    assert "Host key verification failed" in mesh.login("n1", "n2").stderr
    mesh.make("-e", "replace=n2")
    assert mesh.reaches("n1", "n2")
    # The machine that was replaced does not get its place again.
    mesh.lab.root("n2", "sh", "-c", "cp -a /root/ssh/ssh_host_* /etc/ssh/")
    assert "revoked" in mesh.login("n1", "n2").stderr.lower()


def test_cloned_machines_are_told(mesh: Mesh, other_host_keys: None) -> None:
    names = [f"ssh_host_{kind}_key{end}" for kind in ("ed25519", "ecdsa") for end in ("", ".pub")]
    give_host_keys(mesh, {name: mesh.lab.root("n1", "cat", f"/etc/ssh/{name}") for name in names})
    line = mesh.refusal()
    assert "n1 and n2 have the same host key" in line
    assert "ssh-keygen -A" in line


def with_host_vars(mesh: Mesh, node: str, **variables: Any) -> None:
    place = mesh.lab.directory / "host_vars"
    place.mkdir(exist_ok=True)
    (place / f"{node}.yml").write_text(yaml.safe_dump(variables))


@pytest.fixture
def host_vars(mesh: Mesh) -> Iterator[None]:
    yield
    for path in (mesh.lab.directory / "host_vars").glob("*"):
        path.unlink()


def test_every_login_that_fails_is_named_with_its_cause(mesh: Mesh, host_vars: None) -> None:
    with_host_vars(mesh, "n1", ssh_mesh_port=2201)
    with_host_vars(mesh, "n2", ssh_mesh_address=f"{mesh.lab.address('n2').rpartition('.')[0]}.99")
    line = mesh.refusal()
    assert "2 logins fail" in line
    assert f"n1 to n1: nothing listens on {mesh.lab.address('n1')} port 2201" in line
    assert re.search(r"n1 to n2: no (route|answer) .*: set ssh_mesh_address of n2", line)
    # Nodes may differ in all of that, and in where torchfleet's directory is.
    with_host_vars(mesh, "n1")
    place = "/home/fleet/another place"
    with_host_vars(mesh, "n2", ssh_mesh_address=mesh.lab.address("n2", 1), torchfleet_home=place)
    mesh.make(any_to_any=True)
    assert mesh.login("n1", "n2", "'echo $SSH_CONNECTION'").stdout.split()[2] == mesh.lab.address("n2", 1)
    assert mesh.lab.ssh("n2", "ssh", "-F", f"'{place}/ssh/config'", "n1", "hostname").stdout == "n1\n"
    mesh.make(state="absent")
    mesh.lab.ssh("n2", "rmdir", f"'{place}'")


def test_a_node_that_is_away_stays_in_the_mesh(mesh: Mesh, lab: Lab) -> None:
    mesh.make()
    config = mesh.lab.ssh("n1", "cat", CONFIG).stdout
    mesh.lab.kill("n2")
    done = mesh.play()
    mesh.lab.restart("n2")
    assert done.returncode != 0
    assert re.search(r"n2 .*unreachable=1", done.stdout)
    assert re.search(r"n1 .*failed=0", done.stdout)
    assert "n2: in the mesh, but not in this run" in " ".join((done.stdout + done.stderr).split())
    assert mesh.lab.ssh("n1", "cat", CONFIG).stdout == config


def test_a_run_that_is_refused_harms_nothing_and_the_next_one_finishes_it(mesh: Mesh) -> None:
    mesh.make()
    key = mesh.lab.ssh("n1", "cat", f"{HOME}/id_ed25519.pub").stdout
    mesh.lab.root("n2", "chmod", "g+w", "/home/fleet")  # for which sshd would refuse every key
    try:
        line = mesh.refusal(rotate=True)
    finally:
        mesh.lab.root("n2", "chmod", "g-w", "/home/fleet")
    assert "n2: other users can write to /home/fleet" in line
    assert "chmod go-w /home/fleet" in line
    assert mesh.reaches("n1", "n2")
    assert mesh.lab.ssh("n1", "cat", f"{HOME}/id_ed25519.pub").stdout == key
    mesh.make()
    assert mesh.reaches("n1", "n2")
    assert mesh.lab.ssh("n1", "cat", f"{HOME}/id_ed25519.pub").stdout != key


def test_without_sudo_nothing_is_changed(mesh: Mesh) -> None:
    mesh.make()
    before = listing(mesh.lab, "n2")
    mesh.lab.root("n2", "mv", "/etc/sudoers.d/lab", "/root/lab")
    try:
        line = mesh.refusal(become=True)
    finally:
        mesh.lab.root("n2", "mv", "/root/lab", "/etc/sudoers.d/lab")
    assert "Missing sudo password" in line
    assert listing(mesh.lab, "n2") == before


# --- removal --------------------------------------------------------------------------------------------------------


def test_exactly_what_was_added_is_removed(mesh: Mesh, untouched: dict[str, str]) -> None:
    mesh.make(state="absent", become=True)
    assert {node: listing(mesh.lab, node) for node in untouched} == untouched
    assert not mesh.directory.exists()
    assert mesh.settles(state="absent")
