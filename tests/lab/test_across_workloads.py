"""The workloads that train, on two nodes: each under each launcher learns, and on data that was laid there."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.combinations import combined
from tests.driver import REPO
from tests.integration.test_training_data import speech
from tests.lab.cluster import HYDRA, PAIR, SLURM, Cluster

# Their options, those that have them fail where they did not learn, last the one for where they save; and a report.
TRAININGS = {
    "resnet": (
        "--arch resnet18 --use_syn --image_size 8 --width 8 --num_images 320 --batch_size 8 --num_epochs 2",
        "--target_accuracy 0.6 --model_dir",
        "images_per_s",
    ),
    "tacotron2": (
        "--width 32 --clips 128 --batch_size 8 --frames_per_step 6 --num_epochs 4 --learning_rate 0.01",
        "--target_diagonal 0.6 --checkpoint",
        "mel_loss",
    ),
    "ddp": ("2 1 --samples 512 --learning_rate 0.1 --batch_size 8", "--target_error 0.05 --snapshot", "error"),
    "llm": (
        "--width 32 --layers 1 --context 32 --steps_per_epoch 40 --num_epochs 1 --learning_rate 0.02",
        "--target_loss 3.8 --checkpoint",
        "mfu",
    ),
}
# Each rank of it runs the workloads one after the other, each in a process that need not import PyTorch anew: a job for
# each would be twelve more starts. Each has its own port, so that none finds the store of the one before it, torchrun's
# included.
ONE_BY_ONE = """
import json, os, runpy, sys, torch, torch._dynamo
here, port = os.path.join(sys.path[0], "workloads"), int(os.environ["MASTER_PORT"])
os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
for number, words in enumerate(json.loads(sys.argv[1]), start=1):
    if not os.fork():
        os.environ["MASTER_PORT"] = str(port + number)
        sys.argv = [os.path.join(here, words[0] + ".py"), *words[1:]]
        sys.path.insert(0, here)
        runpy.run_path(sys.argv[0], run_name="__main__")
    if os.wait()[1]:
        sys.exit(words[0] + " failed")
"""


@pytest.mark.parametrize("launcher", ["torchrun", *combined("openmpi", *HYDRA, *SLURM)])
def test_all_learn_on_two_nodes(launching: Cluster, launcher: str, tmp_path: Path) -> None:
    place = f"/tmp/{launching.lab.name}-{launcher}"
    (tmp_path / "program").mkdir()
    shutil.copytree(REPO / "workloads", tmp_path / "program" / "workloads")
    script = tmp_path / "program" / "one_by_one.py"
    script.write_text(ONE_BY_ONE)
    runs = [[name, *f"{words} {ends} {place}/{name}".split()] for name, (words, ends, _reported) in TRAININGS.items()]
    job = launching.train(workload=str(script), workload_args=[json.dumps(runs)], launcher=launcher, **PAIR)
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n2"]
    ends = [line for line in job.stdout(0).splitlines() if line.startswith("torchfleet: loss=")]
    assert len(ends) == len(TRAININGS), job.stdout(0)
    for line, (name, (_words, _learned, reported)) in zip(ends, TRAININGS.items(), strict=True):
        assert f" {reported}=" in line
        launching.lab.root("n1", "test", "-e", f"{place}/{name}")
    launching.lab.root("n2", "test", "!", "-e", place)


def test_ddp_by_its_name(cluster: Cluster) -> None:
    """As people type it: the tests beside this one do so for the other workloads."""
    words, learned, reported = TRAININGS["ddp"]
    job = cluster.train(workload="ddp", workload_args=f"{words} {learned} /tmp/{cluster.lab.name}-ddp.pt", **PAIR)
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n2"] and reported in job.result["metrics"]


def test_nodes_that_share_no_directory_go_on_from_what_rank_0_saved(cluster: Cluster) -> None:
    """A model that FSDP2 shared out between two nodes, taken up by DDP under another launcher."""
    place = f"/tmp/{cluster.lab.name}-llm"
    shape = "--width 16 --layers 2 --context 32"
    words = f"{shape} --steps_per_epoch 20 --learning_rate 0.03 --resume --checkpoint {place}"
    first = f"{words} --num_epochs 1 --parallel fsdp2 --target_loss 4"
    cluster.train(workload="llm", workload_args=first, launcher="torchrun", **PAIR)
    job = cluster.train(workload="llm", workload_args=f"{words} --num_epochs 2", **PAIR)
    assert f"going on from {place}\n" in job.stdout(0) and "mfu" in job.result["metrics"]


def as_cifar(folder: Path) -> None:
    """Write 24 pictures to train with, and as many to test with."""
    records = b"".join(bytes([number % 10]) + bytes([number * 10]) * 3072 for number in range(24))
    for name in ("data_batch_1.bin", "test_batch.bin"):
        (folder / name).write_bytes(records)


def as_ljspeech(folder: Path) -> None:
    """Write 5 clips to train with, and one to test with."""
    (folder / "wavs").mkdir()
    names = [f"LJ001-{number:04}" for number in range(6)]
    (folder / "metadata.csv").write_text("".join(f"{name}|Number 1|number one\n" for name in names))
    for name in names:
        speech(folder, name)


@pytest.mark.parametrize(
    ("workload", "write", "words"),
    [
        ("resnet", as_cifar, "--arch resnet18 --width 4 --batch_size 8 --model_dir"),
        ("tacotron2", as_ljspeech, "--width 8 --frames_per_step 6 --batch_size 2 --checkpoint"),
    ],
)
def test_it_trains_on_the_data_set_of_the_job(
    cluster: Cluster, tmp_path: Path, workload: str, write: Callable[[Path], None], words: str
) -> None:
    """Laid by -e data=, and found by itself: an epoch has the steps of so few samples. Made-up ones would be more."""
    write(tmp_path)
    words += f" /tmp/{cluster.lab.name}-{workload} --num_epochs 1"
    job = cluster.train(workload=workload, workload_args=words, data=str(tmp_path), **PAIR)
    assert "to be copied to n1 n2: " in job.output
    assert re.search(r"(?m)^torchfleet: epoch=1/1 step=2/2 ", job.stdout(0)), job.stdout(0)


def test_a_bench_over_two_nodes(cluster: Cluster) -> None:
    """Of one world without RDMA, which gloo has not: that is said, and nothing is measured in its place."""
    given = {"bench_worlds": "2x1", "bench_sizes": "64K", "bench_rdma": "both", "bench_iterations": 15}
    baseline = str(cluster.root / "bench_baseline.json")
    job = cluster.play("bench.yml", bench_id="bench-of-two", bench_baseline=baseline, nodes="n1,n2", **given)
    assert job.process.returncode == 0, job.output
    with (cluster.runs / "bench-of-two" / "bench.csv").open() as file:
        rows = {row["way"]: row for row in csv.DictReader(file)}
    assert (rows["rdma"]["state"], rows["rdma"]["cause"]) == ("impossible", "gloo has no RDMA: it sends over TCP")
    assert (rows["tcp"]["state"], rows["tcp"]["nodes"]) == ("measured", "n1 n2")
    assert float(rows["tcp"]["line_gbit_per_s"]) > 0 and float(rows["tcp"]["line_share"]) >= 0
    assert "Gbit/s of an all-reduce of 64K: " in job.output
