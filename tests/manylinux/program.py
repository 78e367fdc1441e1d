"""Ranks add up by backend shm, of whose package they import nothing: torchrun starts them, or argv[1] of them fork."""

from __future__ import annotations

import os
import sys


def fork(ranks: int) -> list[int]:
    """Become one of so many ranks: for emulators of a CPU, under which a program cannot start another one.

    Return the processes of the others, which the first one has to wait for.
    """
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511", WORLD_SIZE=str(ranks), OMP_NUM_THREADS="1")
    others = []
    for rank in range(1, ranks):
        os.environ["RANK"] = str(rank)
        process = os.fork()
        if process == 0:
            return []
        others.append(process)
    os.environ["RANK"] = "0"
    return others


def main() -> None:
    """Add up what is small, what takes one chunk, and what takes several, and say so."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("shm")
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (3, 100_000, 5_000_000):
        for dtype in (torch.float32, torch.bfloat16, torch.int8):
            tensor = torch.full((count,), rank + 1, dtype=dtype)
            dist.all_reduce(tensor)
            assert (tensor == size * (size + 1) // 2).all(), (count, dtype)
    gathered = [torch.zeros(1000) for _rank in range(size)]
    dist.all_gather(gathered, torch.full((1000,), float(rank)))
    assert [int(each[0]) for each in gathered] == list(range(size))
    dist.barrier()
    print(f"rank {rank} of {size}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    others = fork(int(sys.argv[1])) if len(sys.argv) > 1 else []
    main()
    sys.exit(max((os.waitpid(each, 0)[1] for each in others), default=0) != 0)
