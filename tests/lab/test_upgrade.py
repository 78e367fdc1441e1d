"""Another version of Open MPI on two nodes, and back: on both or on neither. The tests run in this order."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.driver import wait_until
from tests.lab.lab import Lab, ansible

Done = subprocess.CompletedProcess[str]
HOME = "/home/fleet/upgrade"
PATH, STORE = f"{HOME}/openmpi", f"{HOME}/versions/openmpi"
OLD, NEW = "5.0.10", "5.0.11"
NODES = ("n1", "n2")


class Fleet:
    """Playbooks on two nodes, below a home of their own."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab

    def play(self, book: str, *words: str, **given: object) -> Done:
        extra = json.dumps({"torchfleet_home": HOME, "torchfleet_locked": False, **given})
        return ansible("ansible-playbook", "-i", str(self.lab.inventory), book, "-e", extra, *words)

    def works(self, book: str, *words: str, **given: object) -> str:
        done = self.play(book, *words, **given)
        assert done.returncode == 0, done.stdout + done.stderr
        return " ".join(done.stdout.split())

    def refusal(self, book: str, *words: str, **given: object) -> str:
        done = self.play(book, *words, **given)
        said = done.stdout + done.stderr
        assert done.returncode != 0 and "Traceback" not in said, said
        return " ".join(said.split())

    def setup(self, version: str) -> str:
        return self.works("setup.yml", "--tags", "mpi", openmpi_version=version)

    def versions(self) -> list[str]:
        """Return what mpirun says on each node, and which of the versions it is."""
        said = [self.lab.ssh(node, f"{PATH}/bin/mpirun", "--version").stdout.split() for node in NODES]
        return [words[3] for words in said]

    def kept(self, node: str) -> list[str]:
        """Return the versions that lie on a node."""
        names = self.lab.ssh(node, "ls", STORE).stdout.split()
        return sorted(name.rpartition("-")[0] for name in names if not name.endswith((".lock", ".json")))

    def root(self, node: str, script: str) -> None:
        self.lab.root(node, "sh", "-ec", f"cd {STORE}; {script}")


@pytest.fixture(scope="module")
def fleet(two_nodes: Lab) -> Iterator[Fleet]:
    yield Fleet(two_nodes)
    for node in NODES:
        two_nodes.root(node, "rm", "-rf", HOME)


def test_another_version_is_used_on_both_nodes_and_taken_back(fleet: Fleet) -> None:
    fleet.setup(OLD)
    assert "nothing to go back to" in fleet.refusal("playbooks/rollback.yml")
    fleet.setup(NEW)
    assert fleet.versions() == [NEW, NEW]
    assert fleet.lab.ssh("n1", f"{PATH}/bin/mpirun", "-n", "2", "--oversubscribe", "hostname").stdout == "n1\nn1\n"
    told = fleet.works("playbooks/rollback.yml", "--check")
    assert f"would use: openmpi {OLD}-" in told and fleet.versions() == [NEW, NEW]
    assert f"uses: openmpi {OLD}-" in fleet.works("playbooks/rollback.yml")
    assert fleet.versions() == [OLD, OLD]
    assert "there is no version of openmpi before" in fleet.refusal("playbooks/rollback.yml", "-e", "parts=openmpi")
    assert [fleet.kept(node) for node in NODES] == [[OLD, NEW], [OLD, NEW]]


def test_what_fails_on_one_node_leaves_both_as_they_were(fleet: Fleet) -> None:
    # Its proof fails on n2.
    fleet.root("n2", f"cd {NEW}-*/; mv bin/mpirun kept; ln -s /bin/false bin/mpirun; rm torchfleet-proof.txt")
    said = fleet.refusal("setup.yml", "--tags", "mpi", openmpi_version=NEW)
    assert "n2 is not ready, so no node changes: openmpi: " in said
    assert fleet.versions() == [OLD, OLD]
    fleet.root("n2", f"cd {NEW}-*/; mv kept bin/mpirun")
    # The link cannot be changed there, after n1 has changed its own.
    fleet.root("n2", f"mkdir {PATH}.new")
    said = fleet.refusal("setup.yml", "--tags", "mpi", openmpi_version=NEW)
    assert "n2 could not change, so every node keeps what it had: openmpi: " in said
    assert fleet.versions() == [OLD, OLD]
    fleet.root("n2", f"rmdir {PATH}.new")
    fleet.setup(NEW)
    assert fleet.versions() == [NEW, NEW]


def test_nothing_is_exchanged_under_a_running_job(fleet: Fleet) -> None:
    job = f"{HOME}/jobs/one"
    hold = f"echo $$ >{job}/pid; exec flock --no-fork {job}/lock sleep 900"
    fleet.lab.ssh("n2", f"mkdir -p {job}; setsid -f sh -c '{hold}' </dev/null >/dev/null 2>&1")
    wait_until(lambda: fleet.lab.ssh("n2", f"flock --nonblock --shared {job}/lock true", check=False).returncode == 1)
    try:
        for said in (
            fleet.refusal("playbooks/rollback.yml"),
            fleet.refusal("setup.yml", "--tags", "mpi", openmpi_version=OLD),
        ):
            assert "job one runs " in said and "ansible-playbook clean.yml -e job_id=one" in said
        assert fleet.versions() == [NEW, NEW]
    finally:
        fleet.root("n2", f"kill $(cat {job}/pid); rm -r {HOME}/jobs")


def test_what_an_earlier_release_made_becomes_a_version(fleet: Fleet) -> None:
    """A directory at the path itself. It is moved, and nothing is fetched for it."""
    for node in NODES:
        fleet.root(node, f"rm {PATH} *.lock; mv {OLD}-* {PATH}; touch {PATH}/as-it-was; rm -r {STORE}")
    fleet.setup(NEW)
    assert fleet.versions() == [NEW, NEW]
    fleet.works("playbooks/rollback.yml")
    assert fleet.versions() == [OLD, OLD]
    fleet.lab.ssh("n2", "ls", f"{PATH}/as-it-was")
    assert "changed=0" in fleet.setup(OLD)
    fleet.works("setup.yml", "--tags", "mpi", openmpi_state="absent")
    for node in NODES:
        assert fleet.lab.root(node, "find", HOME, "-mindepth", "1", check=False) == ""
