"""The part of the workloads that needs no PyTorch: mistakes, arguments, ranks, shares, files, the report line."""

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple, NoReturn

PROGRAM = Path(sys.argv[0]).name

# The names under which a launcher tells a process its place; the first set whose rank is present counts.
# Sources: PyTorch, "torchrun (Elastic Launch)", "Environment Variables"; Open MPI 5, 11.1 "Environment variables set
# for MPI applications".
LAUNCHER_NAMES = (
    ("RANK", "LOCAL_RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
)

DATA = "TORCHFLEET_DATA"  # where `train.yml -e data=` has laid a data set on this node (docs/data.md)


class Mistake(Exception):
    """A user's mistake, in one line; `_common.run` prints it and exits with code 2."""


class OwnMistake(Mistake):
    """One that a rank finds alone, such as a damaged file: the others go on, and wait for it in vain."""


class Parser(argparse.ArgumentParser):
    """A parser with `--backend` and `--device`, whose errors take one line (argparse prints the usage as well)."""

    def __init__(self, description: str) -> None:
        super().__init__(prog=PROGRAM, description=description, allow_abbrev=False)
        self.add_argument(
            "--backend",
            help="backend of torch.distributed: gloo, nccl, mpi, ... "
            "(default: $TORCHFLEET_BACKEND, else that of the GPUs that PyTorch sees, else gloo)",
        )
        self.add_argument(
            "--device",
            choices=("auto", "cpu", "cuda", "xpu"),
            default="auto",
            help="auto: the GPU of the local rank if the backend can move its tensors, else the CPU; "
            "AMD's GPUs are cuda too (default: auto)",
        )
        # torch.distributed.launch appends it; the environment has it too.
        self.add_argument("--local_rank", "--local-rank", type=int, help=argparse.SUPPRESS)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


def laid(environment: Mapping[str, str]) -> Path | None:
    """Return the path of the data set that the ranks were given, which stands for `--data`; None if there is none."""
    return Path(environment[DATA]) if environment.get(DATA) else None


def positive(text: str) -> int:
    """Read a whole number above zero from the command line."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


def positive_number(text: str) -> float:
    """Read a number above zero, not infinite, from the command line."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return value


class Place(NamedTuple):
    """The place of this process: its rank in the world, its rank on its node, and how many ranks there are."""

    rank: int
    local_rank: int
    world_size: int


def place(environment: Mapping[str, str]) -> Place:
    """Read the launcher's variables; without a launcher this process is a world of one.

    Raises:
        Mistake: only some of the names are set, or a value is not a number.
    """
    for names in LAUNCHER_NAMES:
        if names[0] in environment:
            return Place(*(_number(environment, name) for name in names))
    return Place(rank=0, local_rank=0, world_size=1)


def _number(environment: Mapping[str, str], name: str) -> int:
    text = environment.get(name, "")
    if not text.isdecimal():
        raise Mistake(f"{name} must be a number in every rank's environment, not {text!r}")
    return int(text)


def share(total: int, parts: int, index: int) -> range:
    """Give the part `index` of `range(total)`: every item in exactly one part, sizes differ by at most one."""
    return range(total * index // parts, total * (index + 1) // parts)


def line(**values: float | str) -> str:
    """Write a report as `torchfleet: name=value name=value ...`, the line that `train.yml` reads.

    A value is a number, `a/b` (progress: a of b) or a bare word.

    Raises:
        ValueError: a name is not `[a-z][a-z0-9_]*`, or a value is empty or has whitespace.
    """
    words = {name: f"{value:.6g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    for name, word in words.items():
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or not re.fullmatch(r"\S+", word):
            raise ValueError(f"cannot report {name}={word!r}")
    return " ".join(["torchfleet:", *(f"{name}={word}" for name, word in words.items())])


class Every:
    """A gate that opens at most once in `seconds`, the first time after that long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._opened = time.monotonic()

    def __call__(self) -> bool:
        """Tell whether the gate is open, and close it if so."""
        now = time.monotonic()
        if now - self._opened < self._seconds:
            return False
        self._opened = now
        return True


def prepare(path: Path) -> None:
    """Make the directory of a file to write, so that a bad path is known before the work and not after it.

    Raises:
        Mistake: `path` cannot become a file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise Mistake(f"cannot write {path}: {problem.strerror}") from problem
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise Mistake(f"cannot write {path}: {'it is a directory' if path.is_dir() else 'its directory is read-only'}")


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """Open a file that takes the name `path` only when whole: a crash leaves the old content or the new, never half."""
    partial = path.with_name(f"{path.name}.partial")
    with partial.open("wb") as stream:
        yield stream
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)
