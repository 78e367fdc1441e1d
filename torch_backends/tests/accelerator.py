"""Runs on every rank: tensors that are not the CPU's. There is no GPU here, so one is made up for PyTorch.

Its tensors have no address: whatever reads or writes one has to copy it, as from a GPU. Where MPI is to read them
itself they have one, and nothing copies them to the CPU.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

_setup_privateuseone_for_python_backend("far")
IMPLEMENT = torch.library.Library("aten", "IMPL")


class Far(torch.Tensor):
    """A tensor of that device; `near` is what it holds."""

    near: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl


DIRECT = os.environ.get("TORCHFLEET_MPI_DIRECT") == "1"
OTHER_DEVICE = 12  # kDLExtDev of DLPack, which PyTorch takes for the device that is made up
address_in = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def with_address(near: torch.Tensor) -> Any:
    """Return a tensor of that device in the same memory: the second word of DLPack's description is the device."""
    capsule = torch.utils.dlpack.to_dlpack(near)
    ctypes.c_int.from_address(address_in(capsule, b"dltensor") + ctypes.sizeof(ctypes.c_void_p)).value = OTHER_DEVICE
    return torch._C._from_dlpack(capsule)


def far(near: torch.Tensor) -> Far:
    made: Far = with_address(near) if DIRECT else torch._C._acc.create_empty_tensor(near.shape, near.dtype)
    made.__class__ = Far
    made.near = near
    return made


def empty(size: Sequence[int], *_words: object, dtype: torch.dtype | None = None, **_more: object) -> Far:
    return far(torch.empty(size, dtype=dtype))


def copy(source: Any, target: Any, _non_blocking: bool = False) -> Any:
    crosses = source.device != target.device
    assert not (DIRECT and crosses and source.dtype != torch.bfloat16), "a copy to or from the CPU"
    getattr(target, "near", target).copy_(getattr(source, "near", source))
    return target


IMPLEMENT.impl("empty.memory_format", empty, "PrivateUse1")
IMPLEMENT.impl("empty_strided", empty, "PrivateUse1")
IMPLEMENT.impl("_copy_from", copy, "PrivateUse1")
IMPLEMENT.impl("as_strided", lambda tensor, *words: far(tensor.near.as_strided(*words)), "PrivateUse1")
IMPLEMENT.impl("div_.Scalar", lambda tensor, number: far(tensor.near.div_(number)), "PrivateUse1")
IMPLEMENT.impl("view", lambda tensor, size: far(tensor.near.view(size)), "PrivateUse1")


RANK, SIZE = (int(os.environ["OMPI_COMM_WORLD_" + name]) for name in ("RANK", "SIZE"))


def ours(count: int = 4) -> Far:
    """Return what this rank brings."""
    return far(torch.arange(count) + 10.0 * RANK)


def theirs(rank: int, count: int = 4) -> torch.Tensor:
    return torch.arange(count) + 10.0 * rank


def room(count: int = 4) -> Far:
    return far(torch.zeros(count))


def collectives() -> None:
    everything = torch.cat([theirs(rank) for rank in range(SIZE)])
    tensor = ours()
    dist.all_reduce(tensor)
    assert torch.equal(tensor.near, sum(theirs(rank) for rank in range(SIZE))), tensor.near
    tensor = ours()
    work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
    work.wait()
    assert torch.equal(tensor.near, theirs(0) + 5 * (SIZE - 1)), tensor.near
    tensor = far(torch.ones(4, dtype=torch.bfloat16))  # which no MPI knows
    dist.all_reduce(tensor)
    assert torch.equal(tensor.near, torch.full((4,), SIZE, dtype=torch.bfloat16)), tensor.near
    tensor = ours()
    dist.broadcast(tensor, 1)
    assert torch.equal(tensor.near, theirs(1))
    tensor = ours()
    dist.reduce(tensor, 0)
    assert RANK > 0 or torch.equal(tensor.near, sum(theirs(rank) for rank in range(SIZE)))
    parts = [room() for _rank in range(SIZE)]
    dist.all_gather(parts, ours())
    assert torch.equal(torch.cat([part.near for part in parts]), everything)
    parts = [room(2 + rank) for rank in range(SIZE)]
    dist.all_gather(parts, ours(2 + RANK))
    assert torch.equal(parts[-1].near, theirs(SIZE - 1, 1 + SIZE))
    whole = room(4 * SIZE)
    dist.all_gather_into_tensor(whole, ours())
    assert torch.equal(whole.near, everything)
    part = room()
    dist.reduce_scatter_tensor(part, ours(4 * SIZE))
    summed = sum(theirs(rank, 4 * SIZE) for rank in range(SIZE))
    assert torch.equal(part.near, summed[4 * RANK : 4 * RANK + 4])
    whole = room(4 * SIZE)
    dist.all_to_all_single(whole, ours(4 * SIZE))
    assert torch.equal(whole.near[4:8], theirs(1, 4 * SIZE)[4 * RANK : 4 * RANK + 4])
    parts = [room() for _rank in range(SIZE)]
    dist.gather(ours(), parts if RANK == 0 else None)
    assert RANK > 0 or torch.equal(torch.cat([part.near for part in parts]), everything)
    part = room()
    dist.scatter(part, [far(theirs(rank)) for rank in range(SIZE)] if RANK == 0 else None)
    assert torch.equal(part.near, theirs(RANK))


def messages() -> None:
    tensor, before, after = room(), (RANK - 1) % SIZE, (RANK + 1) % SIZE
    works = [dist.isend(ours(), after), dist.irecv(tensor, before)]
    for work in works:
        work.wait()
    assert torch.equal(tensor.near, theirs(before)), tensor.near
    tensor = room()  # nobody waits for the work, only for its future
    future = dist.irecv(tensor, before).get_future()
    work = dist.isend(ours(), after)
    future.wait()
    work.wait()
    assert torch.equal(tensor.near, theirs(before)), tensor.near


def main() -> None:
    os.environ.update(RANK=str(RANK), WORLD_SIZE=str(SIZE))
    dist.init_process_group("cpu:torchfleet,far:torchfleet")
    collectives()
    messages()
    dist.barrier()
    print("all is well", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
