"""Hangs that are made on purpose: the ranks hang in the ways that the arguments name, one after the other.

Arguments: the backend, a directory, and names of functions. CULPRIT is the rank that a way of it concerns. SIGUSR1 lets
a rank go on.
A row that ends with `# <- NAME` is a place that cases.py speaks of.
"""

import ctypes
import fcntl
import functools
import hashlib
import importlib
import os
import pathlib
import queue
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from multiprocessing import get_context
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)
CULPRIT, RANK = int(os.environ["CULPRIT"]), int(os.environ["RANK"])
HERE = tempfile.mkdtemp(dir=sys.argv[2])
values = torch.zeros(8)
wanted: list[int] = []  # an end of the steps


class Released(Exception):
    """It was looked at: on with the next case."""


def release(*_signal: object) -> None:
    if case != "steps":
        raise Released
    wanted.append(1)


def stay(way: Any) -> None:
    """Do it until somebody has looked."""
    try:
        way()
    except Released:
        pass


def pipe(name: str) -> str:
    """Return a pipe of this name in which nobody writes, and from which nobody reads."""
    path = os.path.join(HERE, name)
    os.mkfifo(path)
    return path


# What the culprit does instead of the collective that the others wait in.


def own_code() -> None:
    time.sleep(1000)  # <- own_code


def takes_a_lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # <- takes_a_lock


def deadlock_of_threads() -> None:
    mine, other, both = threading.Lock(), threading.Lock(), threading.Barrier(2)

    def crosswise() -> None:
        with other:
            both.wait()
            mine.acquire()

    threading.Thread(target=crosswise, daemon=True).start()
    with mine:
        both.wait()
        other.acquire()  # <- deadlock_of_threads


def reads_a_queue() -> None:
    queue.Queue().get()  # <- reads_a_queue


def opens_a_pipe() -> None:
    with open(pipe("opened")) as file:  # <- opens_a_pipe
        file.read()


def waits_for_a_file_lock() -> None:
    with open(os.path.join(HERE, "locked"), "w") as mine, open(os.path.join(HERE, "locked")) as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        fcntl.flock(mine, fcntl.LOCK_EX)  # <- waits_for_a_file_lock


def waits_for_a_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as asked:
        asked.recv(1)  # <- waits_for_a_server


def spins() -> None:
    while True:
        sum(range(99))  # <- spins


def holds_the_gil() -> None:
    ctypes.PyDLL(None).sleep(1000)  # <- holds_the_gil


def computes_in_c() -> None:
    hashlib.pbkdf2_hmac("sha256", b"", b"", 40_000_000)  # <- computes_in_c


def is_stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def waits_for_a_child() -> None:
    subprocess.run(["sleep", "1000"], check=False)  # <- waits_for_a_child


def endless(_item: int) -> None:
    time.sleep(1000)  # <- pool_worker


def waits_for_a_pool() -> None:
    with get_context("fork").Pool(1) as pool:
        pool.map(endless, [1])  # <- waits_for_a_pool


class Stuck(Dataset):  # type: ignore[misc]
    def __len__(self) -> int:
        return 4

    def __getitem__(self, item: int) -> None:
        threading.Event().wait()  # <- stuck_worker


def loader_is_stuck() -> None:
    for batch in DataLoader(Stuck(), num_workers=1):  # <- loader_is_stuck
        print(batch)


def imports_a_package() -> None:
    place = pathlib.Path(HERE, "lib", "site-packages", "slow_package")
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("import time\n\ntime.sleep(1000)\n")
    sys.path.insert(0, str(place.parent))
    importlib.import_module("slow_package")  # <- imports_a_package


def writes_a_checkpoint() -> None:
    torch.save({"weights": torch.zeros(1 << 20)}, pipe("checkpoint"))  # <- writes_a_checkpoint


def starts_a_child_that_never_begins() -> None:
    """The new process waits before its program begins, and until then this one is in state D."""
    opens = [(os.POSIX_SPAWN_OPEN, 3, pipe("spawned"), os.O_RDONLY, 0)]
    os.posix_spawn("/bin/true", ["true"], {}, file_actions=opens)  # <- starts_a_child_that_never_begins


def becomes_another_program() -> None:
    os.execvp("sleep", ["sleep", "1000"])


def broadcasts(group: Any) -> None:
    dist.broadcast(values, (CULPRIT + 1) % dist.get_world_size(), group=group)  # <- broadcasts


def receives(group: Any) -> None:
    dist.recv(values, (CULPRIT + 1) % dist.get_world_size(), group=group)  # <- receives


def has_a_step_less(group: Any) -> None:
    dist.barrier(group)  # <- has_a_step_less


# What every rank does, each in its way.


def all_in_order(group: Any) -> None:
    """The culprit has two collectives the other way round."""
    if RANK == CULPRIT:
        dist.broadcast(values, 0, group=group)  # <- first_broadcast
        dist.all_reduce(values, group=group)
    else:
        dist.all_reduce(values, group=group)  # <- first_all_reduce
        dist.broadcast(values, 0, group=group)


