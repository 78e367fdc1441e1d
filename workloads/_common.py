"""How a workload joins the other ranks, reports, and leaves them.

    def main() -> int:
        rank = join()
        ...
        report(loss=0.1)
        return 0

    run(main)

Needs PyTorch 2.6 or newer.
"""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist
from _basics import PROGRAM, Mistake, OwnMistake, Place, line, place
from _device import ACCELERATORS, Seat, seat, told

T = TypeVar("T")


class Rank(NamedTuple):
    """This process among all: ranks count from 0, `device` computes, `wire` has what it sends."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device
    wire: torch.device


def join(backend: str | None = None, device: str = "auto", staged: bool = False, shared: bool = True) -> Rank:
    """Start the default process group under whatever launcher started this process, or alone without one.

    The backend is the argument, else `$TORCHFLEET_BACKEND`, else that of the GPUs that PyTorch sees, else gloo. Rank 0
    prints a line with the devices of all ranks. `device`, `staged` and `shared` are those of `_device.seat`.

    Raises:
        Mistake: PyTorch has no such backend, the rank has no such device, or variables of the launcher are missing.
    """
    backend = (backend or os.environ.get("TORCHFLEET_BACKEND") or _default(device)).lower()
    here = place(os.environ)
    _check(backend)
    mine = seat(device, backend, here.local_rank, staged, shared)
    for each in (mine.device, mine.wire):
        torch.get_device_module(each).set_device(each)
    dist.init_process_group(
        backend, **_meeting(backend, here), device_id=mine.wire if backend in ACCELERATORS else None
    )
    _tell(mine)
    return Rank(dist.get_rank(), here.local_rank, dist.get_world_size(), mine.device, mine.wire)


def _default(device: str) -> str:
    for backend, kind in ACCELERATORS.items():
        there = torch.get_device_module(kind).is_available() and dist.is_backend_available(backend)
        if there and device in ("auto", kind):
            return backend
    return "gloo"


def _check(backend: str) -> None:
    # torchfleet_backends shows mpi to frameworks only in jobs that use it, to init_process_group() always.
    there = dist.distributed_c10d.is_mpi_available() if backend == "mpi" else dist.is_backend_available(backend)
    if not there:
        raise Mistake(f"this PyTorch ({torch.__version__}) has no backend {backend!r}")


def _tell(mine: Seat) -> None:
    """Print the devices of all ranks, on rank 0: a rank on a CPU is seen also where it is of another node."""
    seats: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(seats, (mine.device.type, mine.why))
    if dist.get_rank() == 0:
        say(told(seats))


def _meeting(backend: str, here: Place) -> dict[str, Any]:
    """Say how the ranks find each other, as arguments of `init_process_group`."""
    if backend == "mpi":
        return {}  # MPI itself knows; PyTorch warns about everything else.
    if here.world_size == 1:
        return {"store": dist.HashStore(), "rank": 0, "world_size": 1}  # Alone: no port that could be taken.
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise Mistake(f"{' and '.join(missing)} must be set: the address and port of rank 0, the same in every rank")
    return {"rank": here.rank, "world_size": here.world_size}


def from_rank_zero(make: Callable[[], T]) -> T:
    """Call `make` on rank 0 only and give every rank its result, or raise its `Mistake` on every rank."""
    answer: list[Any] = [None, None]
    if dist.get_rank() == 0:
        try:
            answer[0] = make()
        except Mistake as mistake:
            answer[1] = str(mistake)
    dist.broadcast_object_list(answer)
    if answer[1] is not None:
        raise Mistake(answer[1])
    result: T = answer[0]
    return result


def check_same(what: str, parts: Iterable[Any]) -> None:
    """Raise Mistake, on every rank, if ranks have read different data, given as bytes or arrays.

    Ranks that read another number of samples would take another number of steps, and wait for each other for ever.
    """
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, digest.hexdigest())
    other = next((number for number, digest in enumerate(told) if digest != told[0]), 0)
    if other:
        raise Mistake(
            f"rank {other} has read other {what} than rank 0: give --data with the same files on every node, or "
            "lay them there by train.yml -e data="
        )


def say(text: str) -> None:
    """Print a line in one write: what ranks print at the same time into one pipe does not tear."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def report(**values: float | str) -> None:
    """Print one line of the protocol in `_basics.line`, on rank 0 alone."""
    if dist.get_rank() == 0:
        say(line(**values))


def complain(text: str) -> None:
    """Print one line on stderr: on every rank before `join`, on rank 0 alone after it."""
    if not dist.is_initialized() or dist.get_rank() == 0:
        sys.stderr.write(f"{PROGRAM}: {text}\n")


def leave(status: int = 0) -> NoReturn:
    """Wait for the other ranks, end the process group, and exit with `status`.

    Call it last: under gloo, nothing registered with `atexit` runs.
    """
    dist.barrier()
    # A gloo thread that still holds a tensor when the interpreter ends can abort the process ("terminate called without
    # an active exception", PyTorch pull request 179291): with 2.13 this struck 6 of 40 correct DDP runs on two ranks,
    # though each had destroyed the group. So a gloo rank skips that end. Other backends need it: MPI_Finalize runs
    # there, and mpirun takes a rank that exits without it for a crash.
    skip_teardown = dist.get_backend() == "gloo"
    dist.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    if skip_teardown:
        os._exit(status)
    sys.exit(status)


def run(main: Callable[[], int]) -> NoReturn:
    """Run a program and exit with what it returns, or with one line on stderr and 2 if the user made a mistake.

    A `Mistake` after `join` must be raised by all ranks together, as `from_rank_zero` does: they leave together. A rank
    with an `OwnMistake` says so itself and leaves at once: the launcher ends the others.
    """
    try:
        status = main()
    except OwnMistake as mistake:
        sys.stderr.write(f"{PROGRAM}: {mistake}\n")
        sys.stderr.flush()
        os._exit(2)  # without the barrier, which nobody else comes to
    except Mistake as mistake:
        complain(str(mistake))
        status = 2
    if not dist.is_initialized():
        sys.exit(status)
    leave(status)
