"""UCX and Open MPI, built from their sources on real nodes: `make stack`, for it takes both cores minutes.

What can be fetched here is Debian's: its copies of the sources of UCX 1.13 and Open MPI 5.0, none of UCC. So Open MPI
is built with UCX's wheel and with UCC as a package of the next Debian, and UCX by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shlex
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.driver import SCRIPTS
from tests.lab.cluster import Cluster
from tests.lab.lab import PATIENCE, Lab
from tests.lab.listing import listing
from tests.lab.test_old_python import stand_in

OPENMPI = "5.0.7"  # whose source Debian 13 has
TARBALL = (
    f"o/openmpi/openmpi_{OPENMPI}.orig.tar.xz",
    "97f10c04e9b9a1771db3fd005009e4c07afa3ce739f940e41eb0fc7397cb9473",
)
PACKAGES = [
    ("u/ucc/libucc1_1.9.0-2_amd64.deb", "ac8feefeb106b38b75f9a6a769417e63a01c3316f2009e4f3930870b0bbacf74"),
    ("u/ucc/libucc-dev_1.9.0-2_amd64.deb", "e20c3b2e1bb30cc4a92a249b88f05fb379ea9bedb977701a568fdeae4a1f7243"),
]
UCX_SOURCE = ("u/ucx/ucx_1.13.1.orig.tar.xz", "1a88e09ca1b406c046a469c2ae271d2c330050b5664c0bcd9890e26c6ef09f3c")
# Fetches a file to a place, if it has a checksum.
FETCH = """
import hashlib, sys, urllib.request
url, digest, path = sys.argv[1:]
content = urllib.request.urlopen(url).read()
assert hashlib.sha256(content).hexdigest() == digest, url
open(path, "wb").write(content)
"""
# Makes a repository of apt of the packages in a directory.
REPOSITORY = """
cd /srv/ucc
for package in *.deb; do
    dpkg-deb --field "$package"
    echo "Filename: ./$package"
    echo "Size: $(stat --format %s "$package")"
    echo "SHA256: $(sha256sum "$package" | cut -d ' ' -f 1)"
    echo
done >Packages
echo 'deb [trusted=yes] file:/srv/ucc ./' >/etc/apt/sources.list.d/ucc.list
apt-get update
"""
BUILD_SECONDS = 3000
# A group that a package made stays, as with the distribution's own removal (docs/add-and-remove.md).
GROUP_STAYS = re.compile(r"^group rdma:|[ ]/etc/g(roup|shadow)-?( |$)")
SCRIPT = SCRIPTS / "mpi_all_reduce.py"
HOME = "/home/fleet/.torchfleet"
# The defaults of pml ucx want RDMA or GPUs.
UCX = "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any"
UCC = "--mca coll_ucc_enable 1 --mca coll_ucc_priority 100"
SAID = "--mca pml_base_verbose 10 --mca coll_ucc_verbose 3"
WANTED = {
    "libraries": ["ucx", "ucc"],
    "ucc_install_method": "package",
    "mpis": ["openmpi"],
    "openmpi_install_method": "source",
    "openmpi_with": ["ucx", "ucc"],
    "openmpi_install_tools": True,
}


def address(lab: Lab, name: str) -> str:
    """Return where Debian has a file of its pool: where a node fetches its packages."""
    said = lab.root("n1", "apt-get", "download", "--print-uris", "libc6")
    return said.split("'")[1].partition("/pool/")[0] + f"/pool/main/{name}"


def fetch_ucc(lab: Lab, node: str, place: str) -> list[str]:
    """Fetch the packages of UCC to a directory of a node; return their paths there."""
    paths = [f"{place}/{Path(name).name}" for name, _digest in PACKAGES]
    for (name, digest), path in zip(PACKAGES, paths, strict=True):
        lab.root(node, "python3", "-c", FETCH, address(lab, name), digest, path)
    return paths


def install_ucc(lab: Lab, node: str) -> None:
    paths = fetch_ucc(lab, node, "/var/tmp")
    lab.root(node, "apt-get", "install", "-y", "--no-install-recommends", *paths, seconds=BUILD_SECONDS)


def offer_ucc(lab: Lab, node: str) -> None:
    """Let apt of a node offer UCC, as a distribution does that has it."""
    lab.root(node, "mkdir", "/srv/ucc")
    fetch_ucc(lab, node, "/srv/ucc")
    lab.root(node, "sh", "-ec", REPOSITORY, seconds=BUILD_SECONDS)


@contextlib.contextmanager
def two_nodes_of(release: str, name: str, place: Path) -> Iterator[Cluster]:
    """Two nodes of a release of Debian."""
    lab = Lab(f"{name}{os.getpid()}", place / "inventory", nodes=2, nics=1, install=True, release=release)
    try:
        lab.up()
        for node in ("n1", "n2"):
            lab.root(node, "apt-get", "update")
        yield Cluster(lab, place)
    finally:
        lab.down()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes of Debian 13 with UCC, and a lockfile for setup.yml."""
    with two_nodes_of("trixie", "s", tmp_path_factory.mktemp("stack")) as made:
        for node in ("n1", "n2"):
            install_ucc(made.lab, node)
        name, digest = TARBALL
        lock(made, "openmpi", OPENMPI, address(made.lab, name), digest, **stand_in(made.root))
        yield made


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[Cluster]:
    """Two nodes of Debian 12, the first with autotools, and a lockfile with UCX's source as a release has it."""
    with two_nodes_of("bookworm", "u", tmp_path) as made:
        made.lab.root(
            "n1", "apt-get", "install", "-y", "--no-install-recommends", "autoconf", "automake", "libtool", "pkg-config"
        )
        name, digest = UCX_SOURCE
        tarball = tmp_path / "ucx-1.13.1.tar"
        with_its_packaging(urllib.request.urlopen(address(made.lab, name)).read(), digest, tarball)
        lock(made, "ucx", "1.13.1", tarball.as_uri(), hashlib.sha256(tarball.read_bytes()).hexdigest())
        yield made


