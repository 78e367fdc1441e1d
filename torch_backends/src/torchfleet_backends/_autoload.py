"""Serves `init_process_group("mpi")`, `("shm")` and `("ccl")` of an unchanged script on the stock PyTorch wheel.

PyTorch calls autoload() when it is imported (entry point group `torch.backends`). From 2.14 on it asks the group
`torch.distributed.backends` for names that it does not list as plug-ins, also where TORCH_DEVICE_BACKEND_AUTOLOAD=0 has
kept it from autoload(). Nothing is loaded and no MPI begun before a script asks for a backend. "torchfleet", "shm" and
"ccl" come by PyTorch's public way. The name "mpi" is torch's own: three names in the module distributed_c10d make it
reach us, `ProcessGroupMPI`, the `is_mpi_available` that init_process_group() asks, and `_new_process_group_helper`.
It knows the timeout of a group and its store. A test holds them for the version of torch that is pinned.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

DEVICES = ["cpu", "cuda", "xpu"]  # whose tensors our mpi moves: those of GPUs by MPI itself, or staged in host memory


PLUGINS: dict[str, Any] = {}  # our backends but mpi, as PyTorch has registered them


class Asked(NamedTuple):
    """The group that PyTorch is making."""

    rank: int = -1  # in the group; -1: MPI says it
    size: int = -1
    store: Any = None  # of this group alone
    timeout: Any = None


class ProcessGroupMPI:
    """What torch.distributed takes for its own MPI backend."""

    asked = Asked()
    # Whether the ranks of the whole world are those of MPI, because "mpi" alone is the backend of the default group.
    # PyTorch then has no store, and takes no RANK.
    world_is_of_mpi = False

    @classmethod
    def create(cls, ranks: Sequence[int]) -> Any:
        """Return a backend of these ranks of the world, all if there are none; None for a process outside of them."""
        from torchfleet_backends import create, create_by_store

        asked = cls.asked
        if cls.world_is_of_mpi or asked.store is None:
            return create(ranks, asked.timeout)
        return create_by_store(asked.store, asked.rank, asked.size, asked.timeout)


def create_by_options(options: Any, _backend_options: object = None) -> Any:
    """Return what backend "torchfleet" is: backend mpi, by the ranks and with the timeout of the group."""
    from torchfleet_backends import create, create_by_store

    if ProcessGroupMPI.world_is_of_mpi:
        return create(options.global_ranks_in_group, options.timeout)
    return create_by_store(options.store, options.group_rank, options.group_size, options.timeout)


def available() -> bool:
    """Whether there is a backend mpi."""
    return True


def telling(helper: Callable[..., Any], dist: Any) -> Callable[..., Any]:
    """Return PyTorch's function that makes groups, which tells us what it asks for before it asks.

    It knows our plug-ins only while it makes a group of them: a plug-in that is registered changes what PyTorch 2.13
    makes of strings such as "cpu:gloo,cuda:gloo". Under "mpi", PyTorch has no store: other backends get a real one.
    From 2.14 on "mpi" is a plug-in of PyTorch, and with TORCH_DISTRIBUTED_DEBUG=DETAIL it wraps all plug-ins together
    with gloo: so mpi gets a store too, and the numbers of the ranks, which PyTorch's flight recorder needs as well.
    """

    @functools.wraps(helper)
    def make(size: int, rank: int, ranks: Sequence[int], backend: Any, store: Any, name: str, **more: Any) -> Any:
        if not ranks:
            ProcessGroupMPI.world_is_of_mpi = size == -1 and dist.distributed_c10d.ProcessGroupMPI is ProcessGroupMPI
        if ProcessGroupMPI.world_is_of_mpi:
            from torchfleet_backends import meeting_place, world_of_mpi

            listed = hasattr(dist.distributed_c10d, "_create_mpi_process_group")  # from PyTorch 2.14 on
            if listed and not ranks:
                size, rank = world_of_mpi()
            if str(backend) != "mpi" or (listed and dist.get_debug_level() == dist.DebugLevel.DETAIL):
                store = dist.PrefixStore("by mpi", meeting_place())
        own = dist.PrefixStore(f"{name}/mpi", store)
        ProcessGroupMPI.asked = Asked(rank, size, own, more.get("timeout"))
        plugins = getattr(dist.Backend, "_plugins", {})
        words = re.split("[:,]", str(backend).lower())  # nccl and xccl are not ccl
        named = {key.upper(): PLUGINS[key] for key in PLUGINS if key in words}
        plugins.update(named)
        try:
            return helper(size, rank, ranks, backend, store, name, **more)
        finally:
            ProcessGroupMPI.asked = Asked()
            for key in named:
                plugins.pop(key, None)

    return make


def register(backend: Any, name: str, create: Callable[..., Any], devices: list[str]) -> None:
    """Register a backend in PyTorch's public way, but keep it out of the list of plug-ins until it is named."""
    backend.register_backend(name, create, extended_api=True, devices=devices)
    plugins = getattr(backend, "_plugins", {})
    if name.upper() in plugins and hasattr(backend, "_BackendPlugin"):
        PLUGINS[name] = plugins.pop(name.upper())


