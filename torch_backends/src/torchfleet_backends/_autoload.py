"""Serves `init_process_group("mpi")` and `("ccl")` of an unchanged script on the stock PyTorch wheel.

PyTorch calls autoload() when it is imported (entry point group `torch.backends`). Nothing is loaded and no MPI begun
before a script asks for a backend. "torchfleet" and "ccl" come by PyTorch's public way. The name "mpi" is torch's own:
two names in the module distributed_c10d make it reach us, `ProcessGroupMPI` and the `is_mpi_available` that
init_process_group() asks; a test holds them for the version of torch that is pinned.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Sequence
from typing import Any

DEVICES = ["cpu", "cuda", "xpu"]  # whose tensors our mpi moves: those of GPUs by MPI itself, or staged in host memory


class ProcessGroupMPI:
    """What torch.distributed takes for its own MPI backend."""

    @staticmethod
    def create(ranks: Sequence[int]) -> Any:
        """Return a backend of these ranks of the world, all if there are none; None for a process outside of them."""
        from torchfleet_backends import create

        return create(ranks)


def create_by_options(options: Any, _backend_options: object = None) -> Any:
    """Return what backend "torchfleet" is: backend mpi, by the ranks and with the timeout of the group."""
    from torchfleet_backends import create

    return create(options.global_ranks_in_group, options.timeout)


def available() -> bool:
    """Whether there is a backend mpi."""
    return True


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
    asking = inspect.unwrap(getattr(c10d, "_new_process_group_helper", available))
    if "is_mpi_available" not in asking.__code__.co_names:
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
    dist.Backend.register_backend("torchfleet", create_by_options, extended_api=True, devices=DEVICES)
    if not dist.is_mpi_available():
        serve_mpi(dist)
        take_tensors_of_every_gpu(dist.Backend)
    from torchfleet_backends._oneccl import find

    if find():
        from torchfleet_backends._ccl import create

        dist.Backend.register_backend("ccl", create, extended_api=True, devices=["cpu"])