def with_its_packaging(content: bytes, digest: str, path: Path) -> None:
    """Write Debian's copy of UCX's source as UCX has it: with the directory debian/, which its configure wants."""
    assert hashlib.sha256(content).hexdigest() == digest
    with tarfile.open(fileobj=io.BytesIO(content)) as theirs, tarfile.open(path, "w") as ours:
        for member in theirs:
            data = theirs.extractfile(member) if member.isfile() else None
            member.name = member.name.replace("/debian.upstream", "/debian")
            ours.addfile(member, data)


def lock(cluster: Cluster, name: str, version: str, url: str, digest: str, **more: object) -> None:
    """Write a lockfile with another version of one program, and what `more` says of others."""
    source = {"url": url, "sha256": {version: digest}}
    (cluster.root / "versions.yml").write_text(json.dumps({name: {"version": version, "source": source}, **more}))


def set_up(cluster: Cluster, tags: str = "", **wanted: object) -> str:
    """Run setup.yml as far as MPI, or the parts that `tags` name. Return what it said."""
    tags = tags or ("ssh_mesh,libraries,mpi" if "mpis" in wanted else "ssh_mesh,libraries")
    job = cluster.start("setup.yml", "--tags", tags, torchfleet_versions=str(cluster.root / "versions.yml"), **wanted)
    assert job.process.wait(BUILD_SECONDS) == 0, job.output
    return job.output


def remove(cluster: Cluster) -> None:
    """Run remove.yml for all nodes."""
    job = cluster.start("remove.yml", torchfleet_versions=str(cluster.root / "versions.yml"))
    assert job.process.wait(BUILD_SECONDS) == 0, job.output


def require_as_before(cluster: Cluster, before: dict[str, set[str]]) -> None:
    """Fail with what is there now and was not, or is gone."""
    now = {node: listing(cluster.lab, node) for node in before}
    changes = {
        f"{node}: {line}" for node in before for line in now[node] ^ before[node] if not GROUP_STAYS.search(line)
    }
    assert changes == set()


@pytest.mark.timeout(BUILD_SECONDS)
def test_packages_of_ucx_and_ucc_go_and_those_that_were_there_stay(tmp_path: Path) -> None:
    """On n1 the roles install both; n2 had UCC before, and with it UCX's libraries, which others use there."""
    with two_nodes_of("trixie", "g", tmp_path) as made:
        offer_ucc(made.lab, "n1")
        install_ucc(made.lab, "n2")
        (tmp_path / "versions.yml").write_text("{}")
        before = {node: listing(made.lab, node) for node in ("n1", "n2")}
        methods = {"ucx_install_method": "package", "ucc_install_method": "package"}
        set_up(made, libraries=["ucx", "ucc"], **methods)
        for node in ("n1", "n2"):
            made.lab.ssh(node, "ucx_info", "-v")
            made.lab.ssh(node, "test", "-e", "/usr/include/ucc/api/ucc.h")
        added = json.loads(made.lab.root("n1", "cat", "/var/lib/torchfleet/installed.json"))["packages"]
        assert set(added.values()) == {"ucx", "ucc"}, added
        remove(made)
        require_as_before(made, before)


@pytest.mark.timeout(BUILD_SECONDS)
def test_ucx_is_built_on_one_node_and_sent_to_the_other(bare: Cluster) -> None:
    wanted = {"libraries": ["ucx"], "ucx_install_method": "source", "ucx_install_tools": True}
    set_up(bare, **wanted)
    for node in ("n1", "n2"):
        assert "1.13.1" in bare.lab.ssh(node, f"{HOME}/ucx/bin/ucx_info", "-v").stdout
    assert bare.lab.ssh("n2", "which", "cc", check=False).stdout == ""
    assert set_up(bare, **wanted).count("changed=0") == 2


