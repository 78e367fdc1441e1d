"""What `make gpu` runs on which machine, when a step is well, and what is kept of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.gpu import gpu_digits
from tests.gpu.gpu_machine import Machine
from tests.gpu.gpu_steps import WORKLOADS, Step, fault, steps, told
from tests.programs import load

H100 = Machine("/v/python", "nvidia", "cuda", 2, "NVIDIA H100", "2.13.0", "nccl", sklearn=False, mpirun="/o/mpirun")
SCRATCH = Path("/s")


def named(machine: Machine) -> dict[str, Step]:
    return {step.name: step for step in steps(machine, SCRATCH)}


def test_everything_is_run_where_everything_is() -> None:
    made = named(dataclasses.replace(H100, ansible="/a/ansible-playbook"))
    assert [step.name for step in made.values() if step.left_out] == []
    assert {"verify.yml", "train.yml", "mnist, mpi, 2 ranks", "mnist, gloo, 2 ranks", "burn-in, nccl, 2 ranks"} <= {
        *made
    }
    mnist = made["mnist, nccl, 2 ranks"]
    assert mnist.argv[:5] == ("/v/python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
    assert "/s/digits" in mnist.argv and "--data" in mnist.argv
    assert made["all-reduce, nccl, 2 ranks"].env == {"NCCL_DEBUG": "INFO"}
    assert made["--device xpu is refused"].status == 2
    resnet, llm = made["resnet, channels last, nccl, 2 ranks"].argv, made["llm, fsdp2, nccl, 2 ranks"].argv
    assert {"--amp", "--channels_last", "--target_accuracy"} <= {*resnet} and "fsdp2" in llm and "--target_loss" in llm
    assert all(words[words.index("--device") + 1] == "cuda" for words in (resnet, llm))


def test_what_is_not_there_is_left_out_with_a_reason() -> None:
    made = named(dataclasses.replace(H100, mpirun="", sklearn=True))
    left_out = {step.name: step.left_out for step in made.values() if step.left_out}
    assert list(left_out) == ["all-reduce and mnist, mpi, 2 ranks", "verify.yml and train.yml"]
    assert all(left_out.values()) and "--data" not in made["mnist, nccl, 2 ranks"].argv


def test_gpus_of_intel_have_no_gloo() -> None:
    intel = dataclasses.replace(H100, vendor="intel", kind="xpu", backend="xccl")
    made = named(intel)
    assert "mnist, xccl, 2 ranks" in made and not [name for name in made if "gloo" in name]
    assert "--device cuda is refused" in made and made["all-reduce, xccl, 2 ranks"].env == {}


def test_a_step_is_well_if_it_ended_and_said_what_it_must() -> None:
    step = named(H100)["mnist, nccl, 2 ranks"]
    assert fault(step, 0, "device: cuda\nepoch\ntorchfleet: accuracy=0.99\n") == ""
    assert "did not say" in fault(step, 0, "device: cpu (no GPU)\ntorchfleet: accuracy=0.99\n")
    assert fault(step, 1, "device: cuda\ntorchfleet: accuracy=0.99\n") == "it ended with status 1, not 0"
    assert fault(step, None, "") == "it did not end in time"


def test_of_the_log_of_nccl_the_connections_are_kept() -> None:
    log = "host:1:9 [0] NCCL INFO Channel 0{}/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    said = told(log.format(0) + log.format(1) + "host:1:9 [0] NCCL INFO Bootstrap: Using eth0\ndevice: cuda\n")
    assert said == ["NCCL INFO 0[0] -> 1[1] via P2P/CUMEM", "device: cuda"]


def test_digits_can_be_made_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_digits.write(tmp_path, train=20, test=10)
    monkeypatch.syspath_prepend(WORKLOADS)
    read = load(WORKLOADS / "_idx.py")
    train = read.read_set(tmp_path, "train")
    assert train.images.shape == (20, 28, 28) and list(train.labels.data) == [*range(10)] * 2
    assert len({train.images.data[number * 784 : (number + 1) * 784] for number in range(20)}) == 20
