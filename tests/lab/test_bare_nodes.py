"""The README's commands, typed as they stand there on nodes that have Python and an SSH server, and nothing else.

All on one pair of nodes, for each setup takes a minute or two. What one command leaves there is no help to the next:
each test looks for what must not be there yet.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from tests.driver import REPO
from tests.lab.cluster import Cluster, Job
from tests.lab.lab import Lab
from tests.wheels import add_wheel

NODES = ("n1", "n2")
HOME = "/home/fleet/.torchfleet"
WITH_MPI = """setup.yml -e '{"backends": ["mpi"]}'"""
WITH_INTEL = """setup.yml -e '{"mpis": ["mpich", "intelmpi"], "backends": ["mpi"]}'"""
# The launchers of the proof that ends a setup: each makes every node import PyTorch once more for each backend. The
# proofs of the first two setups are whole, and test_across_backends.py has each backend under each launcher.
PROVE = """ -e '{"verify_launchers": ["%s"]}'"""
# Enough to see that it learns: the first training here is the whole one.
SHORT = """ -e '{"workload_args": "--epochs 3 --target-accuracy 0.5"}'"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("bare")
    lab = Lab(f"b{os.getpid()}", root / "inventory", nodes=2, nics=2, install=True, image="bare")
    try:
        lab.up()
        yield Cluster(lab, root)
    finally:
        lab.down()


def typed(bare: Cluster, line: str) -> Job:
    """Run a command line that starts with the name of a playbook, to its end."""
    return bare.play(*shlex.split(line))


def works(bare: Cluster, line: str) -> Job:
    job = typed(bare, line)
    assert job.process.returncode == 0, job.log.read_text()
    return job


def trains(bare: Cluster, line: str) -> dict[str, Any]:
    """Two ranks on each node, all of which the README promises, of one job. Return its result."""
    result = works(bare, line).result
    assert (result["state"], [row["host"] for row in result["ranks"]]) == ("succeeded", ["n1", "n1", "n2", "n2"])
    return result


def there(bare: Cluster, *places: str) -> list[str]:
    """Return the files on any of the nodes that one of the patterns names."""
    return [
        path
        for node in NODES
        for path in bare.lab.root(node, "sh", "-c", f"ls -d {' '.join(places)}", check=False).split()
    ]


def test_nothing_is_there(bare: Cluster) -> None:
    programs = ("g++", "cc", "rsync", "ping", "pip", "pip3", "mpirun", "make", "git")
    modules = ("apt", "pip", "torch", "numpy", "ensurepip")
    places = [f"/usr/{folder}/{name}" for folder in ("bin", "sbin", "local/bin") for name in programs]
    places += [f"/usr/lib/{folder}/{name}" for folder in ("python3*", "python3/dist-packages") for name in modules]
    assert there(bare, *places, "/usr/include/python3*", HOME) == []
    assert len(there(bare, "/usr/bin/python3", "/usr/sbin/sshd")) == 4


def test_without_root_a_compiler_is_asked_for_before_anything_is_done(bare: Cluster) -> None:
    for node in NODES:
        bare.lab.root(node, "useradd", "--create-home", "plain")
        bare.lab.root(node, "cp", "-r", "/home/fleet/.ssh", "/home/plain/.ssh")
        bare.lab.root(node, "chown", "-R", "plain:", "/home/plain/.ssh")
    job = typed(bare, f"{WITH_MPI} -e ansible_user=plain")
    assert job.process.returncode == 2
    assert "TF-NO-COMPILER: no machine of this kind can compile backend mpi" in job.output
    assert "as root: apt-get install -y g++ libpython3-dev" in job.output
    assert there(bare, "/home/plain/.torchfleet") == []


def test_setup_and_training(bare: Cluster) -> None:
    works(bare, "setup.yml")
    trains(bare, "train.yml -e workload=mnist")


