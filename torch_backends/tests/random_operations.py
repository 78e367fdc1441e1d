"""Random operations of torch.distributed, and what each rank must find, worked out by torch alone.

Used by random_worlds.py.
"""

from __future__ import annotations

import functools
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
TYPES = [*FLOATS, *INTEGERS, *COMPLEX, torch.bool]
REDUCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
MOST = 400_000  # elements of a part
WINDOW = 64  # places at which the values of a rank may begin
CPU = torch.device("cpu")


class Asked(NamedTuple):
    """What a rank asks for."""

    kind: str
    dtype: torch.dtype
    count: int  # elements of one part
    root: int  # its place in the group; of a message, the sender's
    reduction: str
    form: str  # how a tensor that is reduced or broadcast lies in memory: "whole", "gaps", "shared"


@dataclass(frozen=True)
class Here:
    """A rank in a group."""

    group: dist.ProcessGroup
    ranks: Sequence[int]  # of the group, by their place in it
    place: int
    number: int  # of the operation: no two in a row have the same values
    later: bool  # whether it is asynchronous


class Begun(NamedTuple):
    """An operation that was asked for."""

    work: dist.Work | None  # None: it is over
    is_right: Callable[[], bool]  # whether what this rank has now is what it must have


Ask = Callable[[Asked, Here], tuple[dist.Work | None, Callable[[], bool]]]
KINDS: dict[str, Ask] = {}
ROOTED = {"reduce", "broadcast", "gather", "scatter"}
REDUCING = {"all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single"}
# What is one operation to the backend, though PyTorch has several names for it.
SAME = {
    "all_gather_into_tensor": "all_gather",
    "all_to_all_single": "all_to_all",
    "reduce_scatter_single": "reduce_scatter",
}


def kind(function: Ask) -> Ask:
    KINDS[function.__name__] = function
    return function


@functools.cache
def source(dtype: torch.dtype) -> torch.Tensor:
    """Return small whole numbers without a period, which every type holds and adds exactly; of bool, both values."""
    numbers = torch.randint(1, 4, (3 * MOST + 3 * WINDOW,), generator=torch.Generator().manual_seed(5))
    return (numbers % 2).bool() if dtype == torch.bool else numbers.to(dtype)


def values(asked: Asked, here: Here, of: int, count: int) -> torch.Tensor:
    """Return what the rank at place `of` brings."""
    first = (17 * here.number + 23 * of) % WINDOW
    return source(asked.dtype)[first : first + count]


def reduced(asked: Asked, here: Here, count: int) -> torch.Tensor:
    """Return what all together make of it, in the order of their places."""
    parts = [values(asked, here, of, count) for of in range(len(here.ranks))]
    whole = functools.reduce(REDUCTIONS[asked.reduction], parts)
    return whole / len(parts) if asked.reduction == "AVG" else whole


def agrees(asked: Asked, found: torch.Tensor, expected: torch.Tensor) -> bool:
    """Say whether they are equal; a mean of 16-bit floats is rounded."""
    if asked.reduction == "AVG" and asked.kind in REDUCING:
        return torch.allclose(found, expected.to(found.dtype), rtol=1e-2)
    return torch.equal(found, expected)


