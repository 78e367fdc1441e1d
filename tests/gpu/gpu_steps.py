"""What `make gpu` runs: a command each, what it must end with, and what it must have said."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.gpu.gpu_machine import REPO, Machine

WORKLOADS = REPO / "workloads"
PROGRAMS = REPO / "tests" / "gpu"
CONNECTIONS = r"NCCL INFO .*(NCCL version|RCCL version|via (P2P|SHM|NET)|Using network)"


@dataclasses.dataclass(frozen=True)
class Step:
    """A command. `left_out`: why it is not run, if it is not; `says`: what its output must have, as a pattern."""

    name: str
    argv: tuple[str, ...]
    says: str = ""
    status: int = 0
    env: Mapping[str, str] = dataclasses.field(default_factory=dict)
    left_out: str = ""


def ranks(machine: Machine, count: int, program: str, *words: object, below: Path = WORKLOADS) -> tuple[str, ...]:
    """Return how torchrun starts a workload, or another program of that directory."""
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count))
    return (machine.python, *torchrun, str(below / f"{program}.py"), *map(str, words))


def with_mpi(machine: Machine, workload: str, *words: object) -> tuple[str, ...]:
    """Return how mpirun starts a workload on two ranks, which share a GPU where there is but one."""
    options = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--prtemca", "plm_ssh_agent", "false")
    script = str(WORKLOADS / f"{workload}.py")
    return (machine.mpirun, *options, "-n", "2", machine.python, script, "--backend", "mpi", *map(str, words))


def steps(machine: Machine, scratch: Path) -> Iterator[Step]:
    """Yield the steps. `scratch`: a directory, in which `digits` may be MNIST's files."""
    device = f"device: {machine.kind}\\b"
    data = () if machine.sklearn else ("--data", scratch / "digits")
    train = ("--epochs", 3, "--target-accuracy", 0.8, *data)
    own, count = machine.backend, machine.count
    bench = ("--min-bytes", "1K", "--max-bytes", "256M", "--factor", 16, "--iterations", 20)
    log = {"NCCL_DEBUG": "INFO"} if own == "nccl" else {}
    yield Step(
        f"all-reduce, {own}, {count} ranks",
        ranks(machine, count, "all_reduce_bench", "--backend", own, *bench),
        device,
        env=log,
    )
    kept = scratch / "mnist.pt"
    yield Step(
        f"mnist, {own}, {count} ranks",
        ranks(machine, count, "mnist", "--backend", own, "--save-model", kept, *train),
        f"{device}[\\s\\S]*accuracy=",
    )
    yield from trainings(machine, scratch)
    yield Step(
        f"burn-in, {own}, {count} ranks",
        ranks(machine, count, "burn_in", "--backend", own, "--seconds", 5),
        "torchfleet: tflops=",
    )
    if machine.kind == "cuda":  # gloo takes no tensors of xpu
        shared = ("--backend", "gloo", "--device", machine.kind)
        yield Step("mnist, gloo, 2 ranks", ranks(machine, 2, "mnist", *shared, *train), device)
        yield Step("messages, gloo, 2 ranks", ranks(machine, 2, "message_passing", *shared), device)
    yield from with_our_backends(machine, train)
    yield Step(
        f"--device {machine.other_kind} is refused",
        (machine.python, str(WORKLOADS / "pi.py"), "--backend", "gloo", "--device", machine.other_kind),
        f"has no {machine.other_kind} device|carries tensors of",
        status=2,
    )
    yield from with_ansible(machine, scratch)


