"""torch.distributed over MPI, over shared memory (_shared.py) and over oneCCL (_ccl.py), for the stock PyTorch wheel.

This file makes a backend mpi: an MPI launcher has to start the process for it, and nothing else is needed.
"""

from __future__ import annotations

import atexit
import ctypes
import datetime
import functools
import importlib
import os
import re
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

TIMEOUT = datetime.timedelta(minutes=30)  # torch's own default
END = datetime.timedelta(seconds=2)  # for what is under way when the program ends
# Which launcher started this process, by how its MPI finds it; the build that fits; its library. Not by names such as
# OMPI_COMM_WORLD_SIZE, which others set for scripts that look for them.
LAUNCHERS = {
    "PMIX_RANK": ("_openmpi", "libmpi.so.40"),
    "PMI_RANK": ("_abi", "libmpi_abi.so.1"),  # MPICH 5, Intel MPI 2021.18: the standard ABI of MPI 5
}
HOW_TO_COMPILE = 'ansible-playbook setup.yml -e \'{"backends": ["mpi"], "mpis": ["openmpi", "mpich"]}\''
LIBRARY_VARIABLE = "TORCHFLEET_MPI_LIBRARY"  # the path of the library, where the loader would not find it


prepared: list[ModuleType] = []  # whose MPI has begun


class BackendError(RuntimeError):
    """Why a backend is unavailable, and how to fix it."""