def serve_mpi(dist: Any) -> None:
    """Have init_process_group("mpi") find us.

    torch.distributed.is_mpi_available(), which others ask, says so only in a job whose backend is mpi: frameworks take
    mpi unasked wherever it is there, also where the job is to use gloo, or no MPI has started it (accelerate 1.15,
    _prepare_backend).
    """
    c10d = dist.distributed_c10d
    c10d.ProcessGroupMPI = ProcessGroupMPI
    c10d.is_mpi_available = available
    if os.environ.get("TORCHFLEET_BACKEND") == "mpi":
        dist.is_mpi_available = available
    # The first asks in PyTorch 2.13, the second from 2.14 on.
    makers = [getattr(c10d, name, available) for name in ("_new_process_group_helper", "_create_mpi_process_group")]
    if not any("is_mpi_available" in inspect.unwrap(maker).__code__.co_names for maker in makers):
        told = "this PyTorch accepts no external backend mpi: use init_process_group('torchfleet')"
        warnings.warn(f"torchfleet-backends: {told}", stacklevel=3)


def take_tensors_of_every_gpu(backend: Any) -> None:
    """Have init_process_group("mpi") serve xpu too: PyTorch lists the devices by backend, and its own mpi lacks it."""
    moved = getattr(backend, "backend_capability", {}).setdefault("mpi", [])
    moved += [kind for kind in DEVICES if kind not in moved]


def autoload() -> None:
    """Make our backends known to torch.distributed; a PyTorch that was built with MPI keeps its own mpi."""
    import torch.distributed as dist

    if not dist.is_available():
        return
    register(dist.Backend, "torchfleet", create_by_options, DEVICES)
    if not dist.is_mpi_available():
        serve_mpi(dist)
        take_tensors_of_every_gpu(dist.Backend)
    from torchfleet_backends._oneccl import find
    from torchfleet_backends._shared import create as create_shm
    from torchfleet_backends._shared import is_built

    if is_built():
        register(dist.Backend, "shm", create_shm, ["cpu"])
    if find():
        from torchfleet_backends._ccl import create

        register(dist.Backend, "ccl", create, ["cpu"])
    c10d = dist.distributed_c10d
    c10d._new_process_group_helper = telling(c10d._new_process_group_helper, dist)


def list_as_plugin(name: str) -> None:
    """Have PyTorch list a backend of ours as a plug-in. BackendError if this package was built without it."""
    import torch.distributed as dist

    from torchfleet_backends import BackendError

    if not PLUGINS:
        autoload()
    if name not in PLUGINS:
        raise BackendError(f"backend {name}: this torchfleet-backends was built without it: install one that has it")
    dist.Backend._plugins[name.upper()] = PLUGINS[name]


def list_shm() -> None:
    """Do it for backend shm."""
    list_as_plugin("shm")


def list_torchfleet() -> None:
    """Do it for backend mpi by our own name."""
    list_as_plugin("torchfleet")
