"""Have PyTorch offer the backends asked for (first argument, by spaces) with the parts that they have to have (second),
and leave a proof (third).
"""

import importlib.metadata
import os
import sys
from pathlib import Path

os.environ["TORCHFLEET_BACKEND"] = "mpi"  # which shows itself only to jobs that use it

import torch
import torch.distributed as dist
import torchfleet_backends

names, parts, proof = sys.argv[1].split(), sys.argv[2].split(), sys.argv[3]
missing = [part for part in parts if not Path(torchfleet_backends.__file__).parents[1].joinpath(part).exists()]
if missing:
    sys.exit(f"it has no {', '.join(missing)}")
unseen = [name for name in names if not dist.is_backend_available(name)]
if unseen:
    sys.exit(f"PyTorch does not see {', '.join(unseen)}")
for name in {"shm", "ccl"} & set(names):
    dist.init_process_group(name, store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
Path(proof).write_text(importlib.metadata.version("torchfleet-backends") + "\n", encoding="utf-8")
