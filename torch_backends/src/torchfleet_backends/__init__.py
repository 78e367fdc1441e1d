"""torch.distributed over MPI, and over oneCCL (_ccl.py), for the stock PyTorch wheel: names of torch work unchanged.

A process needs nothing but to be started by an MPI launcher. `create()` is the contract beneath mpi.
"""

from __future__ import annotations

import atexit
import ctypes
import datetime
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

TIMEOUT = datetime.timedelta(minutes=30)  # torch's own default
# Which launcher started this process, by how its MPI finds it; the build that fits; its library. Not by names such as
# OMPI_COMM_WORLD_SIZE, which others set for scripts that look for them.
LAUNCHERS = {
    "PMIX_RANK": ("_openmpi", "libmpi.so.40"),
    "PMI_RANK": ("_abi", "libmpi_abi.so.1"),  # MPICH 5, Intel MPI 2021.18: the standard ABI of MPI 5
}
LIBRARY_VARIABLE = "TORCHFLEET_MPI_LIBRARY"  # the path of the library, where the loader would not find it


class BackendError(RuntimeError):
    """Why there can be no MPI here, and what to do about it."""


def kind_of(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the build and the library for the launcher that started this process. BackendError if none did."""
    for variable, kind in LAUNCHERS.items():
        if variable in environ:
            return kind
    raise BackendError("backend mpi: no MPI launcher started this process: start it with mpirun, or use backend gloo")


def ancestors(pid: int) -> Iterator[Path]:
    """Yield the programs above a process, the nearest first, as far as they may be looked at."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            yield Path(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            return


def find_library(name: str, environ: Mapping[str, str]) -> str:
    """Return the path of an MPI's library: that of the launcher which started this process, else what is usual here."""
    beside = (program.parent.parent / "lib" / name for program in ancestors(os.getpid()))
    return environ.get(LIBRARY_VARIABLE) or next((str(path) for path in beside if path.exists()), name)


def load_library(name: str, environ: Mapping[str, str]) -> None:
    """Load MPI itself before what is linked to it, for all to see: some MPIs look for their own names. BackendError."""
    try:
        ctypes.CDLL(find_library(name, environ), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BackendError(f"backend mpi: {error}; set {LIBRARY_VARIABLE} to the launcher's own {name}") from None


def module() -> ModuleType:
    """Return the compiled module that fits the launcher, its MPI loaded. BackendError."""
    build, library = kind_of(os.environ)
    importlib.import_module("torch")  # the compiled module needs its libraries

    load_library(library, os.environ)
    return importlib.import_module(f"{__name__}.{build}")


def create(ranks: Sequence[int] = (), timeout: datetime.timedelta = TIMEOUT) -> Any:
    """Return a c10d backend of these ranks of MPI_COMM_WORLD, all if there are none.

    None if this process is not among them. BackendError if this process has no MPI, RuntimeError with MPI's own words.
    """
    found = module()
    atexit.register(found.end)
    return found.create(list(ranks), timeout)