def test_a_folder_with_requirements(bare: Cluster) -> None:
    """Of a package that nobody installed: made on one node, sent to the other, and used by the ranks of both."""
    folder, wheels = bare.root / "project", bare.root / "wheels"
    for place in (folder, wheels):
        place.mkdir()
    add_wheel(wheels, "tiny", "1.0")
    add_wheel(wheels, "helper", "1.0", needs="Requires-Dist: tiny>=1.0\nRequires-Dist: torch>=2\n")
    (folder / "requirements.txt").write_text("helper\n")
    (folder / "train.py").write_text(
        "import helper, tiny, torch, sys\nprint(helper.version, tiny.version, sys.prefix)\n"
    )
    line = f"train.yml -e workload={folder}/train.py -e program_wheelhouse={wheels}"
    job = works(bare, line)
    made = set(there(bare, f"{HOME}/programs/*/"))
    assert len(made) == 1
    assert [job.stdout(rank).split() for rank in range(4)] == [["1.0", "1.0", made.pop().rstrip("/")]] * 4
    receipts = {bare.lab.root(node, "sh", "-c", f"cat {HOME}/programs/*/torchfleet-receipt.json") for node in NODES}
    assert len(receipts) == 1
    assert "Install what it needs" in job.output
    assert "Install what it needs" not in works(bare, line).output


def test_backend_mpi_where_no_compiler_was(bare: Cluster) -> None:
    assert there(bare, "/usr/bin/g++", "/usr/include/python3*/Python.h", f"{HOME}/backends") == []
    works(bare, WITH_MPI)
    result = trains(bare, "train.yml -e backend=mpi" + SHORT)
    assert result["skew"]["collectives"] >= 20  # seen by the backend's own recorder


def test_a_build_that_fails_has_the_first_error_of_the_compiler(bare: Cluster) -> None:
    works(bare, f"{WITH_MPI} --tags torch_backends")
    for node in NODES:
        bare.lab.root(node, "rm", "-r", f"{HOME}/pytorch/backends")
    headers = bare.lab.root("n1", "sh", "-c", "ls /usr/include/*/python3*/pyconfig.h").strip()
    bare.lab.root("n1", "mv", headers, f"{headers}.away")
    try:
        job = typed(bare, f"{WITH_MPI} --tags torch_backends")
    finally:
        bare.lab.root("n1", "mv", f"{headers}.away", headers)
    assert job.process.returncode == 2
    assert "torch_backends could not be built: " in job.output
    assert "pyconfig.h: No such file or directory" in job.output


def test_backend_mpi_under_intel_mpi_without_ccl(bare: Cluster) -> None:
    """Whose libfabric Intel MPI found as long as it was installed too."""
    places = ("/usr/lib/*/libfabric.so*", f"{HOME}/backends/lib/python3*/site-packages/*ccl*", f"{HOME}/intelmpi")
    assert there(bare, *places) == []
    said = works(bare, WITH_INTEL + PROVE % "intelmpi").output
    assert "intelmpi gloo all-reduce correct" in said and "intelmpi mpi all-reduce correct" in said
    trains(bare, "train.yml -e launcher=intelmpi -e backend=mpi" + SHORT)
    assert there(bare, *places[:2]) == []


def test_backend_ccl(bare: Cluster) -> None:
    said = works(bare, """setup.yml -e '{"backends": ["ccl"]}'""" + PROVE % "torchrun").output
    assert "torchrun ccl all-reduce correct" in said
    assert trains(bare, "train.yml -e backend=ccl" + SHORT)["skew"]["collectives"] >= 20


def test_make_says_what_to_install_where_python_makes_no_environments(bare: Cluster) -> None:
    bare.lab.root("n1", "apt-get", "update")
    bare.lab.root("n1", "apt-get", "install", "--yes", "--no-install-recommends", "make")
    for name in ("Makefile", "requirements.txt", "requirements-dev.txt"):
        bare.lab.root("n1", "sh", "-c", 'printf %s "$1" >"/home/fleet/$2"', "sh", (REPO / name).read_text(), name)
    done = bare.lab.ssh("n1", "make", "train", check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.splitlines()[0] == (
        "python3 cannot make virtual environments: apt install python3-venv (Debian, Ubuntu)"
    )
