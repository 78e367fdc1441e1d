"""oneCCL's C API on CPU buffers, through ctypes: nothing is compiled.

The library is the one that a job on Intel's GPUs loads; its CPU plug-in takes a null stream for host memory (ccl.h of
oneCCL 2022.1). It reaches the other ranks over libfabric, without MPI, so it works with every launcher.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from torchfleet_backends import BackendError

LIBRARY_VARIABLE = "TORCHFLEET_CCL_LIBRARY"  # the path of libccl.so.2, where it would not be found
# In this order, for all to see: the second is wanted by the third, and that by the first, each by its bare name.
LIBRARIES = ("libccl.so.2", "libccl.so.1", "libccl_legacy_cpu.so")
TYPES = {
    torch.int8: 0,
    torch.uint8: 1,
    torch.int32: 2,
    torch.uint32: 3,
    torch.int64: 4,
    torch.uint64: 5,
    torch.float16: 6,
    torch.float32: 7,
    torch.float64: 8,
    torch.bfloat16: 9,
}
OPERATIONS = {"SUM": 0, "PRODUCT": 1, "MAX": 2, "MIN": 3}
BYTES = TYPES[torch.uint8]
# What the library must know before it is loaded. What the user has set stays.
SETTINGS = {
    "CCL_PLUGIN": "ONECCL_LEGACY_CPU",
    "CCL_ATL_TRANSPORT": "ofi",
    "CCL_PROCESS_LAUNCHER": "none",
    "CCL_LOG_LEVEL": "error",
}


OWN = Path(__file__).with_name("oneccl")


class Id(ctypes.Structure):
    """onecclUniqueId: shared by the ranks that form a communicator."""

    _fields_ = (("data", ctypes.c_byte * 4096),)


def find() -> Path | None:
    """Return the path of libccl.so.2: where the user says, in oneAPI's tree, or as it came with this package."""
    given = [Path(os.environ[LIBRARY_VARIABLE])] if LIBRARY_VARIABLE in os.environ else []
    tree = [Path(os.environ["CCL_ROOT"], "lib", LIBRARIES[0])] if "CCL_ROOT" in os.environ else []
    return next((path for path in [*given, *tree, OWN / LIBRARIES[0]] if path.exists()), None)


@functools.cache
def load() -> ctypes.CDLL:
    """Return the library. Raise BackendError if it is missing."""
    found = find()
    if found is None:
        told = f'{LIBRARIES[0]} is missing: ansible-playbook setup.yml -e \'{{"backends": ["ccl"]}}\' installs it'
        raise BackendError(f"backend ccl: {told}, or set {LIBRARY_VARIABLE} or CCL_ROOT")
    fabric = found.with_name("libfabric.so.1")
    beside = {"CCL_OFI_LIBRARY_PATH": str(fabric), "FI_PROVIDER_PATH": str(fabric.parent)} if fabric.exists() else {}
    for name, value in {**SETTINGS, **beside}.items():
        os.environ.setdefault(name, value)
    try:
        library, *_others = [ctypes.CDLL(str(found.with_name(name)), mode=ctypes.RTLD_GLOBAL) for name in LIBRARIES]
    except OSError as error:
        raise BackendError(f"backend ccl: {error}") from None
    library.onecclGetLastError.restype = ctypes.c_char_p
    return library


def pointer(tensor: torch.Tensor) -> ctypes.c_void_p:
    """Return the address of a tensor's elements."""
    return ctypes.c_void_p(tensor.data_ptr())


def counts(numbers: Sequence[int]) -> ctypes.Array[ctypes.c_size_t]:
    """Return numbers as a C array."""
    return (ctypes.c_size_t * len(numbers))(*numbers)


def unique_id(library: ctypes.CDLL) -> bytes:
    """Return the unique id that the ranks of a new communicator share."""
    made = Id()
    check(library, library.onecclGetUniqueId(ctypes.byref(made)), "onecclGetUniqueId", None)
    return bytes(made)


def check(library: ctypes.CDLL, status: int, call: str, comm: ctypes.c_void_p | None) -> None:
    """Raise RuntimeError with oneCCL's error text if a call failed."""
    if status != 0:
        told = library.onecclGetLastError(comm)
        raise RuntimeError(f"backend ccl: {call}: {told.decode(errors='replace') if told else f'status {status}'}")


class Communicator:
    """Collectives of a group of ranks, an implementation of _group.Communicator."""

    name = "ccl"
    types: Collection[torch.dtype] = TYPES.keys()
    operations: Collection[str] = OPERATIONS.keys()

    def __init__(self, library: ctypes.CDLL, shared: bytes, rank: int, size: int) -> None:
        self.library, self.comm = library, ctypes.c_void_p()
        given = Id.from_buffer_copy(shared)
        self.call("onecclCommInitRank", ctypes.byref(self.comm), ctypes.c_size_t(size), given, rank, last=())

    def call(self, name: str, *words: object, last: Sequence[object] | None = None) -> None:
        """Call a function of the library, its last two arguments the communicator and no stream. RuntimeError."""
        last = (self.comm, None) if last is None else last
        check(self.library, getattr(self.library, name)(*words, *last), name, self.comm)

    def all_reduce(self, tensor: torch.Tensor, operation: str) -> None:
        here = pointer(tensor)
        kind, how = TYPES[tensor.dtype], OPERATIONS[operation]
        self.call("onecclAllReduce", here, here, ctypes.c_size_t(tensor.numel()), kind, how)

    def reduce(self, tensor: torch.Tensor, operation: str, root: int) -> torch.Tensor:
        output = torch.empty_like(tensor)
        kind, how = TYPES[tensor.dtype], OPERATIONS[operation]
        count = ctypes.c_size_t(tensor.numel())
        self.call("onecclReduce", pointer(tensor), pointer(output), count, kind, how, root)
        return output

    def reduce_scatter(self, output: torch.Tensor, given: torch.Tensor, operation: str) -> None:
        kind, how = TYPES[output.dtype], OPERATIONS[operation]
        count = ctypes.c_size_t(output.numel())
        self.call("onecclReduceScatter", pointer(given), pointer(output), count, kind, how)

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        here = pointer(tensor)
        self.call("onecclBroadcast", here, here, ctypes.c_size_t(tensor.nbytes), BYTES, root)

    def all_gather(self, output: torch.Tensor, given: torch.Tensor) -> None:
        self.call("onecclAllGather", pointer(given), pointer(output), ctypes.c_size_t(given.nbytes), BYTES)

    def all_to_all(self, output: torch.Tensor, into: Sequence[int], given: torch.Tensor, sizes: Sequence[int]) -> None:
        words = (pointer(given), counts(sizes), pointer(output), counts(into))
        self.call("onecclAllToAllV", *words, BYTES)

    def destroy(self) -> None:
        self.library.onecclCommDestroy(self.comm)