def all_agree(asked: Asked, found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    return all(agrees(asked, one, other) for one, other in zip(found, expected, strict=True))


def formed(asked: Asked, here: Here, of: torch.Tensor) -> torch.Tensor:
    """Return a tensor with these values that lies in memory as is asked for."""
    if asked.form == "gaps":
        return torch.stack([of, of], 1)[:, 0]
    backend = here.group._get_backend(CPU)
    if asked.form == "shared" and backend.supports_tensor_alloc(CPU):
        return backend.allocate_tensor(len(of), dtype=asked.dtype, device=CPU).copy_(of)
    return of.clone()


def own(asked: Asked, here: Here, count: int | None = None) -> torch.Tensor:
    given = values(asked, here, here.place, asked.count if count is None else count)
    return formed(asked, here, given)


def op_of(asked: Asked) -> dist.ReduceOp:
    return getattr(dist.ReduceOp, asked.reduction)


def empty(asked: Asked, *counts: int) -> list[torch.Tensor]:
    return [torch.zeros(count, dtype=asked.dtype) for count in counts]


@kind
def all_reduce(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    tensor = own(asked, here)
    work = dist.all_reduce(tensor, op_of(asked), here.group, here.later)
    return work, lambda: agrees(asked, tensor, reduced(asked, here, asked.count))


@kind
def all_reduce_coalesced(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    counts = [asked.count, asked.count // 2]
    tensors = [own(asked, here, count) for count in counts]
    work = dist.all_reduce_coalesced(tensors, op_of(asked), here.group, here.later)
    return work, lambda: all_agree(asked, tensors, [reduced(asked, here, count) for count in counts])


@kind
def reduce(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    tensor = own(asked, here)
    work = dist.reduce(tensor, here.ranks[asked.root], op_of(asked), here.group, here.later)
    if here.place == asked.root:
        return work, lambda: agrees(asked, tensor, reduced(asked, here, asked.count))
    return work, lambda: torch.equal(tensor, values(asked, here, here.place, asked.count))


@kind
def broadcast(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    tensor = own(asked, here)
    work = dist.broadcast(tensor, here.ranks[asked.root], here.group, here.later)
    return work, lambda: torch.equal(tensor, values(asked, here, asked.root, asked.count))


@kind
def all_gather(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    size = len(here.ranks)
    output = empty(asked, *[asked.count] * size)
    work = dist.all_gather(output, own(asked, here), here.group, here.later)
    return work, lambda: all_agree(asked, output, [values(asked, here, of, asked.count) for of in range(size)])


@kind
def all_gather_into_tensor(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    size = len(here.ranks)
    (output,) = empty(asked, asked.count * size)
    work = dist.all_gather_into_tensor(output, own(asked, here), here.group, here.later)
    return work, lambda: torch.equal(output, torch.cat([values(asked, here, of, asked.count) for of in range(size)]))


@kind
def all_gather_of_unequal_parts(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    counts = [asked.count + of for of in range(len(here.ranks))]
    output = empty(asked, *counts)
    work = dist.all_gather(output, own(asked, here, counts[here.place]), here.group, here.later)
    return work, lambda: all_agree(asked, output, [values(asked, here, of, count) for of, count in enumerate(counts)])


@kind
def reduce_scatter(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    size, (output,) = len(here.ranks), empty(asked, asked.count)
    given = list(own(asked, here, asked.count * size).split(asked.count)) if asked.count else empty(asked, *[0] * size)
    work = dist.reduce_scatter(output, given, op_of(asked), here.group, here.later)
    first = asked.count * here.place
    whole = functools.partial(reduced, asked, here, asked.count * size)
    return work, lambda: agrees(asked, output, whole()[first : first + asked.count])


@kind
def reduce_scatter_single(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    size, (output,) = len(here.ranks), empty(asked, asked.count)
    work = dist.reduce_scatter_tensor(
        output, own(asked, here, asked.count * size), op_of(asked), here.group, here.later
    )
    first = asked.count * here.place
    whole = functools.partial(reduced, asked, here, asked.count * size)
    return work, lambda: agrees(asked, output, whole()[first : first + asked.count])


@kind
def gather(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    size, root = len(here.ranks), here.ranks[asked.root]
    output = empty(asked, *[asked.count] * size) if here.place == asked.root else []
    work = dist.gather(own(asked, here), output or None, root, here.group, here.later)
    expected = [values(asked, here, of, asked.count) for of in range(len(output))]
    return work, lambda: all_agree(asked, output, expected)


@kind
def scatter(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    size, (output,) = len(here.ranks), empty(asked, asked.count)
    whole = values(asked, here, asked.root, asked.count * size)
    given = [whole[asked.count * of :][: asked.count].clone() for of in range(size)]
    sent = given if here.place == asked.root else None
    work = dist.scatter(output, sent, here.ranks[asked.root], here.group, here.later)
    return work, lambda: torch.equal(output, given[here.place])


def sent(asked: Asked, sender: int, receiver: int) -> int:
    """Return how many elements a rank sends to another in an all_to_all with parts of unequal sizes."""
    return asked.count + (2 * sender + receiver) % 3


def exchanged(asked: Asked, here: Here) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return what this rank sends to each, and what it must receive from each."""
    everybody = range(len(here.ranks))
    sends = [values(asked, here, here.place, sent(asked, here.place, of)).clone() for of in everybody]
    return sends, [values(asked, here, of, sent(asked, of, here.place)) for of in everybody]


@kind
def all_to_all(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    sends, expected = exchanged(asked, here)
    output = empty(asked, *map(len, expected))
    work = dist.all_to_all(output, sends, here.group, here.later)
    return work, lambda: all_agree(asked, output, expected)


@kind
def all_to_all_single(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    sends, expected = exchanged(asked, here)
    into, counts = [len(part) for part in expected], [len(part) for part in sends]
    (output,) = empty(asked, sum(into))
    work = dist.all_to_all_single(output, torch.cat(sends), into, counts, here.group, here.later)
    return work, lambda: torch.equal(output, torch.cat(expected))


@kind
def barrier(_asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    return dist.barrier(here.group, here.later), lambda: True


@kind
def message(asked: Asked, here: Here) -> tuple[dist.Work | None, Callable[[], bool]]:
    sender, receiver = asked.root, (asked.root + 1) % len(here.ranks)
    if here.place == sender:
        given = values(asked, here, sender, asked.count).clone()
        send = dist.isend if here.later else dist.send
        return send(given, here.ranks[receiver], here.group, here.number % 5), lambda: True
    if here.place != receiver:
        return None, lambda: True
    (output,) = empty(asked, asked.count)
    receive = dist.irecv if here.later else dist.recv
    work = receive(output, here.ranks[sender], here.group, here.number % 5)
    is_right = functools.partial(torch.equal, output, values(asked, here, sender, asked.count))
    return (work if here.later else None), is_right


def begin(asked: Asked, here: Here) -> Begun:
    """Ask for an operation. Whatever torch raises."""
    return Begun(*KINDS[asked.kind](asked, here))


def offered(dtype: torch.dtype) -> list[str]:
    """Return the reductions of a type."""
    if dtype in COMPLEX:
        return ["SUM", "AVG"]  # torch itself refuses others
    bitwise = [] if dtype in FLOATS else ["BAND", "BOR", "BXOR"]
    return ["SUM", "PRODUCT", "MIN", "MAX", *(["AVG"] if dtype in FLOATS else []), *bitwise]


def random_count(chance: random.Random) -> int:
    """Return a number of elements: most often few, on both sides of where the way through shared memory changes."""
    most = chance.choices([64, 5000, 40_000, 120_000, MOST], [800, 150, 40, 8, 2])[0]
    return chance.randint(0, most)


def random_asked(chance: random.Random, size: int, kinds: Sequence[str] = ()) -> Asked:
    """Return something that all ranks of a group may ask for. `kinds`: one of these; empty: of all."""
    dtype = chance.choice(TYPES)
    return Asked(
        chance.choice(list(kinds) or list(KINDS)),
        dtype,
        random_count(chance),
        chance.randrange(size),
        chance.choice(offered(dtype)),
        chance.choice(["whole", "whole", "gaps", "shared"]),
    )


def differs(one: Asked, other: Asked) -> bool:
    """Say whether ranks that ask for these ask for different things."""
    if SAME.get(one.kind, one.kind) != SAME.get(other.kind, other.kind):
        return True
    if one.kind == "barrier":
        return False
    same_root = one.kind not in ROOTED or one.root == other.root
    same_reduction = one.kind not in REDUCING or one.reduction == other.reduction
    return not (one.dtype == other.dtype and one.count == other.count and same_root and same_reduction)


def another(chance: random.Random, asked: Asked, size: int) -> Asked:
    """Return something that differs from what the others ask for in one respect."""
    other = asked
    while not differs(asked, other):
        what = chance.choice(["kind", "dtype", "count", "root", "reduction"])
        fresh = random_asked(chance, size, [name for name in KINDS if name != "message"])
        other = asked._replace(**{what: getattr(fresh, what)})
        if other.reduction not in offered(other.dtype):
            other = other._replace(reduction="SUM")
    return other


def described(asked: Asked) -> str:
    return re.sub(r"torch\.|Asked", "", str(asked))
