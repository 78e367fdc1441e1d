"""Backends mpi, shm and ccl between nodes, on a stock PyTorch wheel: brought as a wheel, for no node has a compiler."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.combinations import combined
from tests.driver import REPO
from tests.lab.cluster import HYDRA, OB1, PAIR, Cluster
from torch_backends.tests import package

CHECKS = REPO / "torch_backends" / "tests" / "ranks.py"


@pytest.fixture(scope="session")
def with_backends(four_nodes: Cluster) -> None:
    """Have the wheel that this machine built on all nodes."""
    package.install()
    (wheel,) = Path(package.HOME, "backends", "wheels").glob("*.whl")
    given = {"mpis": ["openmpi", *HYDRA], "backends": ["mpi", "shm", "ccl"], "torch_backends_wheel": str(wheel)}
    for changed in (True, False):
        done = four_nodes.play("setup.yml", "--tags", "torch_backends", **given)
        assert done.process.returncode == 0, done.log.read_text()
        assert ("changed=0" not in done.output) == changed, done.output


@pytest.mark.usefixtures("with_backends")
@pytest.mark.parametrize("mpi", ["openmpi", "intelmpi", *combined("mpich")])
def test_every_check_of_the_backend_holds_on_two_nodes(cluster: Cluster, mpi: str) -> None:
    """Two ranks on each: what goes through memory inside a node, and through the MPI between nodes."""
    options = {"workload": str(CHECKS), "workload_args": ["mpi", "/tmp"], "launcher": mpi, "nodes": "n1,n2"}
    job = cluster.train(np=4, backend="mpi", **options)
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n1", "n2", "n2"]


@pytest.mark.usefixtures("with_backends")
@pytest.mark.parametrize("mpi", ["mpich", *combined("openmpi")])
def test_it_trains_over_nodes_that_differ(cluster: Cluster, mpi: str) -> None:
    """Open MPI with the words that many documents give it: over TCP, without the BTL of an InfiniBand of old."""
    options = {"launcher_args": OB1} if mpi == "openmpi" else {}
    job = cluster.train(workload="message_passing", ranks_per_node=1, launcher=mpi, backend="mpi", **options)
    assert (OB1 in " ".join(job.result["command"])) == (mpi == "openmpi")


@pytest.mark.usefixtures("with_backends")
def test_every_check_of_shm_holds_on_two_nodes(cluster: Cluster) -> None:
    """Two ranks on each: what goes through memory inside a node, and by gloo between nodes."""
    options = {"workload": str(CHECKS), "workload_args": ["shm", "/tmp"], "launcher": "torchrun", "nodes": "n1,n2"}
    cluster.train(np=4, backend="shm", **options)


@pytest.mark.usefixtures("with_backends")
@pytest.mark.parametrize("launcher", ["srun", *combined("openmpi")])
def test_shm_needs_no_launcher_of_its_own(launching: Cluster, launcher: str) -> None:
    launching.train(workload="message_passing", backend="shm", launcher=launcher, **PAIR)


@pytest.mark.usefixtures("with_backends")
def test_every_check_of_ccl_holds_on_two_nodes(cluster: Cluster) -> None:
    """One rank on each: those of oneCCL never rest while they wait, and here all nodes share two cores."""
    options = {"workload": str(CHECKS), "workload_args": ["ccl", "/tmp"], "launcher": "torchrun", "nodes": "n1,n2"}
    cluster.train(np=2, ranks_per_node=1, backend="ccl", **options)


@pytest.mark.usefixtures("with_backends")
@pytest.mark.parametrize("launcher", ["intelmpi", "srun", *combined("openmpi", "mpich", "sbatch")])
def test_ccl_goes_beside_whatever_starts_it(launching: Cluster, launcher: str) -> None:
    """Under Intel MPI the training that its documents start so, the words included."""
    options = {"workload": "message_passing"}
    if launcher == "intelmpi":
        words = f"--device cpu --save-model /tmp/{launching.lab.name}-ccl.pt --epochs 1 --target-accuracy 0.3"
        options = {"workload": "mnist", "workload_args": words}
    launching.train(backend="ccl", launcher=launcher, **PAIR, **options)


# As the scripts of Intel's documents begin: their place is that of Intel MPI, and the module has another name now.
INTELS = """
import os, torch, torch.distributed as dist
import oneccl_bindings_for_pytorch
os.environ["RANK"] = os.environ.get("PMI_RANK", "0")
os.environ["WORLD_SIZE"] = os.environ.get("PMI_SIZE", "1")
dist.init_process_group(backend="ccl", init_method="env://")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1, bias=False))
model(torch.full((1, 2), dist.get_rank() + 1.0)).sum().backward()
print(os.environ["MPI_LOCALRANKID"], dist.get_world_size(), model.module.weight.grad.tolist(), flush=True)
"""


@pytest.mark.usefixtures("with_backends")
def test_a_script_in_intels_words_between_nodes(cluster: Cluster, tmp_path: Path) -> None:
    """One line says whose backend it is; the gradients are the mean of both nodes."""
    (tmp_path / "main.py").write_text(INTELS)
    job = cluster.train(workload=str(tmp_path / "main.py"), launcher="intelmpi", backend="ccl", **PAIR)
    printed = [job.stdout(rank).splitlines()[-1] for rank in range(2)]  # oneCCL prints a line of its own before
    assert printed == ["0 2 [[1.5, 1.5]]"] * 2
    said = [(job.run_dir / "ranks" / str(rank) / "stderr").read_text() for rank in range(2)]
    assert ["backend ccl is that of torchfleet-backends, on CPU tensors\n" in text for text in said] == [True, False]