@pytest.mark.timeout(2 * BUILD_SECONDS)
def test_an_all_reduce_goes_through_ucx_and_ucc(built: Cluster) -> None:
    set_up(built, **WANTED)
    # Built on one node and sent to the other: a second run builds nothing.
    receipt = f"{HOME}/openmpi/torchfleet-receipt.json"
    receipts = {built.lab.ssh(node, "cat", receipt).stdout for node in ("n1", "n2")}
    assert len(receipts) == 1 and "--with-ucc" in receipts.pop()
    assert built.lab.ssh("n2", "which", "cc", check=False).stdout == ""
    assert set_up(built, **WANTED).count("changed=0") == 2
    # By hand; train.yml in the next test.
    variables = {"UCC_LOG_LEVEL": "info", "UCX_TLS": "tcp,sm,self", "LD_LIBRARY_PATH": f"{HOME}/openmpi/lib"}
    argv = [
        f"{HOME}/openmpi/bin/mpirun",
        "--prtemca",
        "plm_ssh_args",
        f"-F {HOME}/ssh/config",
        "-H",
        "n1:2,n2:2",
        "-n",
        "4",
    ]
    argv += [word for name, value in variables.items() for word in ("-x", f"{name}={value}")]
    argv += [*UCX.split(), *UCC.split(), "python3", "-c", SCRIPT.read_text()]
    said = built.lab.ssh("n1", f"{PATIENCE} {shlex.join(argv)}", check=False).stdout
    for count in (4, 1_000_000):
        assert [said.count(f"sum of {count}: {{4.0}} on {node}") for node in ("n1", "n2")] == [2, 2], said
    assert "TL_UCP" in said, "UCC did not say what carries its operations"


@pytest.mark.timeout(2 * BUILD_SECONDS)
def test_a_job_of_train_yml_goes_through_ucx_and_ucc(built: Cluster) -> None:
    """PyTorch's all-reduce, on two nodes: the log of each rank says who carried its messages and its sums.

    There is no PyTorch for the Python of Debian 13 where these tests run: prerequisites brings another.
    """
    wheelhouse = str(built.root / "wheelhouse")
    tags = "prerequisites,ssh_mesh,fabric,libraries,mpi,pytorch,torch_backends"
    set_up(built, tags, **WANTED, backends=["mpi"], prerequisites_python="true", prerequisites_wheelhouse=wheelhouse)
    job = built.train(
        workload="all_reduce_bench",
        workload_args=["--min-bytes", "1K", "--max-bytes", "1M", "--factor", "32", "--iterations", "3"],
        launcher="openmpi",
        backend="mpi",
        launcher_args=[*UCX.split(), *UCC.split(), *SAID.split()],
        # One node's ranks, and long tensors between nodes, else do without MPI's own all-reduce.
        job_env={"TORCHFLEET_MPI_SHARED": "0", "TORCHFLEET_MPI_RING": "0", "UCC_LOG_LEVEL": "info"},
    )
    for rank in range(4):
        said = job.stdout(rank) + (job.run_dir / "ranks" / str(rank) / "stderr").read_text()
        assert "select: component ucx selected" in said, said
        assert re.search(r"running ucc i?allreduce", said), said
    assert "TL_UCP" in job.stdout(0), "UCC did not say what carries its operations"  # the first of a team says it


@pytest.mark.timeout(BUILD_SECONDS)
def test_a_job_of_train_yml_goes_through_ucx(tmp_path: Path) -> None:
    """Debian 13's own Open MPI and UCX: the log of each rank says which component carries its messages."""
    with two_nodes_of("trixie", "p", tmp_path) as made:
        for node in ("n1", "n2"):
            made.lab.root(node, "apt-get", "install", "-y", "--no-install-recommends", "openmpi-bin")
        job = made.play("setup.yml", "--tags", "ssh_mesh,fabric")
        assert job.process.returncode == 0, job.output
        made.write("group_vars/all", torchfleet_mpirun="/usr/bin/mpirun")
        program = tmp_path / "all_reduce"  # no script of Python's for train.yml, which would ask for PyTorch
        program.write_text(f"#!/usr/bin/env python3\n{SCRIPT.read_text()}")
        program.chmod(0o755)
        words = [*UCX.split(), "--mca", "pml_base_verbose", "10"]
        job = made.train(workload=str(program), launcher="openmpi", backend="mpi", launcher_args=words)
        for rank in range(4):
            assert job.stdout(rank).count("{4.0} on") == 2
            assert "select: component ucx selected" in (job.run_dir / "ranks" / str(rank) / "stderr").read_text()
