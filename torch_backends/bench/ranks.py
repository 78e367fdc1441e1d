"""Runs on every rank: all_reduce by gloo, by our backend, and by the same MPI's own MPI_Allreduce, in turns.

Our backend is mpi, or shm if no MPI started the ranks. It does it twice: with a tensor of the program's own, and with
one that it gave, as DDP's buckets are.

Arguments: the type, whether each rank stays on a core ("pinned"; "free"), the sizes in bytes, the rounds. Rank 0 prints
JSON by size: each side's seconds in every round, and the share of the time in which a rank waited for a core.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

RANK, SIZE = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK"), ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "WORLD_SIZE")
OURS = ("TORCHFLEET_MPI_SHARED", "TORCHFLEET_MPI_RING")  # what "0" leaves to MPI
SECONDS = 0.05  # of each side in each round, at least one operation
SAMPLED = 0.5  # seconds in which it is measured who waits for a core


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


def given_by(group: dist.ProcessGroup, count: int, kind: torch.dtype) -> torch.Tensor:
    """Return a tensor of zeros in memory that the ranks share, if they can."""
    cpu = torch.device("cpu")
    backend = group._get_backend(cpu)
    if not backend.supports_tensor_alloc(cpu):
        return torch.zeros(count, dtype=kind)
    return backend.allocate_tensor(count, dtype=kind, device=cpu).zero_()


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


def stay_on_a_core() -> None:
    """Keep this process, and the threads that it will start, on one core."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[given(RANK) % len(cores)]})


def waited() -> float:
    """Return for how many seconds threads of this process could have run, and had no core (kernel, sched-stats.rst)."""
    total = 0
    for thread in Path("/proc/self/task").iterdir():
        try:
            total += int((thread / "schedstat").read_text().split()[1])
        except FileNotFoundError:  # it has ended
            continue
    return total / 1e9


def waiting(tensor: torch.Tensor, group: dist.ProcessGroup, seconds: float) -> float:
    """Return the share of the time in which a rank waited for a core, the most of any rank.

    `seconds`: of one operation. On a quiet machine with a core for each rank, it is the time in which ranks share one.
    """
    times = agreed(int(SAMPLED / seconds), dist.group.WORLD)
    before, start = waited(), time.perf_counter()
    once(tensor, group, times)
    share = torch.tensor([(waited() - before) / (time.perf_counter() - start)])
    dist.all_reduce(share, dist.ReduceOp.MAX)
    return float(share)


def main() -> None:
    """Measure."""
    kind, pinned = getattr(torch, sys.argv[1]), sys.argv[2] == "pinned"
    sizes, rounds = [int(word) for word in sys.argv[3:-1]], int(sys.argv[-1])
    if pinned:
        stay_on_a_core()
    dist.init_process_group("gloo", rank=given(RANK), world_size=given(SIZE))
    groups = sides()
    for size in sizes:
        count = size // kind.itemsize
        tensors = dict.fromkeys(groups, torch.zeros(count, dtype=kind))
        tensors["bucket"] = given_by(groups["bucket"], count, kind)
        told: dict[str, list[float]] = {name: [] for name in groups}
        times = {}
        for name, group in groups.items():
            first = min(once(tensors[name], group, 2) for _try in range(2))
            times[name] = agreed(int(SECONDS / first), dist.group.WORLD)
        for _round in range(rounds):
            for name, group in groups.items():
                told[name].append(once(tensors[name], group, times[name]))
        share = waiting(tensors["bucket"], groups["bucket"], sorted(told["bucket"])[rounds // 2])
        if dist.get_rank() == 0:
            print(json.dumps({"bytes": size, "waiting": share, **told}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
