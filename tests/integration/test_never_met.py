"""A job whose ranks trained each alone says so; nobody else is accused. With the real torch, under real launchers."""

from __future__ import annotations

import pytest

from tests.integration.fleet import Fleet

MEET = (
    "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\ndist.destroy_process_group()\n"
)
SPAWN = """
import torch, torch.distributed as dist, torch.multiprocessing as mp, os
def work(local):
    os.environ.update(RANK=str(2 * int(os.environ["RANK"]) + local), WORLD_SIZE="4")
    dist.init_process_group("gloo")
    dist.barrier()
    dist.destroy_process_group()
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""
ALONE = "import torch\ntorch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1).step()\n"
# What accelerate 1.15 does where it finds no GPU: no backend is named, and each rank trains alone (AcceleratorState).
IDLE = "import torch.distributed as dist\ndist.init_process_group(None)\nassert dist.get_world_size() == 2\n"
MESSAGE = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
(dist.send if dist.get_rank() else dist.recv)(torch.ones(1), 1 - dist.get_rank())
"""
ONE_EACH = (
    "import torch.distributed as dist\ndist.init_process_group('gloo', rank=0, world_size=1, store=dist.HashStore())\n"
)
NOTE = {"code": "ranks_never_met", "text": "2 ranks ran, each alone: no process group of 2 was used"}
PROGRAMS = {
    "alone": (ALONE, True),
    "a group of one each": (ONE_EACH, True),
    "a group in which nothing was done": (IDLE, True),
    "and destroyed": (IDLE + "dist.destroy_process_group()\n", True),
    "met": (MEET, False),
    "one message": (MESSAGE, False),
    "met in spawned children": (SPAWN, False),
    "left at once": (ALONE + "import os; os._exit(0)", False),
    "no torch": ("print('hello')", False),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_only_ranks_that_never_met_are_told_of(fleet: Fleet, what: str) -> None:
    program, alone = PROGRAMS[what]
    script = fleet.root / "program.py"
    script.write_text(program)
    played = fleet.play(workload=str(script), np=2, launcher="torchrun" if what == "alone" else "openmpi")
    assert played.rc == 0, played.stdout
    assert (played.result["state"], played.result["notes"]) == ("succeeded", [NOTE] if alone else [])
    assert (f"; BUT {NOTE['text']}" in played.stdout) == alone
    assert ("[WARNING]: job" in played.stdout) == alone
    assert played.output(0, "stderr") == ""
