"""Runs on every rank: what communication adds to a training step of DDP, by gloo and by our backend in turns.

Our backend is mpi, or shm if no MPI started the ranks.

Arguments: the megabytes of gradients, then the rounds. Rank 0 prints JSON by size: of each side, in every round, the
seconds of a step that are not those of the same step of a DDP that reduces nothing (it has its buckets and copies too).
"""

from __future__ import annotations

import json
import sys
import time

import torch
import torch.distributed as dist
from ranks import RANK, SIZE, given, started_by_mpi
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.nn.parallel import DistributedDataParallel

LAYERS = 8
STEPS = 4


def model_of(megabytes: float) -> torch.nn.Module:
    """Return a model with so many bytes of gradients, in layers of one size."""
    width = int((megabytes * 1e6 / 4 / LAYERS) ** 0.5)
    torch.manual_seed(1)
    return torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _layer in range(LAYERS)))


def seconds(model: DistributedDataParallel, batch: torch.Tensor, group: dist.ProcessGroup) -> float:
    """Return the seconds of one step."""
    dist.barrier(group=group)
    start = time.perf_counter()
    for _step in range(STEPS):
        model(batch).sum().backward()
    return (time.perf_counter() - start) / STEPS


def main() -> None:
    """Measure."""
    sizes, rounds = [float(word) for word in sys.argv[1:-1]], int(sys.argv[-1])
    dist.init_process_group("gloo", rank=given(RANK), world_size=given(SIZE))
    ours = dist.new_group(backend="mpi" if started_by_mpi() else "shm")
    groups = {"gloo": dist.group.WORLD, "ours": ours, "alone": ours}
    for size in sizes:
        models = {name: DistributedDataParallel(model_of(size), process_group=group) for name, group in groups.items()}
        models["alone"].register_comm_hook(None, noop_hook)
        batch = torch.randn(16, next(iter(models["gloo"].parameters())).shape[0])
        told: dict[str, list[float]] = {name: [] for name in groups}
        for number in range(rounds + 2):
            took = {name: seconds(model, batch, ours) for name, model in models.items()}
            if number > 1:  # DDP lays its buckets anew after the first steps
                told["alone"].append(took["alone"])
                for name in ("gloo", "ours"):
                    told[name].append(took[name] - took["alone"])
        if dist.get_rank() == 0:
            print(json.dumps({"megabytes": size, **told}), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
