"""Backend mpi over mpi4py, if nothing is compiled: correct, but slower. MPI's library is already loaded."""

from __future__ import annotations

import atexit
import collections
import datetime
import itertools
import sys
from collections.abc import Collection, Sequence
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from torchfleet_backends import BackendError, meeting_place
from torchfleet_backends._collective import close_all
from torchfleet_backends._group import Group

TYPES = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.uint8: MPI.UINT8_T,
    torch.int8: MPI.INT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
    torch.uint16: MPI.UINT16_T,
    torch.uint32: MPI.UINT32_T,
    torch.uint64: MPI.UINT64_T,
}
OPERATIONS = {
    "SUM": MPI.SUM,
    "PRODUCT": MPI.PROD,
    "MIN": MPI.MIN,
    "MAX": MPI.MAX,
    "BAND": MPI.BAND,
    "BOR": MPI.BOR,
    "BXOR": MPI.BXOR,
}
made: collections.Counter[tuple[int, ...]] = collections.Counter()  # groups by their ranks, for unique names


def memory(tensor: torch.Tensor) -> MPI.buffer:
    """Return the bytes of a tensor as a buffer for MPI."""
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)


def elements(tensor: torch.Tensor) -> list[object]:
    """Return the elements of a tensor as a buffer for MPI."""
    return [memory(tensor), tensor.numel(), TYPES[tensor.dtype]]


def offsets(sizes: Sequence[int]) -> list[int]:
    """Return the offsets of contiguous parts."""
    return [0, *itertools.accumulate(sizes)][:-1]


class Communicator:
    """Collectives of a group of ranks, an implementation of _group.Communicator."""

    name = "mpi"
    types: Collection[torch.dtype] = TYPES.keys()
    operations: Collection[str] = OPERATIONS.keys()

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.comm = comm

    def all_reduce(self, tensor: torch.Tensor, operation: str) -> None:
        self.comm.Allreduce(MPI.IN_PLACE, elements(tensor), OPERATIONS[operation])

    def reduce(self, tensor: torch.Tensor, operation: str, root: int) -> torch.Tensor:
        output = torch.empty_like(tensor)
        self.comm.Reduce(elements(tensor), elements(output), OPERATIONS[operation], root)
        return output

    def reduce_scatter(self, output: torch.Tensor, given: torch.Tensor, operation: str) -> None:
        parts = [memory(given), output.numel(), TYPES[given.dtype]]  # counted as one of them
        self.comm.Reduce_scatter_block(parts, elements(output), OPERATIONS[operation])

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        self.comm.Bcast([memory(tensor), MPI.BYTE], root)

    def all_gather(self, output: torch.Tensor, given: torch.Tensor) -> None:
        self.comm.Allgather([memory(given), MPI.BYTE], [memory(output), MPI.BYTE])

    def all_to_all(self, output: torch.Tensor, into: Sequence[int], given: torch.Tensor, sizes: Sequence[int]) -> None:
        sent = [memory(given), sizes, offsets(sizes), MPI.BYTE]
        self.comm.Alltoallv(sent, [memory(output), into, offsets(into), MPI.BYTE])

    def destroy(self) -> None:
        if not MPI.Is_finalized():
            self.comm.Free()


def begin() -> None:
    """Make an uncaught error end all ranks: mpi4py would wait for them, and they wait for this one.

    mpi4py initialised MPI when it was imported. BackendError if only one thread at a time may call it.
    """
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        told = "this MPI gives no MPI_THREAD_MULTIPLE, and every group of torch has a thread of its own"
        raise BackendError(f"backend mpi: {told}: {library_version()}; leave mpi4py.rc.thread_level as it is")
    show = sys.excepthook

    def leave(*error: Any) -> None:
        show(*error)
        atexit.register(MPI.COMM_WORLD.Abort, 1)  # not here: torch buffers the error text until all hooks are done

    sys.excepthook = leave


def finish(_most: datetime.timedelta) -> None:
    """Finalise MPI at the end of the process, unless an operation has not ended: MPI would wait for it, or crash."""
    if close_all() and not MPI.Is_finalized():
        MPI.Finalize()


world_rank, world_size, told_by_all = MPI.COMM_WORLD.Get_rank, MPI.COMM_WORLD.Get_size, MPI.COMM_WORLD.allgather


def library_version() -> str:
    """Return the name and version of the MPI."""
    return str(MPI.Get_library_version()).partition(",")[0].partition("\n")[0]


def create(ranks: Sequence[int], timeout: datetime.timedelta) -> Group | None:
    """Return a process group of these ranks of the world, all if there are none; None if this process is no member."""
    world = MPI.COMM_WORLD
    store = meeting_place()  # all ranks of the world come here
    if ranks and world.Get_rank() not in ranks:
        return None
    comm = world.Create_group(world.Get_group().Incl(list(ranks))) if ranks else world.Dup()
    made[tuple(ranks)] += 1  # only the members of a group come here
    own = dist.PrefixStore(f"{' '.join(map(str, ranks))} number {made[tuple(ranks)]}", store)
    return Group(Communicator(comm), own, comm.Get_rank(), comm.Get_size(), timeout)