def kind_of(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the build and the library for the launcher that started this process. BackendError if none did."""
    for variable, kind in LAUNCHERS.items():
        if variable in environ:
            return kind
    raise BackendError("backend mpi: no MPI launcher started this process: start it with mpirun, or use backend gloo")


def ancestors(pid: int) -> Iterator[Path]:
    """Yield the parent programs of a process, the nearest first, as far as they are readable."""
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
            yield Path(os.readlink(f"/proc/{pid}/exe"))
        except OSError:
            return


def find_library(name: str, environ: Mapping[str, str]) -> str:
    """Return the path of an MPI's library: that of the launcher that started this process, else the usual one."""
    beside = (program.parent.parent / "lib" / name for program in ancestors(os.getpid()))
    return environ.get(LIBRARY_VARIABLE) or next((str(path) for path in beside if path.exists()), name)


def beside(library: Path) -> dict[str, str]:
    """Return the variables that lead an MPI to the libfabric next to it (Intel MPI, libfabric docs).

    Intel MPI loads it by its bare name only when ranks are on several nodes, and the loader does not look there.
    """
    fabric = library.with_name("libfabric.so.1")
    return {"I_MPI_OFI_LIBRARY": str(fabric), "FI_PROVIDER_PATH": str(library.parent)} if fabric.exists() else {}


def load_library(name: str, environ: Mapping[str, str]) -> None:
    """Load MPI itself before what is linked to it, for all to see: some MPIs look for their own names. BackendError."""
    path = find_library(name, environ)
    other = other_mpi(path, Path("/proc/self/maps").read_text())
    if other:
        raise BackendError(f"backend mpi: {other} is loaded in this process, but {path} is needed: import no other MPI")
    for variable, value in beside(Path(path)).items():
        os.environ.setdefault(variable, value)
    try:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        raise BackendError(f"backend mpi: {error}; set {LIBRARY_VARIABLE} to the launcher's own {name}") from None


@functools.cache
def module() -> ModuleType:
    """Return the compiled module that fits the launcher, its MPI loaded. BackendError."""
    build, library = kind_of(os.environ)
    if not Path(__file__).with_name(f"{build}.so").exists():
        raise BackendError(f"backend mpi: it was not compiled for this launcher's MPI ({build}.so): {HOW_TO_COMPILE}")
    check_torch()
    load_library(library, os.environ)
    return importlib.import_module(f"{__name__}.{build}")


def check_torch(backend: str = "mpi") -> None:
    """Import torch, whose libraries a compiled module needs. BackendError if it was compiled for another release."""
    version = importlib.import_module("torch").__version__.partition("+")[0]
    built_for = Path(__file__).with_name("built_for.txt").read_text().strip()
    if version != built_for:
        told = f"built for torch {built_for}, but this is {version}: build it again"
        raise BackendError(
            f'backend {backend}: {told}: ansible-playbook setup.yml -e \'{{"backends": ["{backend}"]}}\''
        )


def other_mpi(own: str, maps: str) -> str:
    """Return the path of another MPI's library in this process, by its memory map, an empty text if there is none."""
    if "/" not in own:
        return ""  # the loader uses the one that is loaded
    found = set(re.findall(r"/\S*/lib(?:mpi|mpi_abi|mpich)\.so[.\d]*$", maps, re.MULTILINE))
    return min(found - {os.path.realpath(own)}, default="")


def check_launcher(found: ModuleType, environ: Mapping[str, str]) -> None:
    """BackendError if MPI does not see the ranks that the launcher started."""
    name = "OMPI_COMM_WORLD_SIZE" if "PMIX_RANK" in environ else "PMI_SIZE"
    started, seen = int(environ.get(name, "0")), found.world_size()
    if started > 1 and seen == 1:
        told = (
            f"the launcher started {started} ranks, but {found.library_version()} sees 1: it is not the launcher's MPI"
        )
        raise BackendError(f"backend mpi: {told}; set {LIBRARY_VARIABLE} to the launcher's own library")


def own_torch() -> str:
    """Return what each rank tells of its PyTorch."""
    return f"torch {importlib.import_module('torch').__version__}"


def check_same(told_by: Sequence[str]) -> None:
    """BackendError if the ranks differ in what they tell of their PyTorch."""
    for rank, told in enumerate(told_by):
        if told != told_by[0]:
            raise BackendError(f"backend mpi: rank {rank} has {told}, rank 0 {told_by[0]}: use the same on all nodes")


def check_world(found: ModuleType, environ: Mapping[str, str]) -> None:
    """BackendError if MPI does not see the ranks that the launcher started, or if they differ. All ranks call this."""
    check_launcher(found, environ)
    check_same(found.gather_texts(own_torch()))


def allow_shared_buckets() -> None:
    """Have DDP ask the backend for the memory of its buckets, which it does only if the environment tells it to.

    Beside ours only backends of accelerators give any, so where there is one the user decides.
    """
    if not importlib.import_module("torch").accelerator.is_available():
        os.environ.setdefault("DDP_DISABLE_COMM_MEM", "0")


def prepare(found: ModuleType) -> None:
    """Do what the first group of a process needs. RuntimeError in a forked child, which is no rank of MPI."""
    allow_shared_buckets()
    found.initialize()
    if found not in prepared:
        prepared.append(found)
        if hasattr(found, "finish"):
            atexit.register(finish, found)


def finish(found: ModuleType) -> None:
    """Wait at the end for what is under way, while the functions that futures run still have an interpreter.

    Not after an error, since the other ranks do not come any more. What lasts longer ends without its functions.
    """
    found.finish(datetime.timedelta() if hasattr(sys, "last_value") else END)


def create(ranks: Sequence[int] = (), timeout: datetime.timedelta | None = None) -> Any:
    """Return a c10d backend of these ranks of MPI_COMM_WORLD, all if there are none.

    None if this process is not among them. BackendError if this process has no MPI, RuntimeError with MPI's own words.
    """
    found = module()
    prepare(found)
    if not ranks:
        check_world(found, os.environ)
    return found.create(list(ranks), timeout or TIMEOUT)


def world_of_mpi() -> tuple[int, int]:
    """Return how many ranks MPI has, and which of them this one is. BackendError if this process has no MPI."""
    found = module()
    prepare(found)
    return found.world_size(), found.world_rank()


def own_part(store: Any, size: int) -> Any:
    """Return the part of a store that belongs to this group alone. All of its ranks call this.

    A store may outlive a group, as torchrun's does, and the next group of the same name finds the keys of the last one.
    """
    dist = importlib.import_module("torch.distributed")
    number = (store.add("torchfleet/groups", 1) - 1) // size
    return dist.PrefixStore(f"torchfleet/{number}", store)


def create_by_store(store: Any, rank: int, size: int, timeout: datetime.timedelta | None = None) -> Any:
    """Return a c10d backend of a group whose ranks share a store and have numbers of their own, other than MPI's maybe.

    BackendError if this process has no MPI, or the ranks are not those of one MPI; RuntimeError with MPI's own words.
    """
    found = module()
    prepare(found)
    check_launcher(found, os.environ)
    store = own_part(store, size)
    store.set(f"mpi/{rank}", f"{found.world_rank()} of {found.world_size()} {own_torch()}")
    keys = [f"mpi/{other}" for other in range(size)]
    told = store.multi_get(keys) if store.has_extended_api() else [store.get(key) for key in keys]
    places, sizes, torchs = zip(*(text.decode().replace(" of ", " ", 1).split(" ", 2) for text in told), strict=True)
    check_same(torchs)
    ranks = [int(place) for place in places]
    if len(set(ranks)) < size or len(set(sizes)) > 1:
        numbers = ", ".join(f"{place} of {of}" for place, of in zip(places, sizes, strict=True))
        told_of = f"the ranks of this group are no ranks of one MPI, by which they are {numbers}"
        raise BackendError(f"backend mpi: {told_of}: start them all with one mpirun")
    return found.create(ranks, timeout or TIMEOUT)


@functools.cache
def meeting_place() -> Any:
    """Return a store of the whole of MPI_COMM_WORLD, for backends that need one. All ranks call this first."""
    dist, found = importlib.import_module("torch.distributed"), module()
    host = os.environ.get("MASTER_ADDR") or socket.gethostname()
    own = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False) if found.world_rank() == 0 else None
    host, port = found.gather_texts(f"{host} {own.port}" if own else "")[0].split()
    return own or dist.TCPStore(host, int(port), is_master=False)


def recorded() -> bytes:
    """Return what our backends have recorded of collectives in this process: a text of each, with a NUL between.

    Each text is JSON in the form of PyTorch's flight recorder, which cannot see them (PyTorch 2.13). They record if
    TORCH_FR_BUFFER_SIZE is above 0.
    """
    names = [f"{__name__}.{name}" for name in ("_openmpi", "_abi", "_shm", "_group")]
    return b"\0".join(sys.modules[name].recorded() for name in names if name in sys.modules)
