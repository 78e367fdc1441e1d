"""The workloads that train, on two nodes: each launcher starts one of them."""

from __future__ import annotations

import pytest

from tests.lab.cluster import LAUNCHERS, Cluster

RESNET = "--arch resnet18 --use_syn --image_size 8 --width 4 --num_images 32 --num_epochs 1 --model_dir"
TACOTRON2 = "--width 16 --clips 34 --frames_per_step 6 --num_epochs 1 --checkpoint"
# The name, its options and last the one for where it saves, and what it reports beside its loss.
TRAININGS = [
    ("resnet", RESNET, "images_per_s"),
    ("tacotron2", TACOTRON2, "diagonal"),
    ("ddp", "1 1 --snapshot", "error"),
]
PAIR = {"nodes": "n1,n2", "ranks_per_node": 1}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_it_trains_on_two_nodes(launching: Cluster, launcher: str) -> None:
    workload, words, value = TRAININGS[LAUNCHERS.index(launcher) % len(TRAININGS)]
    place = f"/tmp/{launching.lab.name}-{workload}-{launcher}"
    job = launching.train(workload=workload, workload_args=f"{words} {place}", launcher=launcher, **PAIR)
    assert [row["host"] for row in job.result["ranks"]] == ["n1", "n2"]
    assert value in job.result["metrics"] and job.result["metrics"]["loss"] > 0
    launching.lab.root("n1", "test", "-e", place)
    launching.lab.root("n2", "test", "!", "-e", place)


def test_nodes_that_share_no_directory_go_on_from_what_rank_0_saved(cluster: Cluster) -> None:
    """A model that FSDP2 shared out between two nodes, taken up by DDP under another launcher."""
    place = f"/tmp/{cluster.lab.name}-llm"
    words = f"--width 16 --layers 2 --steps_per_epoch 4 --checkpoint {place} --resume --num_epochs"
    cluster.train(workload="llm", workload_args=f"{words} 1 --parallel fsdp2", launcher="torchrun", **PAIR)
    job = cluster.train(workload="llm", workload_args=f"{words} 2", **PAIR)
    assert f"going on from {place}\n" in job.stdout(0) and "mfu" in job.result["metrics"]