def another_size(group: Any) -> None:
    """The culprit has a larger tensor. The others get all that they ask for, and go on."""
    dist.all_reduce(torch.zeros(12 if RANK == CULPRIT else 8), group=group)  # <- another_size
    dist.all_reduce(values, group=group)


def two_sides(group: Any) -> None:
    """Two ranks of four are in a barrier, and two in all_reduce."""
    if RANK in (1, 2):
        dist.barrier(group)  # <- side_barrier
    else:
        dist.all_reduce(values, group=group)  # <- side_all_reduce


def groups_in_another_order(_group: Any) -> None:
    """Two groups of the same ranks, which the culprit takes the other way round."""
    groups = [dist.new_group(), dist.new_group()]
    for group in reversed(groups) if RANK == CULPRIT else groups:
        dist.all_reduce(values, group=group)  # <- groups_in_another_order


def all_but_one_are_in_own_code(group: Any) -> None:
    """One waits where no frame says so; the others do something else."""
    if RANK == CULPRIT:
        dist.all_reduce(values, group=group, async_op=True).wait()  # <- alone
    else:
        stay(own_code)
        dist.all_reduce(values, group=group)


def in_backward(group: Any) -> None:
    """The others wait in backward() for the gradients of the culprit."""
    model = DistributedDataParallel(torch.nn.Linear(8, 8), process_group=group)
    for step in range(4):
        if step == 3 and RANK == CULPRIT:
            stay(own_code)
        model(values).sum().backward()  # <- in_backward


def gathers_objects(group: Any) -> None:
    if RANK == CULPRIT:
        stay(own_code)
    dist.all_gather_object([None] * dist.get_world_size(), RANK, group=group)  # <- gathers_objects


def in_a_thread(group: Any) -> None:
    """The others call a collective in a thread, and wait for that."""

    def call() -> None:
        dist.all_reduce(values, group=group)  # <- in_a_thread

    if RANK == CULPRIT:
        stay(own_code)
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def two_are_missing(group: Any) -> None:
    """Two ranks of four are in own code, each in another place."""
    if RANK == 1:
        stay(own_code)
    if RANK == 2:
        stay(reads_a_queue)
    dist.all_reduce(values, group=group)  # <- two_are_missing


def steps(group: Any) -> None:
    """Not a hang: each step takes a while."""
    ends = torch.zeros(1)
    while not ends:
        time.sleep(0.3)
        ends = torch.full((1,), float(len(wanted)))
        dist.all_reduce(ends, group=group)


def tells_its_steps() -> None:
    for step in range(10_000_000):
        hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)
        print("step", step, flush=True)


def works_long(group: Any) -> None:
    """Not a hang: the culprit computes, and tells of it; the others wait."""
    if RANK == CULPRIT:
        stay(tells_its_steps)
    dist.all_reduce(values, group=group)


def does_not_leave(_group: Any) -> None:
    """All are done, but the culprit has a thread that does not end."""
    if RANK == CULPRIT:
        threading.Thread(target=own_code).start()
    dist.destroy_process_group()
    sys.exit()


def stays_in_a_hook(_group: Any) -> None:
    """The culprit never comes to the barrier before the end."""
    if RANK == CULPRIT:
        stay(own_code)
    dist.barrier()  # <- stays_in_a_hook
    dist.destroy_process_group()


INSTEAD = (broadcasts, receives)  # of the collective: with the group
EACH = (
    *(
        all_in_order,
        another_size,
        two_sides,
        groups_in_another_order,
        all_but_one_are_in_own_code,
        in_backward,
        gathers_objects,
    ),
    *(in_a_thread, two_are_missing, steps, works_long, does_not_leave, stays_in_a_hook),
)


def meet() -> Any:
    """Return a group of all ranks that has some collectives behind it: the pauses between them are short."""
    group = dist.new_group()
    for _collective in range(4):
        dist.all_reduce(values, group=group)
    return group


def hang(way: Any, group: Any) -> None:
    if way in EACH:
        way(group)
        return
    if way is has_a_step_less:
        if RANK != CULPRIT:
            dist.all_reduce(values, group=group)  # <- one_more
        way(group)
        return
    if RANK == CULPRIT:
        stay(functools.partial(way, group) if way in INSTEAD else way)
    dist.all_reduce(values, group=group)  # <- others


backend, cases = sys.argv[1], sys.argv[3:]
if cases == ["never_comes"]:
    print(cases[0], flush=True)
    if RANK == CULPRIT:
        time.sleep(1000)  # <- never_comes
dist.init_process_group(backend)  # <- init
signal.signal(signal.SIGUSR1, release)  # MPICH takes it when MPI begins
for case in cases:
    met = meet()
    print(case, flush=True)
    hang(globals()[case], met)
    print("over", case, flush=True)
