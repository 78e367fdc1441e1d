"""Backend shm: torch's collectives by memory that the ranks of a node share, and all else by TCP. It needs no MPI.

The ranks find each other by the store of their group, so it works under every launcher, and in scripts that start their
processes themselves.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import torch.distributed as dist

from torchfleet_backends import BackendError, allow_shared_buckets, check_torch, finish, own_part, own_torch

PROTOCOL = "4"  # between the ranks; those of another release may have another one
NODE_RANKS = "TORCHFLEET_SHM_NODE_RANKS"  # tests divide one machine into nodes with so many ranks each


def is_built() -> bool:
    """Whether this package has it."""
    return Path(__file__).with_name("_shm.so").exists()


@functools.cache
def module() -> ModuleType:
    """Return the compiled module. BackendError if it was compiled for another torch."""
    check_torch("shm")
    found = importlib.import_module("torchfleet_backends._shm")
    atexit.register(finish, found)
    return found


def own_node(rank: int) -> str:
    """Return what ranks that can share memory have in common: the running kernel, the pid namespace, the user.

    Not the host's name: containers of one machine have several, and those of several machines may have one.
    """
    if NODE_RANKS in os.environ:
        return str(rank // int(os.environ[NODE_RANKS]))
    kernel = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{kernel} {os.readlink('/proc/self/ns/pid')} {os.geteuid()}"


def gather_texts(store: dist.Store, rank: int, size: int, own: str) -> list[str]:
    """Return what each rank of a group says."""
    store.set(f"told/{rank}", own)
    return [store.get(f"told/{other}").decode() for other in range(size)]


def create(options: Any, _backend_options: object = None) -> Any:
    """Return a c10d backend for torch.distributed. BackendError if a rank has another torch than it was built for."""
    found, rank, size = module(), int(options.group_rank), int(options.group_size)
    allow_shared_buckets()
    store = own_part(dist.PrefixStore("shm", options.store), size)
    own = f"{own_torch()}\n{PROTOCOL}\n{own_node(rank)}"
    told = [text.split("\n") for text in gather_texts(store, rank, size, own)]
    for other, (theirs, *more) in enumerate(told):
        if theirs != told[0][0]:
            raise BackendError(
                f"backend shm: rank {other} has {theirs}, rank 0 {told[0][0]}: use the same on all nodes"
            )
        if len(more) != 2 or more[0] != PROTOCOL:
            raise BackendError(f"backend shm: rank {other} has another release of it: use the same on all nodes")
    numbers = {node: number for number, node in enumerate(dict.fromkeys(node for *_, node in told))}
    nodes = [numbers[node] for *_, node in told]
    # Not later, when it is needed: all ranks have to take part in that, and a message has two.
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, options.timeout)
    return found.create(dist.PrefixStore("memory", store), rank, nodes, options.timeout, gloo)
