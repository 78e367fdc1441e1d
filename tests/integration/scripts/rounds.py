"""Counts to 6 with the other ranks, in rounds. Argument n says how round n ends, each a step later than the one before.

`1:raise`, `1:kill`, `1:wrapper`: of rank 1 by an exception, its own death or that of its wrapper; `1:save`: it has
saved its work, and the others are done; `save`: all have saved theirs.
"""

import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed as dist

rank, local_rank = int(os.environ["RANK"]), os.environ["LOCAL_RANK"]
counts = {int(os.environ[f"{who}_RESTART_COUNT"]) for who in ("TORCHFLEET", "TORCHELASTIC")}
(count,) = counts  # they agree
place, newest = pathlib.Path(os.environ["TORCHFLEET_CHECKPOINT_DIR"]), os.environ["TORCHFLEET_RESUME"]
wrapper = os.getppid()
agent = pathlib.Path(f"/proc/{wrapper}/stat").read_text().rpartition(")")[2].split()[1]
step = torch.load(newest)["step"] if newest else 0
dist.init_process_group("gloo")
print("agent", agent, "program", os.getpid(), "round", count, os.environ.get("TORCHFLEET_RESTART_REASON"), "at", step)


def leave(how: str) -> None:
    sys.stdout.flush()
    sys.stdout.buffer.write(b"\xff\0 no end of line")
    sys.stdout.flush()
    who, _, way = how.rpartition(":")
    if way == "save":
        sys.exit(75 if who in ("", str(rank)) else 0)
    if int(who) != rank:
        return
    if way == "raise":
        raise ValueError(f"in round {count}")
    os.kill(wrapper if way == "wrapper" else os.getpid(), signal.SIGKILL)
    time.sleep(600)  # what its wrapper left is ended


while step < 6:
    dist.all_reduce(torch.ones(1))
    step += 1
    print(f"torchfleet: step={step} steps=6")
    if local_rank == "0":
        torch.save({"step": step}, place / "new")
        os.replace(place / "new", place / f"step-{step}.pt")
    dist.barrier()
    if count + 1 < len(sys.argv) and step == count + 2:
        leave(sys.argv[count + 1])
print("done", step)
