"""Programs that nobody here wrote, and what each has to show: one table for `make compat` and docs/frameworks.md.

`make compat` records in recorded.json what came of each program; `python tests/compat/rows.py` prints the tables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

PLACE = Path(__file__).parent
RECORDED = PLACE / "recorded.json"
BOTH = ("openmpi", "torchrun")
TORCH = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
USE_CPU = "`ACCELERATE_USE_CPU` is set where there are no GPUs"
WHOSE = r"^rank {rank} of {size}, local rank {local}\b"  # what the framework itself takes the rank for
WEIGHTS = r"^(?:loss \S+, )?weights (\S+)$"


@dataclass(frozen=True)
class Framework:
    """A framework. `reads`: which of a rank's variables its own code looks at, under every launcher.

    `told`: what it needs to be told beside them, for people. `folder`: below this one; empty for PyTorch itself, which
    needs no packages.
    """

    title: str
    package: str
    version: str
    folder: str
    reads: tuple[str, ...] = TORCH
    told: str = "nothing"
    env: Mapping[str, str] = field(default_factory=dict)
    launchers: tuple[str, ...] = BOTH
    wheel: bool = True  # whether the index has a wheel; else one is built first

    @property
    def requirements(self) -> Path | None:
        """Return the file with the exact versions of all that it needs."""
        file = PLACE / self.folder / "requirements.txt"
        return file if self.folder and file.exists() else None


FRAMEWORKS: Mapping[str, Framework] = {
    "torch": Framework("PyTorch", "torch", "2.13.0", ""),
    "rpc": Framework(
        "torch.distributed.rpc",
        "torch",
        "2.13.0",
        "",
        reads=("MASTER_ADDR", "MASTER_PORT"),
        told="`rank` and `world_size` in the call of `init_rpc`; its NIC is chosen by `TP_SOCKET_IFNAME`, which is set",
    ),
    "accelerate": Framework(
        "Hugging Face Accelerate",
        "accelerate",
        "1.15.0",
        "accelerate",
        reads=(*TORCH, "LOCAL_WORLD_SIZE"),
        told="on CPUs an `Accelerator()` before any `PartialState()`; " + USE_CPU,
    ),
    "transformers": Framework(
        "transformers",
        "transformers",
        "5.23.0",
        "transformers",
        reads=(*TORCH, "LOCAL_WORLD_SIZE"),
        told=f"nothing; {USE_CPU}",
    ),
    "lightning": Framework(
        "Lightning",
        "lightning",
        "2.6.6",
        "lightning",
        reads=(*TORCH, "GROUP_RANK", "TORCHELASTIC_RUN_ID"),
        told="`num_nodes` and `devices` of the `Trainer`: `GROUP_WORLD_SIZE` and `LOCAL_WORLD_SIZE`",
    ),
    "ignite": Framework(
        "Ignite", "pytorch-ignite", "0.5.5", "ignite", told="`idist.Parallel` without `nproc_per_node`: ranks are there"
    ),
    "deepspeed": Framework(
        "DeepSpeed",
        "deepspeed",
        "0.19.8",
        "deepspeed",
        told="[a wheel](#deepspeed); on CPUs `DS_ACCELERATOR=cpu`, `g++` and Python's headers",
        env={"DS_ACCELERATOR": "cpu"},
        wheel=False,
    ),
    "mpi4py": Framework(
        "mpi4py",
        "mpi4py",
        "4.1.2",
        "mpi4py",
        reads=(),
        told="an MPI as launcher: under `torchrun` each rank is an MPI world of its own",
        launchers=("openmpi", "mpich"),
    ),
}


@dataclass(frozen=True)
class Row:
    """A program of a framework.

    `start`: what `train.yml` is told of it; `{here}` is this directory, `{own}` that of the tests of our backends,
    `{source}` the unpacked source package of the framework, and `{there}` a directory of the node that is not there
    yet. `shows`: patterns that the output of each rank has;
    `{rank}`, `{size}` and `{local}` are its place. `first`: patterns of rank 0's output alone. `same`: a pattern whose
    group is one value on all ranks. `stream`: where all that is. `why_one`: why it runs on one node, if so.
    """

    name: str
    framework: str
    title: str
    start: Mapping[str, str]
    shows: tuple[str, ...] = (WHOSE,)
    first: tuple[str, ...] = ()
    same: str = ""
    stream: str = "stdout"
    why_one: str = ""


ROWS = (
    Row(
        "accelerate-script",
        "accelerate",
        "what `accelerate test` runs",
        {"module": "accelerate.test_utils.scripts.test_script"},
        shows=(r"^Num processes: {size}$", r"^Process index: {rank}$", r"^Local process index: {local}$"),
        first=(r"\*\*Training integration test\*\*",),
        why_one="all ranks write into one file",
    ),
    Row(
        "accelerate-sync",
        "accelerate",
        "its test of gradient accumulation",
        {"module": "accelerate.test_utils.scripts.test_sync"},
        shows=(),
        first=(r"\*\*Test Distributed `no_sync` context manager\*\*",),
    ),
    Row(
        "accelerate-ops",
        "accelerate",
        "its test of collective operations, after an `Accelerator()`",
        {"workload": "{here}/accelerate/ops.py"},
        first=(r"^Num processes: {size}$", "^testing op_checker$"),
    ),
    Row(
        "transformers-trainer",
        "transformers",
        "the `Trainer` on a small BERT of random weights",
        {"workload": "{here}/transformers/trainer.py"},
        same=WEIGHTS,
    ),
    Row(
        "lightning-ddp",
        "lightning",
        'its `BoringModel` with `strategy="ddp"`',
        {"workload": "{here}/lightning/boring.py"},
        same=WEIGHTS,
    ),
    Row(
        "ignite-parallel",
        "ignite",
        "`idist.Parallel` with `auto_model` and `auto_optim`",
        {"workload": "{here}/ignite/parallel.py"},
        same=WEIGHTS,
    ),
    Row(
        "fsdp2",
        "torch",
        "FSDP2, and the whole state of the model to rank 0 and back",
        {"workload": "{here}/fsdp2_dcp/shards.py"},
        shows=(WHOSE, "^70 of 280 weights here; taken up unchanged: True$"),
    ),
    Row(
        "dcp",
        "torch",
        "FSDP2, its shards written and read by `torch.distributed.checkpoint`",
        {"workload": "{here}/fsdp2_dcp/shards.py", "workload_args": "{there}"},
        shows=(WHOSE, "^140 of 280 weights here; taken up unchanged: True$"),
        why_one="it needs a directory that all ranks share",
    ),
    Row(
        "torch-own",
        "torch",
        "its own tests of a backend, `DistributedTest`, on gloo",
        {
            "workload": "{own}/pytorch_own.py",
            "workload_args": "{there} gloo",
            "requirements": "{here}/torch_own/requirements.txt",
        },
        shows=(r"^ok 87, skipped 191, wrong 0$",),
        why_one="its ranks meet in files",
    ),
    Row(
        "rpc",
        "rpc",
        "calls from each rank to each other",
        {"workload": "{here}/rpc/calls.py"},
        shows=(WHOSE, r"^\[{rank}, {rank}, {rank}\] from worker0 on n1$", r" from worker3 on n2$"),
    ),
    Row(
        "mpi4py-hello",
        "mpi4py",
        "`python -m mpi4py.bench helloworld`",
        {"module": "mpi4py.bench", "workload_args": "helloworld"},
        shows=(r"^Hello, World! I am process {rank} of {size} on n\d\.$",),
    ),
    Row(
        "mpi4py-ring",
        "mpi4py",
        "`python -m mpi4py.bench ringtest`",
        {"module": "mpi4py.bench", "workload_args": "ringtest"},
        shows=(),
        first=(r"time for 1 loops = \S+ seconds \({size} processes, 1 bytes\)",),
    ),
    Row(
        "mpi4py-own",
        "mpi4py",
        "its own tests, of its source package, but [a few](#what-to-know)",
        {"workload": "{source}/test/main.py", "workload_args": "-e test_io -e spawn -e dynproc -x testGetFortranInfo"},
        shows=(r"^Ran \d\d\d\d tests in ", r"^OK\b"),
        stream="stderr",
        why_one="two ranks, as its tests of windows share memory",
    ),
    Row(
        "deepspeed-zero1",
        "deepspeed",
        "ZeRO 1",
        {"workload": "{here}/deepspeed/zero.py", "workload_args": "1"},
        same=WEIGHTS,
    ),
    Row(
        "deepspeed-zero3",
        "deepspeed",
        "ZeRO 3",
        {"workload": "{here}/deepspeed/zero.py", "workload_args": "3"},
        same=WEIGHTS,
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What came of a program under a launcher when `make compat` ran it last.

    `day`: as 2026-11-27. `version`: of the launcher. `seconds`: of the job, if it came to its end.
    """

    passed: bool
    day: str
    version: str = ""
    seconds: float = 0.0


