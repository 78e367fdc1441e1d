"""Backend ccl: torch's collectives by oneCCL on CPU tensors. Its CPU plug-in has no messages."""

from __future__ import annotations

import os
import socket
from typing import Any

import torch.distributed as dist

from torchfleet_backends import own_part
from torchfleet_backends._group import Group
from torchfleet_backends._oneccl import Communicator, load, unique_id


def communicator(store: dist.Store, rank: int, size: int) -> Communicator:
    """Return oneCCL's communicator of a group whose ranks share a store."""
    store.set(f"host/{rank}", socket.gethostname())
    hosts = [store.get(f"host/{other}").decode() for other in range(size)]
    here = [other for other in range(size) if hosts[other] == hosts[rank]]
    # The first group is the world: what later ones are on this node is not asked again.
    os.environ.setdefault("CCL_LOCAL_RANK", str(here.index(rank)))
    os.environ.setdefault("CCL_LOCAL_SIZE", str(len(here)))
    library = load()
    if rank == 0:
        store.set("id", unique_id(library))
    return Communicator(library, store.get("id"), rank, size)


def create(options: Any, _backend_options: object = None) -> Group:
    """Return a process group for torch.distributed. BackendError if there is no oneCCL."""
    rank, size = options.group_rank, options.group_size
    store = own_part(options.store, size)
    return Group(communicator(dist.PrefixStore("ccl", store), rank, size), store, rank, size, options.timeout)
