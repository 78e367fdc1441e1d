"""Serves `init_process_group("mpi")` and `("ccl")` of an unchanged script on the stock PyTorch wheel.

PyTorch calls autoload() when it is imported (entry point group `torch.backends`). Nothing is loaded and no MPI begun
before a script asks for the backend. The name "mpi" is torch's own: two private names of torch.distributed make it
reach us, `_MPI_AVAILABLE` and `ProcessGroupMPI`; a test holds them for the version of torch that is pinned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class ProcessGroupMPI:
    """What torch.distributed takes for its own MPI backend."""

    @staticmethod
    def create(ranks: Sequence[int]) -> Any:
        """Return a backend of these ranks of the world, all if there are none; None for a process outside of them."""
        from torchfleet_backends import create

        return create(ranks)


def autoload() -> None:
    """Make our backends known to torch.distributed: mpi in the place of its own, and ccl where there is a oneCCL.

    A PyTorch that was built with MPI is left alone.
    """
    import torch.distributed as dist

    if not dist.is_available():
        return
    if not dist.is_mpi_available():
        from torch.distributed import distributed_c10d

        distributed_c10d.ProcessGroupMPI = ProcessGroupMPI
        distributed_c10d._MPI_AVAILABLE = True
    from torchfleet_backends._oneccl import find

    if find():
        from torchfleet_backends._ccl import create

        dist.Backend.register_backend("ccl", create, extended_api=True, devices=["cpu"])
