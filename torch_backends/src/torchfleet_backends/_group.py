"""A process group in Python, for a library with few, blocking calls: oneCCL.

The large collectives use the library, in a thread of the group; gloo does messages, gather, scatter and barriers.
"""

from __future__ import annotations

import collections
import datetime
import functools
import json
import os
import time
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from torchfleet_backends._collective import Collective, Row, Tensors, Worker

Opts = Any  # torch's AllreduceOptions and the like
# The types in which a library reduces types that it does not know.
WIDER = {
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
# torch's sum of booleans is "any", its product "all".
OF_BOOLEANS = {"SUM": "MAX", "MAX": "MAX", "BOR": "MAX", "PRODUCT": "MIN", "MIN": "MIN", "BAND": "MIN"}


class Communicator(Protocol):
    """The collectives of a library for a group of ranks. Tensors are dense and on the CPU; calls block until done."""

    name: str  # of the backend
    types: Collection[torch.dtype]  # that it reduces
    operations: Collection[str]

    def all_reduce(self, tensor: torch.Tensor, operation: str) -> None:
        """Reduce in place."""

    def reduce(self, tensor: torch.Tensor, operation: str, root: int) -> torch.Tensor:
        """Return the reduced tensor, which is undefined on ranks other than `root`."""

    def reduce_scatter(self, output: torch.Tensor, given: torch.Tensor, operation: str) -> None:
        """`given` holds the parts of all ranks one after the other."""

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        """Overwrite the tensor on other ranks than `root`."""

    def all_gather(self, output: torch.Tensor, given: torch.Tensor) -> None:
        """`output` takes the parts of all ranks one after the other."""

    def all_to_all(self, output: torch.Tensor, into: Sequence[int], given: torch.Tensor, sizes: Sequence[int]) -> None:
        """`into` and `sizes`: bytes from and for each rank."""

    def destroy(self) -> None:
        """Release this rank's resources."""


# The last collectives of all groups, in the form of PyTorch's flight recorder: read when somebody asks why a job hangs.
RECORD: collections.deque[Row] = collections.deque(maxlen=2000)


@functools.cache
def is_recording() -> bool:
    """Whether the record is wanted, as it was when this was first asked; record.cpp does the same."""
    given = os.environ.get("TORCH_FR_BUFFER_SIZE", os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE", ""))
    return given.isdecimal() and int(given) > 0


def noted(group: str, number: int, name: str, outputs: Tensors) -> Row:
    """Return the row of a collective that is entered, and note it in the record if that is wanted."""
    size, elements = 0, 0
    types: dict[torch.dtype, None] = {}
    for tensor in outputs:
        size, elements, types[tensor.dtype] = size + tensor.nbytes, elements + tensor.numel(), None
    row: Row = {
        "process_group": group.split(" ", 1),
        "collective_seq_id": number,
        "profiling_name": name,
        "bytes": size,
        "time_created_ns": time.time_ns(),
        "time_discovered_completed_ns": 0,
        "retired": False,
        "is_p2p": False,
        "output_sizes": [[elements]],
        "output_dtypes": list(types),
    }
    if is_recording():
        RECORD.append(row)
    return row


def recorded() -> bytes:
    """Return the last collectives of all groups as JSON in the form of PyTorch's flight recorder."""
    return json.dumps({"version": "2.10", "entries": list(RECORD)}, default=recorder_name).encode()


@functools.cache
def recorder_name(dtype: torch.dtype) -> str:
    """Return a type as PyTorch's flight recorder has it: Float, Double, BFloat16."""
    kind: str = torch.empty(0, dtype=dtype, device="cpu").type()
    return kind.rpartition(".")[2].removesuffix("Tensor")


class Group(dist.ProcessGroup):
    """A process group: a library for the large collectives, and gloo, registered as its backend, for the rest."""

    def __init__(self, by: Communicator, store: dist.Store, rank: int, size: int, timeout: datetime.timedelta) -> None:
        """`store`: of this group alone."""
        super().__init__(rank, size)
        gloo = dist.ProcessGroupGloo(dist.PrefixStore("gloo", store), rank, size, timeout)
        self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
        self.timeout, self.done = timeout, 0
        self.by, self.worker = by, Worker(by.destroy)
        weakref.finalize(self, self.worker.close)

    def getBackendName(self) -> str:
        return self.by.name

    def submit(self, name: str, outputs: Tensors, opts: Opts, operation: Callable[[Communicator], None]) -> Collective:
        """Submit an operation. Raise ValueError for tensors that are not dense, not on the CPU, or expanded."""
        for tensor in outputs:
            where = f"{name}: got a tensor on {tensor.device}; give dense tensors on cpu"
            self.refuse_unless(tensor.device.type == "cpu" and tensor.layout == torch.strided, where)
            expanded = any(step == 0 and length > 1 for step, length in zip(tensor.stride(), tensor.shape, strict=True))
            told = f"{name}: got an expanded tensor, of which several elements share memory; give tensor.contiguous()"
            self.refuse_unless(not expanded, told)
        self.done += 1
        group = f"group {self.group_name or 'world'} (rank {self.rank()} of {self.size()})"
        given = opts.timeout if opts.timeout > datetime.timedelta() else self.timeout
        row = noted(f"{self.group_name or 'world'} {self.by.name}", self.done, f"{self.by.name}:{name}", outputs)
        told = f"backend {self.by.name}: {name} number {self.done} of {group}"
        work = Collective(told, outputs, given, row, self.worker)
        self.worker.submit(work, functools.partial(operation, self.by))
        return work

    def allreduce(self, tensors: Tensors, opts: Opts = None) -> Collective:
        """All tensors, each in place."""
        return self.allreduce_coalesced(tensors, opts or dist.AllreduceOptions())

    def allreduce_coalesced(self, tensors: Tensors, opts: Opts = None) -> Collective:
        """All tensors, each in place."""
        opts = opts or dist.AllreduceCoalescedOptions()
        ways = [Reduction(tensor, opts.reduceOp, self.size(), self.by) for tensor in tensors]

        def operation(by: Communicator) -> None:
            for tensor, way in zip(tensors, ways, strict=True):
                buffer = way.buffer_of(tensor)
                if buffer.numel():
                    by.all_reduce(buffer, way.operation)
                way.take(buffer, tensor)

        return self.submit("all_reduce", tensors, opts, operation)

    def reduce(self, tensors: Tensors, opts: Opts = None) -> Collective:
        """One tensor, in place on the root."""
        opts = opts or dist.ReduceOptions()
        (tensor,) = tensors
        way = Reduction(tensor, opts.reduceOp, self.size(), self.by)
        root = self.checked_root(opts.rootRank)
        here = self.rank() == root

        def operation(by: Communicator) -> None:
            buffer = way.buffer_of(tensor)
            reduced = by.reduce(buffer, way.operation, root) if buffer.numel() else buffer
            if here:
                way.take(reduced, tensor)

        return self.submit("reduce", tensors, opts, operation)

    def broadcast(self, tensors: Tensors, opts: Opts = None) -> Collective:
        """One tensor, from the root's."""
        opts = opts or dist.BroadcastOptions()
        (tensor,) = tensors
        root = self.checked_root(opts.rootRank)
        return self.submit("broadcast", tensors, opts, lambda by: spread(by, tensor, root))

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Opts = None) -> Collective:
        """A list of tensors, one of each rank; their sizes may differ."""
        (targets,), (given,) = outputs, inputs
        self.refuse_unless(len(targets) == self.size(), f"all_gather: give a list of {self.size()} tensors")
        me = self.rank()

        def operation(by: Communicator) -> None:
            if all(target.numel() == given.numel() for target in targets):
                whole = given.new_empty((len(targets), given.numel()))
                gather_into(by, whole, given)
                for part, target in zip(whole, targets, strict=True):
                    target.copy_(part.view_as(target))
                return
            targets[me].copy_(given.view_as(targets[me]))
            for root, target in enumerate(targets):
                spread(by, target, root)

        return self.submit("all_gather", targets, opts or dist.AllgatherOptions(), operation)

    def all_gather_single(self, output: torch.Tensor, given: torch.Tensor, opts: Opts = None) -> Collective:
        """One tensor that takes the parts of all ranks."""
        return self.all_gather_single_coalesced([output], [given], opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Opts = None) -> Collective:
        """Several tensors, each of which takes the parts of all ranks."""
        for output, given in zip(outputs, inputs, strict=True):
            told = f"the output has {output.numel()} elements, {self.size()} ranks give {given.numel()} each"
            self.refuse_unless(output.numel() == given.numel() * self.size(), f"all_gather: {told}")

        def operation(by: Communicator) -> None:
            for output, given in zip(outputs, inputs, strict=True):
                gather_into(by, output, given)

        return self.submit("all_gather", outputs, opts or dist.AllgatherOptions(), operation)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Opts = None) -> Collective:
        """A list of parts, one for each rank, all of one size."""
        return self.reduce_scatter_parts(outputs, inputs, opts)

    def reduce_scatter_single(self, output: torch.Tensor, given: torch.Tensor, opts: Opts = None) -> Collective:
        """One tensor with the parts of all ranks."""
        return self.reduce_scatter_single_coalesced([output], [given], opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Opts = None) -> Collective:
        """Several tensors, each with the parts of all ranks."""
        return self.reduce_scatter_parts(outputs, [[given] for given in inputs], opts)

    def reduce_scatter_parts(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Opts) -> Collective:
        """For each output, one tensor or several, together the parts of all ranks."""
        opts = opts or dist.ReduceScatterOptions()
        for output, parts in zip(outputs, inputs, strict=True):
            given = sum(part.numel() for part in parts)
            told = f"the input has {given} elements, the output of each of {self.size()} ranks {output.numel()}"
            self.refuse_unless(output.numel() * self.size() == given, f"reduce_scatter: {told}")
        ways = [Reduction(output, opts.reduceOp, self.size(), self.by) for output in outputs]

        def operation(by: Communicator) -> None:
            for output, parts, way in zip(outputs, inputs, ways, strict=True):
                given = parts[0] if len(parts) == 1 else torch.cat([part.reshape(-1) for part in parts])
                buffer = way.buffer_of(given)
                part = torch.empty_like(way.buffer_of(output))
                if part.numel():
                    by.reduce_scatter(part, buffer, way.operation)
                way.take(part, output)

        return self.submit("reduce_scatter", outputs, opts, operation)

    def all_to_all_single(
        self, output: torch.Tensor, given: torch.Tensor, into: Sequence[int], sizes: Sequence[int], opts: Opts = None
    ) -> Collective:
        """`into` and `sizes`: what comes from and goes to each rank, along the first dimension; empty: equal parts."""
        return self.alltoall(self.parts_of(output, into), self.parts_of(given, sizes), opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Opts = None) -> Collective:
        """A list of what goes to, and one of what comes from each rank."""
        good = len(outputs) == len(inputs) == self.size()
        self.refuse_unless(good, f"all_to_all: give {self.size()} tensors to send, and as many to receive")

        def operation(by: Communicator) -> None:
            whole = torch.cat([as_bytes(part) for part in inputs])
            into = [target.nbytes for target in outputs]
            output = torch.empty(sum(into), dtype=torch.uint8)
            by.all_to_all(output, into, whole, [part.nbytes for part in inputs])
            for target, part in zip(outputs, output.split(into), strict=True):
                target.copy_(part.view(target.dtype).view_as(target))

        return self.submit("all_to_all", outputs, opts or dist.AllToAllOptions(), operation)

    def parts_of(self, tensor: torch.Tensor, sizes: Sequence[int]) -> Tensors:
        """Return the parts of a tensor along its first dimension: equal ones if no sizes are given."""
        told = f"the first dimension is {len(tensor)}, no multiple of {self.size()} ranks; give split sizes"
        self.refuse_unless(bool(sizes) or len(tensor) % self.size() == 0, f"all_to_all: {told}")
        parts: Tensors = tensor.split(list(sizes)) if sizes else tensor.chunk(self.size())
        return parts

    def checked_root(self, root: int) -> int:
        """Return a rank of the group. ValueError for one that does not exist: PyTorch does not look."""
        self.refuse_unless(0 <= root < self.size(), f"got root {root}; give a rank from 0 to {self.size() - 1}")
        return root

    def refuse_unless(self, good: bool, told: str) -> None:
        """Raise ValueError with the name of the backend."""
        refuse_unless(good, f"backend {self.by.name}: {told}")

    # torch before 2.12 uses these names
    alltoall_base = all_to_all_single
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced


class Reduction:
    """How a library reduces a tensor: the type, the operation, and the remaining step."""

    def __init__(self, tensor: torch.Tensor, asked: Any, size: int, by: Communicator) -> None:
        """Raise ValueError for unsupported cases: MIN of complex numbers, bitwise ones of floats, AVG of integers."""
        self.name = next(name for name, kind in dist.ReduceOp.RedOpType.__members__.items() if asked == kind)
        self.operation = "SUM" if self.name == "AVG" else self.name
        self.size, self.split = size, tensor.is_complex() and self.operation == "SUM"
        self.type = tensor.dtype if tensor.dtype in by.types or self.split else WIDER.get(tensor.dtype)
        if tensor.dtype == torch.bool:
            self.operation = OF_BOOLEANS.get(self.name, "")
        known = self.type is not None and self.operation in by.operations
        known = known and not (self.operation.startswith("B") and tensor.is_floating_point())
        known = known and (self.name != "AVG" or tensor.is_floating_point() or tensor.is_complex())
        told = f"{self.name} of {str(tensor.dtype).rpartition('.')[2]} is not supported"
        refuse_unless(known, f"backend {by.name}: {told}")

    def buffer_of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the library's buffer: a dense tensor, the given one if it fits."""
        return (torch.view_as_real(tensor) if self.split else tensor.to(self.type)).contiguous()

    def take(self, buffer: torch.Tensor, tensor: torch.Tensor) -> None:
        """Copy the result into the tensor."""
        if self.name == "AVG":
            buffer.div_(self.size)
        if buffer.data_ptr() != tensor.data_ptr() or not tensor.is_contiguous():
            tensor.copy_(torch.view_as_complex(buffer) if self.split else buffer.view_as(tensor))


def refuse_unless(good: bool, told: str) -> None:
    """ValueError."""
    if not good:
        raise ValueError(told)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return a flat tensor of bytes: a view of a dense one."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def spread(by: Communicator, tensor: torch.Tensor, root: int) -> None:
    """Broadcast a tensor that may not be contiguous."""
    buffer = tensor.contiguous()
    if buffer.numel():
        by.broadcast(buffer, root)
    if buffer is not tensor:
        tensor.copy_(buffer)


def gather_into(by: Communicator, output: torch.Tensor, given: torch.Tensor) -> None:
    """All-gather into a tensor of which `given` may be a part, which libraries do not allow."""
    buffer = output.contiguous()
    if buffer.numel():
        by.all_gather(buffer, given.clone(memory_format=torch.contiguous_format))
    if buffer is not output:
        output.copy_(buffer)
