"""Runs on every rank: all_reduce by gloo, by our backend, and by the same MPI's own MPI_Allreduce, in turns.

Our backend is mpi, or shm if no MPI started the ranks. It does it twice: with a tensor of the program's own, and with
one that it gave, as DDP's buckets are.

Arguments: the sizes in bytes, then the rounds. Rank 0 prints JSON by size: each side's seconds in every round.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
import torch.distributed as dist

RANK, SIZE = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"), ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE")
OURS = ("TORCHFLEET_MPI_SHARED", "TORCHFLEET_MPI_RING")  # what "0" leaves to MPI
SECONDS = 0.05  # of each side in each round, at least one operation


def given(names: tuple[str, ...]) -> int:
    return next(int(os.environ[name]) for name in names if name in os.environ)


def started_by_mpi() -> bool:
    return "PMIX_RANK" in os.environ or "PMI_RANK" in os.environ


def once(tensor: torch.Tensor, group: dist.ProcessGroup, times: int) -> float:
    """Return the seconds of one all_reduce, of so many in a row."""
    dist.barrier(group=group)
    start = time.perf_counter()
    for _time in range(times):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - start) / times


def given_by(group: dist.ProcessGroup, count: int) -> torch.Tensor:
    """Return a tensor of zeros in memory that the ranks share, if they can."""
    cpu = torch.device("cpu")
    backend = group._get_backend(cpu)
    if not backend.supports_tensor_alloc(cpu):
        return torch.zeros(count)
    return backend.allocate_tensor(count, dtype=torch.float32, device=cpu).zero_()


def agreed(times: int, group: dist.ProcessGroup) -> int:
    """Return what rank 0 says, so that all ranks do it as often."""
    said = torch.tensor([times])
    dist.broadcast(said, 0, group=group)
    return max(1, int(said))


def sides() -> dict[str, dist.ProcessGroup]:
    """Return the groups that take turns."""
    gloo = dist.group.WORLD
    if not started_by_mpi():
        shm = dist.new_group(backend="shm")
        return {"gloo": gloo, "shm": shm, "bucket": shm}
    groups = {"gloo": gloo}
    for name, wanted in (("mpi", "1"), ("plain", "0")):
        os.environ.update(dict.fromkeys(OURS, wanted))
        groups[name] = dist.new_group(backend="mpi")
    return {**groups, "bucket": groups["mpi"]}


def main() -> None:
    """Measure."""
    sizes, rounds = [int(word) for word in sys.argv[1:-1]], int(sys.argv[-1])
    dist.init_process_group("gloo", rank=given(RANK), world_size=given(SIZE))
    groups = sides()
    for size in sizes:
        tensors = dict.fromkeys(groups, torch.zeros(size // 4)) | {"bucket": given_by(groups["bucket"], size // 4)}
        told: dict[str, list[float]] = {name: [] for name in groups}
        times = {}
        for name, group in groups.items():
            first = min(once(tensors[name], group, 2) for _try in range(2))
            times[name] = agreed(int(SECONDS / first), dist.group.WORLD)
        for _round in range(rounds):
            for name, group in groups.items():
                told[name].append(once(tensors[name], group, times[name]))
        if dist.get_rank() == 0:
            print(json.dumps({"bytes": size, **told}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
