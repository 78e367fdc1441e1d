"""Machines become a cluster and are bare again. What a job needs stays as it is, and so does what another user has.

Nodes that have Python and an SSH server, and nothing else; for the second half a firewall too. The tests run in this
order: each leaves the nodes for the next.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.driver import SCRIPTS
from tests.lab.cluster import PAIR, Cluster, Job
from tests.lab.lab import Lab, ansible
from tests.lab.listing import listing

NODES = ("n1", "n2")
SETUP = {
    "mpis": ["openmpi", "mpich", "intelmpi"],
    "torch_backends_mpis": ["openmpi"],
    "backends": ["mpi"],
    "libraries": ["ucx"],
    "ssh_mesh_become": True,
}
Listings = dict[str, set[str]]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("remove")
    lab = Lab(f"r{os.getpid()}", root / "inventory", nodes=2, install=True, image="bare", packages=["nftables"])
    try:
        lab.up()
        yield Cluster(lab, root)
    finally:
        lab.down()


@pytest.fixture(scope="module")
def before(bare: Cluster) -> Listings:
    """What can be told of each node before anything is done there."""
    return {node: listing(bare.lab, node) for node in NODES}


def works(bare: Cluster, *words: str) -> Job:
    job = bare.play(*words)
    assert job.process.returncode == 0, job.log.read_text()
    return job


# --- input that is refused ------------------------------------------------------------------------------------------

NO_SUDO = ("mv /etc/sudoers.d/lab /root/lab", "mv /root/lab /etc/sudoers.d/lab")
OLD = (
    "cp /usr/lib/os-release /root/; sed -i s/12/10/ /usr/lib/os-release",
    "cat /root/os-release >/usr/lib/os-release; rm /root/os-release",
)
# As the kernel of another processor would answer.
ARM = "import os; real = os.uname(); os.uname = lambda: os.uname_result((*real[:4], 'aarch64'))"
ON_ARM = (
    f'echo "{ARM}" >/usr/lib/python3/dist-packages/usercustomize.py',
    "rm /usr/lib/python3/dist-packages/usercustomize.py",
)
TWO_HEADS = {"all": {"children": {"head": {"hosts": {"n2": {}}}}}}
# What is wrong with n2, what is given, and the one line.
REFUSED: dict[str, tuple[tuple[str, str], dict[str, object], str]] = {
    "no root for the firewall": (NO_SUDO, {"firewall_open": True}, "TF-NO-SUDO"),
    "no root for sshd": (NO_SUDO, {"ssh_mesh_become": True}, "TF-NO-SUDO"),
    "a distribution that is too old": (OLD, {}, "TF-OS-OLD"),
    "two architectures": (ON_ARM, {}, "TF-DRIFT-ARCH"),
    "two heads": (("true", "true"), {}, "head has 2 and workers has 2"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_leaves_the_nodes_as_they_were(
    bare: Cluster, before: Listings, tmp_path: Path, what: str
) -> None:
    (make, mend), given, told = REFUSED[what]
    (tmp_path / "more.yml").write_text(json.dumps(TWO_HEADS if what == "two heads" else {}))
    bare.lab.root("n2", "sh", "-ec", make)
    try:
        refused = bare.play("setup.yml", "-i", str(tmp_path / "more.yml"), job_id="", **given)
    finally:
        bare.lab.root("n2", "sh", "-ec", mend)
    said = refused.log.read_text()
    assert refused.process.returncode == 2 and "Traceback" not in said, said
    assert [line for line in said.splitlines() if line.startswith("[ERROR]: ") and told in line], said
    assert len(re.findall(r"^\[ERROR\]: ", said, re.MULTILINE)) == 1, said
    assert [sorted(listing(bare.lab, node) ^ before[node]) for node in NODES] == [[], []]
    assert not Path(bare.lab.directory, "ssh_mesh").exists()  # nor on the controller


# --- everything goes ------------------------------------------------------------------------------------------------


def test_after_removal_the_nodes_are_as_they_were(bare: Cluster, before: Listings) -> None:
    bare.lab.ssh("n1", "sh", "-c", "'echo mine >mine.txt'")
    works(bare, "setup.yml", "--skip-tags", "verify", "-e", json.dumps(SETUP))
    there = {node: listing(bare.lab, node, contents=False) for node in NODES}
    assert all(len(there[node] - before[node]) > 1000 for node in NODES)
    assert bare.lab.root("n1", "cat", "/var/lib/torchfleet/installed.json")

    told = works(bare, "remove.yml", "--check").output
    parts = ("/home/fleet/.torchfleet/pytorch", "package g++", "/home/fleet/.torchfleet/fabric.json")
    for what in (*parts, "/home/fleet/.torchfleet/ucx"):
        assert f"would remove: {what}" in told or f", {what}" in told
    assert {node: listing(bare.lab, node, contents=False) for node in NODES} == there

    works(bare, "remove.yml")
    mine = {line for line in listing(bare.lab, "n1") if line.endswith("/home/fleet/mine.txt") or "/mine.txt " in line}
    assert len(mine) == 2
    assert listing(bare.lab, "n1") - mine == before["n1"]
    assert listing(bare.lab, "n2") == before["n2"]
    assert not Path(bare.lab.directory, "ssh_mesh").exists()  # the authorities of the cluster, on the controller
    assert "changed=0" in works(bare, "remove.yml").output


# --- two users, and a node more, while a job runs -------------------------------------------------------------------

FIREWALL = """flush ruleset
table inet filter {
	chain input {
		type filter hook input priority filter; policy drop;
		iif "lo" accept
		ct state established,related accept
		tcp dport 22 accept
	}
}
"""
ENOUGH = "/home/fleet/enough"
LIMITS = "/etc/security/limits.d/90-torchfleet.conf"
OTHERS = re.compile(  # what belongs to the second user
    r" /home/other/|torchfleet-firewall-other[.]|/etc/torchfleet/.*other|/etc/ssh/torchfleet/(clusters|users)/other|"
    r"^unit torchfleet-firewall-other|comment \"torchfleet:other"
)
# What has a part of each cluster, and what root added for all.
SHARED = re.compile(rf"^\w+  /etc/ssh/sshd_config[.]d/40-torchfleet.conf$| {LIMITS}( |$)| /var/lib/torchfleet(/| )")
OF_A_JOB = re.compile(r"/\.torchfleet/(jobs|.*/__pycache__)")


def seen(bare: Cluster, node: str) -> set[str]:
    """Return all of a node, but what a running job changes: its files, and bytecode of what its ranks import."""
    found = listing(bare.lab, node, below="/etc /home/*/.ssh /home/*/.torchfleet/ssh /home/*/.torchfleet/fabric.*")
    return {re.sub(r"^nft +\d+", "nft", line) for line in found if not OF_A_JOB.search(line)}


@dataclass
class Busy:
    """A job that runs, and its programs as they were at first."""

    job: Job
    programs: dict[str, list[int]]

    @property
    def is_untouched(self) -> bool:
        now = {node: self.job.programs(node, "until.py") for node in self.programs}
        return self.job.process.poll() is None and now == self.programs


@pytest.fixture(scope="module")
def busy(bare: Cluster) -> Iterator[Busy]:
    """A job of the first user on the first two nodes, whose ranks talk all the time."""
    bare.write("group_vars/all", firewall_open=True, ssh_mesh_become=True)
    for node in NODES:
        bare.lab.root(node, "sh", "-ec", f"printf %s '{FIREWALL}' >/etc/nftables.conf; systemctl enable --now nftables")
        bare.lab.root(node, "useradd", "--create-home", "other")
        bare.lab.root(node, "cp", "-r", "/home/fleet/.ssh", "/home/other/.ssh")
        bare.lab.root(node, "chown", "-R", "other:", "/home/other/.ssh")
        bare.lab.root(node, "sh", "-c", "echo 'other ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/other")
    works(bare, "setup.yml", "--skip-tags", "verify")
    started = bare.start(workload=str(SCRIPTS / "until.py"), workload_args=ENOUGH)
    try:
        yield Busy(started, started.wait_for_programs("until.py", n1=2, n2=2))
    finally:
        started.process.kill()


@pytest.fixture(scope="module")
def other(bare: Cluster, busy: Busy) -> Cluster:
    """The cluster of a second user on the same nodes, who takes the PyTorch that is there."""
    root = bare.root / "other"
    (root / "inventory").mkdir(parents=True)
    groups = yaml.safe_load(bare.lab.inventory.read_text())["all"]["children"]
    for group in groups.values():
        for host in group["hosts"].values():
            (host or {}).update(ansible_user="other")
    place = bare.lab.directory
    known = (
        f"-o 'UserKnownHostsFile=\"{root}/known_hosts\"' -o GlobalKnownHostsFile=/dev/null -o StrictHostKeyChecking=yes"
    )
    (root / "known_hosts").write_text((place / "known_hosts").read_text())
    groups["workers"]["vars"].update(
        ansible_ssh_private_key_file=f"{place}/key",
        ansible_ssh_common_args=f"{known} -o IdentitiesOnly=yes",
        torchfleet_python="/home/fleet/.torchfleet/pytorch/bin/python",
        torchfleet_cluster="other",
        mpis=[],  # torchrun needs none
        firewall_open=True,
        ssh_mesh_become=True,
        prerequisites_limits=True,
    )
    made = Cluster(bare.lab, root)
    made.inventory = root / "inventory" / "hosts.yml"
    made.inventory.write_text(json.dumps({"all": {"children": groups}}))
    return made


def test_nothing_is_removed_under_a_running_job(bare: Cluster, busy: Busy) -> None:
    before = {node: seen(bare, node) for node in NODES}
    refused = bare.play("remove.yml", "-e", "nodes=n2", job_id="")
    assert refused.process.returncode == 2
    assert f"job {busy.job.job_id} of fleet runs here: wait for its end, or end it" in refused.output
    assert "removed:" not in refused.output
    assert busy.is_untouched
    assert {node: sorted(seen(bare, node) ^ before[node]) for node in NODES} == {node: [] for node in NODES}


def test_a_second_user_s_cluster_leaves_the_first_one_s_alone(bare: Cluster, busy: Busy, other: Cluster) -> None:
    before, authority = {node: seen(bare, node) for node in NODES}, files_of(bare.lab.directory)
    works(other, "setup.yml", "--skip-tags", "pytorch,verify")
    assert busy.is_untouched
    assert files_of(bare.lab.directory) == authority
    for node in NODES:
        now = seen(bare, node)
        assert [line for line in now ^ before[node] if not (OTHERS.search(line) or SHARED.search(line))] == []
        wanted = (LIMITS, 'comment "torchfleet:other')  # else nothing of the second one could be seen
        assert [text for text in wanted if not any(text in line for line in now)] == []
    trained = other.train(workload="message_passing", launcher="torchrun", **PAIR)
    assert {row["host"] for row in trained.result["ranks"]} == set(NODES)
    assert busy.is_untouched


def test_a_node_is_added_while_a_job_runs_on_the_others(bare: Cluster, busy: Busy, other: Cluster) -> None:
    """It takes part in the next job. Nothing of the job is touched, nor of the other cluster."""
    before = {node: seen(bare, node) for node in NODES}
    bare.lab.up(nodes=3)
    works(bare, "setup.yml", "--skip-tags", "verify")
    assert busy.is_untouched
    for node in NODES:
        assert not [line for line in seen(bare, node) ^ before[node] if OTHERS.search(line)]
    trained = bare.train(workload="message_passing", **{**PAIR, "nodes": "n2,n3"})
    assert {row["host"] for row in trained.result["ranks"]} == {"n2", "n3"}
    assert busy.is_untouched


def test_the_second_user_s_cluster_goes_and_the_first_one_stays(bare: Cluster, busy: Busy, other: Cluster) -> None:
    """With what root installed for the second one: the first one may need it by now."""
    before = {node: seen(bare, node) for node in NODES}
    gone = works(other, "remove.yml")
    assert busy.is_untouched
    assert f"of fleet): {LIMITS}" in gone.output
    for node in NODES:
        there = seen(bare, node)
        assert not [line for line in there if OTHERS.search(line) and "/home/other/" not in line]
        assert [line for line in there ^ before[node] if not (OTHERS.search(line) or SHARED.search(line))] == []
        assert bare.lab.read(node, LIMITS) and "/home/other/.torchfleet" not in " ".join(there)
    assert bare.lab.ssh("n1", "ssh", "-F", "/home/fleet/.torchfleet/ssh/config", "n2", "hostname").stdout == "n2\n"
    bare.lab.root("n1", "touch", ENOUGH)
    assert busy.job.process.wait(120) == 0, busy.job.output
    assert (busy.job.result["state"], len(busy.job.result["ranks"])) == ("succeeded", 4)


def files_of(directory: Path) -> dict[str, bytes]:
    """Return what is in each file of a directory of the controller."""
    return {str(path): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()}


# --- a node goes, or is another machine -----------------------------------------------------------------------------


def test_another_machine_takes_a_node_s_name(bare: Cluster) -> None:
    """A new container with nothing on it. Setup refuses the changed host key, and says what to type."""
    lab, known = bare.lab, bare.lab.directory / "known_hosts"
    old, gone = lab.address("n2"), [line for line in known.read_text().splitlines() if lab.address("n2") in line]
    subprocess.run(["podman", "rm", "--force", "--time", "0", f"{lab.name}-n2"], check=True, capture_output=True)
    lab.up()
    assert lab.address("n2") == old and gone
    news = [line for line in known.read_text().splitlines() if old not in line]
    known.write_text("\n".join([*news, *gone]) + "\n")  # as who types has it: that of the machine that is gone

    refused = bare.play("setup.yml", job_id="")
    assert refused.process.returncode == 2 and "ERROR TF-HOST-KEY-CHANGED" in refused.output
    assert "playbooks/host_keys.yml -e replace=n2" in refused.output
    assert "/.torchfleet" not in lab.root("n2", "find", "/home/fleet")
    shown = bare.play("playbooks/host_keys.yml", "-e", "replace=n2", job_id="")
    (digest,) = set(re.findall(r"-e accept=([0-9a-f]{32})", shown.output))
    works(bare, "playbooks/host_keys.yml", "-e", "replace=n2", "-e", f"accept={digest}")
    works(bare, "setup.yml", "-e", "replace=n2", "--skip-tags", "verify")
    trained = bare.train(workload="message_passing")
    assert {row["host"] for row in trained.result["ranks"]} == {"n1", "n2", "n3"}


def test_a_cluster_is_the_same_after_its_inventory_moved(bare: Cluster) -> None:
    """With its authorities, which a lab has there. Under another name its nodes would be refused."""
    place, known = bare.lab.directory, "ssh_mesh/nodes.json"
    moved = place.rename(place.with_name("moved"))
    try:
        name = json.loads((moved / known).read_text())["cluster"]
        words = ["ansible-playbook", "-i", str(moved / "hosts.yml"), "setup.yml", "--tags", "ssh_mesh"]
        done = ansible(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(re.findall(r"^n[123] .*changed=0", done.stdout, re.MULTILINE)) == 2, done.stdout  # n1 plans for all
        there = json.loads((moved / known).read_text())
        assert (there["cluster"], there["inventory"]) == (name, str(moved))
    finally:
        moved.rename(place)


def test_a_node_that_does_not_answer_is_forgotten_by_the_others(bare: Cluster) -> None:
    bare.play("clean.yml", job_id="")
    known = bare.lab.directory / "ssh_mesh" / "nodes.json"
    bare.lab.kill("n2")
    try:
        done = works(bare, "remove.yml", "-e", "nodes=n2")
        assert "n2 did not answer, and still has all that setup.yml put there" in done.output
        assert sorted(json.loads(known.read_text())["nodes"]) == ["n1", "n3"]
        config = bare.lab.root("n1", "cat", "/home/fleet/.torchfleet/ssh/config")
        assert "Host n1" in config and "Host n3" in config and "n2" not in config
        proven = works(bare, "setup.yml", "-e", "away=n2")
        assert "verify of 2 nodes: " in proven.output, proven.output
        trained = bare.train(workload="message_passing", away="n2")
        assert {row["host"] for row in trained.result["ranks"]} == {"n1", "n3"}
    finally:
        bare.lab.restart("n2")
