"""How a workload joins the other ranks, reports, and leaves them.

    def main() -> int:
        rank = join()
        ...
        report(loss=0.1)
        return 0

    run(main)

Needs PyTorch 2.6 or newer.
"""

import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, TypeVar

import torch
import torch.distributed as dist
from _basics import PROGRAM, Mistake, Place, line, place

T = TypeVar("T")

# The backends that carry tensors of one kind of accelerator only; every other backend here carries CPU tensors.
ACCELERATORS = {"nccl": "cuda", "xccl": "xpu"}


class Rank(NamedTuple):
    """This process among all: ranks count from 0, `device` is where its tensors live."""

    rank: int
    local_rank: int
    world_size: int
    device: torch.device


def join(backend: str | None = None) -> Rank:
    """Start the default process group under whatever launcher started this process, or alone without one.

    The backend is the argument, else `$TORCHFLEET_BACKEND`, else nccl if there is CUDA, else gloo.

    Raises:
        Mistake: PyTorch has no such backend, the rank has no accelerator, or variables of the launcher are missing.
    """
    default = "nccl" if torch.cuda.is_available() else "gloo"
    backend = (backend or os.environ.get("TORCHFLEET_BACKEND") or default).lower()
    here = place(os.environ)
    device = _device(backend, here.local_rank)
    torch.get_device_module(device).set_device(device)
    dist.init_process_group(backend, **_meeting(backend, here), device_id=None if device.type == "cpu" else device)
    return Rank(dist.get_rank(), here.local_rank, dist.get_world_size(), device)


def _device(backend: str, local_rank: int) -> torch.device:
    # torchfleet_backends shows mpi to frameworks only in jobs that use it, to init_process_group() always.
    there = dist.distributed_c10d.is_mpi_available() if backend == "mpi" else dist.is_backend_available(backend)
    if not there:
        raise Mistake(f"this PyTorch ({torch.__version__}) has no backend {backend!r}")
    if backend not in ACCELERATORS:
        return torch.device("cpu")
    device = torch.device(ACCELERATORS[backend], local_rank)
    count = torch.get_device_module(device).device_count()
    if local_rank >= count:
        raise Mistake(f"{backend} needs a {device.type} device for local rank {local_rank}; this node has {count}")
    return device


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

    A `Mistake` after `join` must be raised by all ranks together, as `from_rank_zero` does: they leave together.
    """
    try:
        status = main()
    except Mistake as mistake:
        complain(str(mistake))
        status = 2
    if not dist.is_initialized():
        sys.exit(status)
    leave(status)
