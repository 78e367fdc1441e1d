"""The workloads that train: each learns, saves and goes on bit by bit, and never loads a torn checkpoint."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.checkpoints import newest
from tests.driver import REPO, SCRIPTS
from tests.gpu import gpu_digits
from tests.integration.fleet import Fleet
from tests.integration.test_workloads import WORKLOADS, mistaken, start

AGAIN = 75
LAST = "torchfleet: (?!epoch=)"  # how the last report of a run begins


class Training(NamedTuple):
    """A training so small that it takes seconds: its options, and those that have it fail where it did not learn."""

    words: str
    learned: str
    file: str  # below the directory of checkpoints
    steps: int  # the notice comes in this one, amid the second epoch
    falls: str  # what it makes small, by the name that it reports


TRAININGS = {
    "tacotron2": Training(
        "--width 32 --clips 128 --batch_size 8 --frames_per_step 6 --num_epochs 4 --learning_rate 0.005",
        "--target_diagonal 0.8",
        "tacotron2.pt",
        steps=20,
        falls="mel_loss",
    ),
    "llm": Training(
        "--data LICENSE --width 32 --layers 1 --context 32 --steps_per_epoch 40 --num_epochs 2 --learning_rate 0.01",
        "--target_loss 3.5",
        "llm.dcp",
        steps=60,
        falls="loss",
    ),
    "ddp": Training(
        "6 2 --samples 512 --learning_rate 0.1", "--target_error 0.02", "snapshot.pt", steps=20, falls="error"
    ),
    "resnet": Training(
        "--arch resnet18 --use_syn --image_size 8 --width 8 --num_images 320 --batch_size 16 --num_epochs 3",
        "--target_accuracy 0.9",
        "saved_models/resnet_distributed.pth",
        steps=25,
        falls="loss",
    ),
}

# Trainings of three steps an epoch: their words, those that change what is computed, and what they say.
SAVING = {
    "resnet": (
        "--arch resnet18 --use_syn --image_size 8 --width 4 --num_images 24 --batch_size 8",
        "--amp --channels_last",
        rf"(?m)^{LAST}.*images_per_s=[1-9]\S* step_ms=[1-9]",
    ),
    "llm": (
        "--width 16 --layers 1 --heads 2 --context 16 --steps_per_epoch 3",
        "--amp --peak_tflops 0.5",
        r"peak 0\.5 TFLOP/s of a rank",
    ),
    "tacotron2": ("--width 8 --clips 24 --batch_size 8 --frames_per_step 6", "--guide 0.5", "diagonal="),
}

# How each is started by train.yml: the launcher, its options, where it saves, and a value that it reports.
STARTED = {
    "resnet": (
        "openmpi",
        "--arch resnet50 --use_syn --image_size 8 --width 4 --num_images 32",
        "--model_dir",
        "accuracy",
    ),
    "llm": ("openmpi", "--parallel fsdp2 --width 16 --layers 2 --steps_per_epoch 4", "--checkpoint", "mfu"),
    "tacotron2": ("torchrun", "--width 16 --clips 34 --frames_per_step 6", "--checkpoint", "diagonal"),
    "ddp": ("torchrun", "1 1", "--snapshot", "error"),
}


def in_turn(*runs: dict[str, Any], same: tuple[Path, ...] = ()) -> tuple[list[list[int]], str]:
    """Run workloads one after the other; return the exit statuses of their ranks, and what they printed.

    The checkpoints `same` must have the same values then, bit by bit, each two of them.
    """
    done = start(SCRIPTS / "in_turn.py", json.dumps(runs), *same)
    assert done.returncode == 0, done.stdout + done.stderr
    statuses, digests = json.loads(done.stdout.splitlines()[-1])
    assert len(digests) == len(same) and digests[::2] == digests[1::2], done.stdout + done.stderr
    return statuses, done.stdout + done.stderr


def run(workload: str, words: str, place: Path, notice: int = 0, ranks: int = 1, **environment: str) -> dict[str, Any]:
    environment["TORCHFLEET_CHECKPOINT_DIR"] = str(place)
    argv = [str(REPO / word) if word == "LICENSE" else word for word in words.split()]
    argv.insert(0, str(WORKLOADS / f"{workload}.py"))
    return {"argv": argv, "environment": environment, "ranks": ranks, "notice": notice}


@pytest.mark.parametrize("workload", TRAININGS)
def test_it_learns_and_goes_on_bit_by_bit(tmp_path: Path, workload: str) -> None:
    """It is told amid an epoch that its time is over, and is run again: the same file as of one that was left alone."""
    training = TRAININGS[workload]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    statuses, told = in_turn(
        run(workload, f"{training.words} {training.learned}", whole),
        run(workload, training.words, parts, notice=training.steps),
        run(workload, f"{training.words} {training.learned}", parts, TORCHFLEET_RESTART_COUNT="1"),
        same=(whole / training.file, parts / training.file),
    )
    assert statuses == [[0], [AGAIN], [0]], told
    assert re.search(r"^notice: saved after step \d+/\d+ of epoch 2$", told, re.MULTILINE), told
    assert f"going on from {parts / training.file}\n" in told
    (parts / training.file).with_suffix(".flat").unlink(missing_ok=True)  # which in_turn.py makes of a directory
    assert newest(str(parts)) == str(parts / training.file) and " checkpoint_seconds=" in told
    first, reached = fallen(told, training.falls)
    assert len(reached) == 2 and max(reached) < 0.8 * first, told


def fallen(told: str, name: str) -> tuple[float, list[float]]:
    """Return a value at the end of the first epoch, and at the end of each run."""
    first = re.search(rf"^torchfleet: epoch=1/\d+ step=(\d+)/\1 .*\b{name}=(\S+)", told, re.MULTILINE)
    assert first, told
    return float(first[2]), [float(last) for last in re.findall(rf"^{LAST}.*\b{name}=(\S+)", told, re.MULTILINE)]


def test_speech_is_learned_without_a_guide_too(tmp_path: Path) -> None:
    """As in the paper. That attention becomes diagonal takes longer: that is not asked for here."""
    words = TRAININGS["tacotron2"].words.replace("--num_epochs 4", "--num_epochs 2 --guide 0")
    statuses, told = in_turn(run("tacotron2", words, tmp_path))
    first, (reached,) = fallen(told, "mel_loss")
    assert statuses == [[0]] and reached < 0.5 * first, told


def test_it_saves_after_every_so_many_steps(tmp_path: Path) -> None:
    """Amid an epoch of three: who has that checkpoint alone comes to the same, bit by bit."""
    runs, same = [], []
    for name, (words, option, _says) in SAVING.items():
        whole, parts, file = tmp_path / name / "whole", tmp_path / name / "parts", TRAININGS[name].file
        (parts / file).parent.mkdir(parents=True)
        (parts / f"{file}.previous").symlink_to(whole / f"{file}.previous")  # which the first run will have written
        once = f"{words} --num_epochs 1"
        runs += [
            run(name, f"{once} {option} --save_steps 2", whole),
            run(name, f"{once} {option} --resume", parts),
            run(name, once, tmp_path / name / "without"),
        ]
        same += [whole / file, parts / file]
    statuses, told = in_turn(*runs, same=tuple(same))
    assert statuses == [[0]] * len(runs) and told.count("going on from ") == len(SAVING), told
    assert all(re.search(says, told) for _words, _option, says in SAVING.values()), told
    losses = re.findall(rf"^{LAST}loss=(\S+)", told, re.MULTILINE)
    for whole_, parts_, without in zip(losses[::3], losses[1::3], losses[2::3], strict=True):
        assert whole_ == parts_ != without, told


def test_a_notice_to_one_rank_ends_all_after_the_same_step(tmp_path: Path) -> None:
    """And what two ranks add up goes on bit by bit too, the losses of each included."""
    words, whole, parts = "3 1 --samples 256 --batch_size 16", tmp_path / "whole", tmp_path / "parts"
    statuses, told = in_turn(
        run("ddp", words, whole, ranks=2),
        run("ddp", words, parts, ranks=2, notice=11),
        run("ddp", words, parts, ranks=2, TORCHFLEET_RESTART_COUNT="1"),
        same=(whole / "snapshot.pt", parts / "snapshot.pt"),
    )
    assert statuses == [[0, 0], [AGAIN, AGAIN], [0, 0]], told
    assert "notice: saved after step 3/8 of epoch 2" in told


def test_a_torn_checkpoint_is_never_loaded(tmp_path: Path) -> None:
    """The one before is; and where there is none, that is said, and nothing is overwritten."""
    path = tmp_path / "snapshot.pt"
    first, longer = (run("ddp", f"{epochs} 1 --samples 64", tmp_path) for epochs in (1, 2))
    assert in_turn(first, longer)[0] == [[0], [0]]
    reached = path.read_bytes()
    path.write_bytes(reached[:-100])
    assert newest(str(tmp_path)) == f"{path}.previous"
    statuses, told = in_turn(longer)
    assert statuses == [[0]] and path.read_bytes() == reached
    assert f"{path} is damaged or not a checkpoint: {path}.previous is loaded" in told
    path.write_bytes(b"torn")
    (tmp_path / "snapshot.pt.previous").unlink()
    mistaken(start(WORKLOADS / "ddp.py", 1, 1, "--snapshot", path), "snapshot.pt is damaged or not a checkpoint")
    assert path.read_bytes() == b"torn"


def test_a_checkpoint_of_another_network_is_refused(tmp_path: Path) -> None:
    small = "--use_syn --image_size 8 --width 4 --num_images 8 --num_epochs 1"
    statuses, told = in_turn(
        run("resnet", f"{small} --arch resnet18", tmp_path),
        run("resnet", f"{small} --arch resnet50 --resume", tmp_path),
    )
    assert statuses == [[0], [2]] and "was made with arch resnet18, not resnet50: give that, or another path" in told


def test_a_model_that_is_sharded_is_the_one_that_is_not(tmp_path: Path) -> None:
    """FSDP2 takes up what DDP saved, on as many ranks and on others, and both come to the same."""
    words = "--layers 2 --heads 2 --width 16 --context 16 --steps_per_epoch 5 --accumulate 2"
    for name in ("ddp", "fsdp2"):
        first = run("llm", f"{words} --num_epochs 1", tmp_path / name)
        second = run("llm", f"{words} --num_epochs 2 --resume --parallel {name}", tmp_path / name, ranks=2)
        third = run("llm", f"{words} --num_epochs 3 --resume --parallel {name}", tmp_path / name)
        statuses, told = in_turn(first, second, third)
        assert statuses == [[0], [0, 0], [0]], told
        losses = re.findall(r"^torchfleet: loss=(\S+) validation_loss=(\S+) .*mfu=0\.", told, re.MULTILINE)
        if name == "ddp":
            expected = losses
    assert len(losses) == 3
    for found, wanted in zip(losses, expected, strict=True):
        assert [float(value) for value in found] == pytest.approx([float(value) for value in wanted], rel=1e-4)


def test_directories_that_ranks_do_not_share(tmp_path: Path) -> None:
    """Rank 0 alone writes and reads, as on nodes without common storage; it comes to the same, bit by bit."""
    words = "--layers 1 --heads 2 --width 16 --context 16 --steps_per_epoch 6 --num_epochs 1 --parallel fsdp2"
    runs = []
    for number, notice in enumerate((0, 4, 0)):
        place = tmp_path / ("parts" if number else "whole")
        one = run("llm", words, place, notice, ranks=2, TORCHFLEET_RESTART_COUNT=str(int(number == 2)))
        runs.append({**one, "own": {"TORCHFLEET_CHECKPOINT_DIR": str(place / "of-rank-")}})
    whole, parts = (tmp_path / name / "of-rank-0" / "llm.dcp" for name in ("whole", "parts"))
    statuses, told = in_turn(*runs, same=(whole, parts))
    assert statuses == [[0, 0], [AGAIN, AGAIN], [0, 0]], told
    assert not (tmp_path / "parts" / "of-rank-1" / "llm.dcp").exists()


def test_a_torn_directory_is_never_loaded(tmp_path: Path) -> None:
    words = "--layers 1 --heads 1 --width 8 --context 8 --steps_per_epoch 1 --num_epochs"
    assert in_turn(run("llm", f"{words} 2", tmp_path))[0] == [[0]]
    torn = tmp_path / "llm.dcp" / "__0_0.distcp"
    torn.write_bytes(torn.read_bytes()[:-1])
    statuses, told = in_turn(run("llm", f"{words} 3 --resume", tmp_path))
    assert statuses == [[0]] and f"{tmp_path}/llm.dcp is damaged: not loaded" in told
    assert f"going on from {tmp_path}/llm.dcp.previous\n" in told and "epoch=2/3" in told


def test_mnist_ends_after_the_epoch_of_the_notice_and_saves_its_model(tmp_path: Path) -> None:
    words, whole, parts = "--epochs 2 --target-accuracy 0 --save-model", tmp_path / "whole", tmp_path / "parts"
    gpu_digits.write(tmp_path / "torchvision" / "FashionMNIST" / "raw", train=160, test=40)
    statuses, told = in_turn(
        run("mnist", words, whole),
        run("mnist", words, parts, notice=5),
        run("mnist", words, parts, TORCHFLEET_RESTART_COUNT="1"),
        run("mnist", f"--epochs 1 --dataset FashionMNIST --data {tmp_path}/torchvision", tmp_path / "other"),
        run("mnist", "--dataset FashionMNIST", tmp_path / "other"),
        same=(whole / "mnist.pt", parts / "mnist.pt"),
    )
    assert statuses == [[0], [AGAIN], [0], [1], [2]], told
    assert "step=3/3" in told and "is below --target-accuracy 0.85\n" in told
    assert "mnist.py: --dataset FashionMNIST needs --data\n" in told
    assert {path.name for path in whole.iterdir()} == {"mnist.pt", "mnist.pt.previous", "mnist_cnn.pt"}
    assert (whole / "mnist_cnn.pt").read_bytes() == (parts / "mnist_cnn.pt").read_bytes()


@pytest.mark.parametrize("workload", STARTED)
def test_train_yml_starts_it(fleet: Fleet, workload: str) -> None:
    launcher, words, where, value = STARTED[workload]
    words += " --num_epochs 1" if workload != "ddp" else ""
    played = fleet.play(workload=workload, launcher=launcher, workload_args=f"{words} {where} {fleet.root}/saved/x")
    assert played.rc == 0 and played.result["state"] == "succeeded", played.stdout
    assert [row["state"] for row in played.result["ranks"]] == ["succeeded", "succeeded"]
    assert value in played.result["metrics"] and list((fleet.root / "saved").rglob("*"))


def test_the_literal_command_of_the_seed(tmp_path: Path) -> None:
    """That of the ResNet-50 example for one node, but for the backend and for sizes that CPUs can do."""
    words = "--use_syn --image_size 8 --width 4 --num_images 8 --num_epochs 1"
    launch = "-m torch.distributed.launch --nproc_per_node=2 --nnodes=1 --node_rank=0 --master_addr=localhost"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = [
        f"--master_port={port}",
        WORKLOADS / "resnet.py",
        "--backend=gloo",
        *words.split(),
        "--model_dir",
        tmp_path,
    ]
    done = start(*launch.split(), *place)
    assert done.returncode == 0 and (tmp_path / "resnet_distributed.pth").exists(), done.stdout + done.stderr
