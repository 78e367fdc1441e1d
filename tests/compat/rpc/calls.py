"""torch.distributed.rpc: each rank calls a function on all others, which may be on another machine."""

import os
import socket

import torch
from torch.distributed import rpc


def add(one: torch.Tensor, two: torch.Tensor) -> tuple[torch.Tensor, str]:
    return one + two, socket.gethostname()


rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
rpc.init_rpc(f"worker{rank}", rank=rank, world_size=size)
print(f"rank {rpc.get_worker_info().id} of {size}, local rank {os.environ['LOCAL_RANK']}")
for other in range(size):
    total, host = rpc.rpc_sync(f"worker{other}", add, (torch.full((3,), rank), torch.full((3,), other)))
    print(f"{total.tolist()} from worker{other} on {host}")
rpc.shutdown()
