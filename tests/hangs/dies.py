"""A rank of a group in which one dies in the way that the first argument names, and the others because of it.

It prints the moment at which that rank dies. Arguments: the way, and the rank.
"""

import ctypes
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
WAY, CULPRIT, RANK = sys.argv[1], int(sys.argv[2]), int(os.environ["RANK"])


def raises() -> None:
    raise ValueError("a sample without a label")


def exits() -> None:
    sys.exit(3)


def leaves_at_once() -> None:
    os._exit(3)


def is_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crashes() -> None:
    ctypes.string_at(0)


def aborts() -> None:
    os.abort()


def raises_in_a_thread_and_waits() -> None:
    threading.Timer(0.1, lambda: os._exit(4)).start()
    time.sleep(10)


def now_if_it_is_me() -> None:
    if RANK == CULPRIT:
        print(f"dies {time.time()}", flush=True)
        globals()[WAY.partition("-")[0]]()


dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(64, 64)) if WAY.endswith("-ddp") else None
for step in range(40):
    if step == 30:
        now_if_it_is_me()
    if model is not None:
        model(torch.ones(4, 64)).sum().backward()
    elif WAY.endswith("-store") and step >= 30:
        dist.new_group()  # by the store of rank 0
    else:
        dist.all_reduce(torch.ones(100))
    time.sleep(0.005)