def recorded() -> dict[str, dict[str, Outcome]]:
    """Return what came of each program that was tried: by the row's name, by the launcher."""
    told = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    return {name: {launcher: Outcome(**each) for launcher, each in tried.items()} for name, tried in told.items()}


def record(row: Row, launcher: str, outcome: Outcome) -> None:
    """Record what came of a program, for the table of docs/frameworks.md."""
    known = recorded()
    known.setdefault(row.name, {})[launcher] = outcome
    order = {each.name: known[each.name] for each in ROWS if each.name in known}
    told = {name: {word: vars(each) for word, each in sorted(tried.items())} for name, tried in order.items()}
    RECORDED.write_text(json.dumps(told, indent=2) + "\n")


def table_of_frameworks() -> list[str]:
    """Return the lines of the table of docs/frameworks.md that has a line for each framework."""
    lines = ["| framework | package | what it has to be told | what it reads |", "|---|---|---|---|"]
    for row in FRAMEWORKS.values():
        reads = ", ".join(f"`{name}`" for name in row.reads) or "nothing: MPI itself knows"
        lines.append(f"| {row.title} | `{row.package}=={row.version}` | {row.told} | {reads} |")
    return lines


def table_of_programs() -> list[str]:
    """Return the lines of the table of docs/frameworks.md that has a line for each program."""
    known = recorded()
    lines = ["| program | launchers | passed | nodes |", "|---|---|---|---|"]
    for row in ROWS:
        tried = known.get(row.name, {})
        launchers = {name: tried.get(name) for name in FRAMEWORKS[row.framework].launchers}
        named = ", ".join(f"`{name}` {each.version if each else ''}".rstrip() for name, each in launchers.items())
        nodes = f"one: {row.why_one}" if row.why_one else "two"
        title = f"{FRAMEWORKS[row.framework].title}: {row.title}"
        lines.append(f"| {title} | {named} | {passed_on(launchers)} | {nodes} |")
    return lines


def passed_on(launchers: Mapping[str, Outcome | None]) -> str:
    """Return the day on which a program had passed under all launchers, or under which it has not."""
    days = [each.day for each in launchers.values() if each and each.passed]
    if len(days) == len(launchers):
        return max(days)
    return "not under " + ", ".join(f"`{name}`" for name, each in launchers.items() if not (each and each.passed))


if __name__ == "__main__":
    print("\n".join([*table_of_programs(), "", *table_of_frameworks()]))