def with_our_backends(machine: Machine, train: Sequence[object]) -> Iterator[Step]:
    """Yield what our backends do with GPUs, and what a look at a hung job asks NCCL. `train`: arguments of mnist."""
    own, count, device = machine.backend, machine.count, f"device: {machine.kind}\\b"
    if own == "nccl" and machine.vendor == "nvidia":  # RCCL has no such service
        status = ranks(machine, count, "gpu_ras", below=PROGRAMS)
        yield Step(f"what NCCL tells of itself, {count} ranks", status, "NCCL version")
    if machine.shm and machine.kind == "cuda":
        for pair, many in ((f"cpu:shm,cuda:{own}", count), ("cpu:shm,cuda:gloo", 2)):
            sums = ranks(machine, many, "gpu_pair", pair, below=PROGRAMS)
            yield Step(f"{pair}, {many} ranks", sums, "right on cpu and cuda")
    if not machine.mpirun:
        absent = "there is no Open MPI with our backend mpi below ~/.torchfleet"
        yield Step("all-reduce and mnist, mpi, 2 ranks", (), left_out=absent)
        return
    on_gpu = ("--device", machine.kind)
    small = (*on_gpu, "--min-bytes", "1K", "--max-bytes", "16M", "--iterations", 20)
    yield Step("all-reduce, mpi, 2 ranks", with_mpi(machine, "all_reduce_bench", *small), device)
    yield Step("mnist, mpi, 2 ranks", with_mpi(machine, "mnist", *on_gpu, *train), device)


def trainings(machine: Machine, scratch: Path) -> Iterator[Step]:
    """Yield trainings on all GPUs that fail where they do not learn: in 16 bits, and with a model that ranks share."""
    device, own, count = f"device: {machine.kind}\\b", machine.backend, machine.count
    named = ("--backend", own, "--device", machine.kind, "--amp")
    shape = ("--arch", "resnet18", "--width", 16, "--use_syn", "--image_size", 32, "--num_images", 160 * count)
    plan = ("--batch_size", 8, "--num_epochs", 3, "--target_accuracy", 0.5, "--model_dir", scratch / "resnet")
    yield Step(
        f"resnet, channels last, {own}, {count} ranks",
        ranks(machine, count, "resnet", *named, "--channels_last", *shape, *plan),
        f"{device}[\\s\\S]*images_per_s=",
    )
    small = ("--width", 64, "--context", 64, "--learning_rate", 0.01, "--num_epochs", 2, "--target_loss", 4)
    yield Step(
        f"llm, fsdp2, {own}, {count} ranks",
        ranks(machine, count, "llm", *named, "--parallel", "fsdp2", *small, "--checkpoint", scratch / "llm"),
        f"{device}[\\s\\S]*mfu=",
    )


def with_ansible(machine: Machine, scratch: Path) -> Iterator[Step]:
    """Yield what goes through Ansible, where it is there and setup.yml ran."""
    if not machine.ansible:
        yield Step("verify.yml and train.yml", (), left_out="there is no Ansible here, or setup.yml did not run")
        return
    given = {"runs_dir": str(scratch / "runs"), "torchfleet_python": machine.python}
    yield Step("verify.yml", (machine.ansible, "verify.yml", "-e", json.dumps(given)), "verify of 1 node")
    job = {**given, "workload": "mnist", "launcher": "torchrun"}
    if not machine.sklearn:
        job["workload_args"] = f"--data {scratch / 'digits'}"
    yield Step("train.yml", (machine.ansible, "train.yml", "-e", json.dumps(job)), f", {machine.backend}, torchrun")


def fault(step: Step, status: int | None, output: str) -> str:
    """Return what is wrong with how a step ended; empty if nothing is. `status` None: it ran out of time."""
    if status is None:
        return "it did not end in time"
    if status != step.status:
        return f"it ended with status {status}, not {step.status}"
    return "" if re.search(step.says, output) else f"it did not say {step.says!r}"


def told(output: str) -> list[str]:
    """Return the lines of a step that are kept: of NCCL's log only which connections there are, each once."""
    kept: dict[str, None] = {}
    for line in output.splitlines():
        if not re.search(r"\bNCCL INFO\b", line):
            kept[line] = None
        elif re.search(CONNECTIONS, line):
            kept[re.sub(r"^.*NCCL INFO (?:Channel \S+ ?: )?", "NCCL INFO ", line)] = None
    return list(kept)
