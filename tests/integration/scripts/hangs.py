"""Hangs in the ways that its arguments name, one after the other: rank 1, or CULPRIT. SIGUSR1 lets it go on."""

import os
import queue
import re
import signal
import sys
import threading
import time

del sys.path[0]  # this directory has a secrets.py, which NumPy would take for Python's

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

torch.set_num_threads(1)
CULPRIT = int(os.environ.get("CULPRIT", "1"))
values = torch.zeros(8)
wanted = []  # an end of the steps


class Released(Exception):
    """The test has seen enough."""


class Stuck(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, item):
        threading.Event().wait()  # a file system that does not answer


def release(*_signal):
    if case != "steps":
        raise Released
    wanted.append(1)


def own_code():
    time.sleep(1000)


def takes_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def reads_a_queue():
    queue.Queue().get()


def loads():
    for batch in DataLoader(Stuck(), num_workers=1):
        print(batch)


def is_stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def holds_the_gil():
    re.match(r"(a+)+$", "a" * 64 + "b")


def broadcasts():
    dist.broadcast(values, 0)


def receives():
    dist.recv(values, 0)


def becomes_another_program():
    os.execvp("sleep", ["sleep", "1000"])


def steps():
    """Not a hang: each step takes a while."""
    ends = torch.zeros(1)
    while not ends:
        time.sleep(0.3)
        ends = torch.full((1,), float(len(wanted)))
        dist.all_reduce(ends)


def work():
    """Rank 1 waits where no frame says so; the others are in their own code."""
    if dist.get_rank() == 1:
        dist.all_reduce(values, async_op=True).wait()
    else:
        own_code()


signal.signal(signal.SIGUSR1, release)
dist.init_process_group("gloo")
for _collective in range(3):
    dist.all_reduce(values)
for case in sys.argv[1:]:
    print(case, flush=True)
    try:
        if case in ("steps", "work") or dist.get_rank() == CULPRIT:
            globals()[case]()
    except Released:
        pass
    if case == "broadcasts":
        dist.barrier()
    if not (case == "work" and dist.get_rank() == 1):
        dist.all_reduce(values)
print("done", flush=True)
