"""A program of ranks: asks NCCL's own service (RAS) as a look at a hung job does, and prints what it tells."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parents[2] / "collections"))

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.nccl_status import Question

SECONDS = 5.0
LINES = 30  # printed


def main() -> None:
    """Reduce something, so that NCCL is there, and ask."""
    local = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    dist.init_process_group("nccl", device_id=torch.device("cuda", local))
    dist.all_reduce(torch.ones(1024, device="cuda"))
    torch.cuda.synchronize()
    pids = [0] * dist.get_world_size()
    dist.all_gather_object(pids, os.getpid())
    if dist.get_rank() == 0:
        started = time.monotonic()
        lines = Question(pids, SECONDS).answer()
        print(*lines[:LINES], sep="\n")
        print(f"RAS: {len(lines)} lines of {dist.get_world_size()} ranks in {time.monotonic() - started:.1f} s")
    dist.barrier(device_ids=[local])
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
