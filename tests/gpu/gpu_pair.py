"""A program of ranks: a backend for CPUs and another for GPUs in one group, such as cpu:shm,cuda:nccl."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist


def main() -> None:
    """Sum on CPU and GPU, by the backends that the first argument names."""
    local, backends = int(os.environ["LOCAL_RANK"]), sys.argv[1]
    torch.cuda.set_device(local % torch.cuda.device_count())
    dist.init_process_group(backends)
    rank, size = dist.get_rank(), dist.get_world_size()
    for device in ("cpu", "cuda"):
        tensor = torch.full((1 << 20,), float(rank + 1), device=device)
        dist.all_reduce(tensor)
        if not bool((tensor == size * (size + 1) / 2).all()):
            sys.exit(f"{backends}: rank {rank}: a wrong sum on {device}")
    if rank == 0:
        print(f"{backends}: right on cpu and cuda, {size} ranks")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
