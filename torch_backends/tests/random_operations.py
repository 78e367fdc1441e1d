"""Random operations of torch.distributed, and what each rank must find, worked out by torch alone.

An operation has a room of its own in the memory of its batch. At the end all of that memory is compared, once for many
operations: results, what must not change, and what lies between. Used by random_batches.py and random_worlds.py.
"""

from __future__ import annotations

import functools
import os
import random
import re
from collections.abc import Callable, Iterable, Sequence
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
OPS = {name: getattr(dist.ReduceOp, name) for name in REDUCTIONS}
FORMS = ["whole", "gaps", "shared"]  # how tensors lie in memory: in one piece, every other element, shared by the ranks
LENGTH = 1_000_000  # elements of one type and form that a batch has at most
SPARE = 200_000  # of these, which no large operation takes: many small ones need them
WINDOW = 64  # places at which the values of a batch may begin
# Most elements of an operation, and how often that is, of 10,000: most often few, on both sides of where the way
# through shared memory changes.
COUNTS = [(64, 9000), (5000, 900), (40_000, 85), (120_000, 13), (400_000, 2)]
MOST_OF = [most + 1 for most, often in COUNTS for _number in range(often)]
CPU = torch.device("cpu")


class Asked(NamedTuple):
    """What a rank asks for."""

    kind: str
    dtype: torch.dtype
    count: int  # elements of one part
    root: int  # its place in the group; of a message, the sender's
    reduction: str
    form: str


class Here(NamedTuple):
    """A rank in a group."""

    group: dist.ProcessGroup
    ranks: Sequence[int]  # of the group, by their place in it
    place: int
    number: int  # of the operation
    later: bool  # whether it is asynchronous


@functools.cache
def source(dtype: torch.dtype, rank: int) -> torch.Tensor:
    """Return what a rank brings: small whole numbers without a period, of bool both values.

    Every type holds them and adds them exactly, and the mean of up to four is a whole number.
    """
    chance = torch.Generator().manual_seed(rank)
    numbers = torch.randint(1, 8, (LENGTH + WINDOW,), generator=chance, dtype=torch.int16)
    if dtype == torch.bool:
        return numbers > 3
    if dtype in COMPLEX:
        return torch.complex(12 * numbers.float(), 12 * numbers.flip(0).float()).to(dtype)
    return (12 * numbers if dtype in FLOATS else numbers).to(dtype)


Bytes = Callable[[str, int], torch.Tensor]  # so many bytes of a form


class Memory:
    """The memory of one type and form in a batch: what is there now, and what must be there at its end."""

    def __init__(self, dtype: torch.dtype, form: str, length: int, first: int, own: int, new: Bytes) -> None:
        step = 2 if form == "gaps" else 1
        self.dtype, self.first = dtype, first
        self.all_now, self.all_must = (new(of, step * length * dtype.itemsize).view(dtype) for of in (form, "must"))
        self.now, self.must = self.all_now[::step], self.all_must[::step]
        given = source(dtype, own)[first : first + length]
        for one in range(step):
            self.all_now[one::step], self.all_must[one::step] = given, given

    def is_right(self) -> bool:
        return torch.equal(self.all_now, self.all_must)


class Room(NamedTuple):
    """The part of a memory that an operation has."""

    memory: Memory
    at: int
    ranks: Sequence[int]  # of the group
    size: int  # of the group

    def part(self, at: int, count: int) -> torch.Tensor:
        return self.memory.now.narrow(0, self.at + at, count)

    def parts(self, at: int, counts: Iterable[int]) -> list[torch.Tensor]:
        found = []
        for count in counts:
            found.append(self.part(at, count))
            at += count
        return found

    def values(self, of: int, at: int, count: int) -> torch.Tensor:
        """Return what the rank at place `of` brings there."""
        return source(self.memory.dtype, self.ranks[of]).narrow(0, self.memory.first + self.at + at, count)

    def reduced(self, asked: Asked, at: int, count: int) -> torch.Tensor:
        """Return what all together make of it, in the order of their places."""
        parts = [self.values(of, at, count) for of in range(self.size)]
        whole = functools.reduce(REDUCTIONS[asked.reduction], parts)
        return whole / self.size if asked.reduction == "AVG" else whole

    def expect(self, at: int, values: torch.Tensor) -> None:
        self.memory.must.narrow(0, self.at + at, len(values)).copy_(values)

    def expect_of(self, of: int, at: int, count: int, into: int) -> None:
        """Expect there what the rank at place `of` brings at another place."""
        self.expect(into, self.values(of, at, count))

    def is_right(self, elements: int) -> bool:
        now, must = (of.narrow(0, self.at, elements) for of in (self.memory.now, self.memory.must))
        return torch.equal(now, must)


Ask = Callable[[Asked, Here, Room], "dist.Work | None"]
KINDS: dict[str, Ask] = {}
ROOTED = {"reduce", "broadcast", "gather", "scatter"}
REDUCING = {"all_reduce", "all_reduce_coalesced", "reduce", "reduce_scatter", "reduce_scatter_single"}
NARROW = {"all_reduce", "reduce", "broadcast", "message"}  # the room has one part, and not some of each rank
IN_ONE_PIECE = {"gather", "scatter", "all_to_all", "all_to_all_single", "message"}  # what shm leaves to gloo
# What is one operation to the backend, though PyTorch has several names for it.
SAME = {
    "all_gather_into_tensor": "all_gather",
    "all_to_all_single": "all_to_all",
    "reduce_scatter_single": "reduce_scatter",
}


def kind(function: Ask) -> Ask:
    KINDS[function.__name__] = function
    return function


def elements_of(asked: Asked, size: int) -> int:
    """Return the elements of an operation's room."""
    if asked.kind in NARROW:
        return asked.count
    return 0 if asked.kind == "barrier" else 2 * size * (asked.count + size)


@kind
def all_reduce(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    room.expect(0, room.reduced(asked, 0, asked.count))
    return dist.all_reduce(room.part(0, asked.count), OPS[asked.reduction], here.group, here.later)


@kind
def all_reduce_coalesced(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    counts = [asked.count, asked.count // 2]
    room.expect(0, room.reduced(asked, 0, sum(counts)))
    return dist.all_reduce_coalesced(room.parts(0, counts), OPS[asked.reduction], here.group, here.later)


@kind
def reduce(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    if here.place == asked.root:
        room.expect(0, room.reduced(asked, 0, asked.count))
    tensor = room.part(0, asked.count)
    return dist.reduce(tensor, here.ranks[asked.root], OPS[asked.reduction], here.group, here.later)


@kind
def broadcast(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    room.expect_of(asked.root, 0, asked.count, 0)
    return dist.broadcast(room.part(0, asked.count), here.ranks[asked.root], here.group, here.later)


@kind
def all_gather(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    for of in range(room.size):
        room.expect_of(of, 0, asked.count, (of + 1) * asked.count)
    output = room.parts(asked.count, [asked.count] * room.size)
    return dist.all_gather(output, room.part(0, asked.count), here.group, here.later)


@kind
def all_gather_into_tensor(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    for of in range(room.size):
        room.expect_of(of, 0, asked.count, (of + 1) * asked.count)
    output = room.part(asked.count, room.size * asked.count)
    return dist.all_gather_into_tensor(output, room.part(0, asked.count), here.group, here.later)


@kind
def all_gather_of_unequal_parts(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    counts = [asked.count + of for of in range(room.size)]
    output = room.parts(counts[-1], counts)
    for of, count in enumerate(counts):
        room.expect_of(of, 0, count, counts[-1] + sum(counts[:of]))
    return dist.all_gather(output, room.part(0, counts[here.place]), here.group, here.later)


def expect_reduced_part(asked: Asked, here: Here, room: Room) -> tuple[torch.Tensor, int]:
    """Return where the part of a reduce_scatter comes, and the elements before it."""
    whole = asked.count * room.size
    room.expect(whole, room.reduced(asked, asked.count * here.place, asked.count))
    return room.part(whole, asked.count), whole


@kind
def reduce_scatter(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    output, _whole = expect_reduced_part(asked, here, room)
    given = room.parts(0, [asked.count] * room.size)
    return dist.reduce_scatter(output, given, OPS[asked.reduction], here.group, here.later)


@kind
def reduce_scatter_single(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    output, whole = expect_reduced_part(asked, here, room)
    given = room.part(0, whole)
    return dist.reduce_scatter_tensor(output, given, OPS[asked.reduction], here.group, here.later)


@kind
def gather(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    output = None
    if here.place == asked.root:
        output = room.parts(asked.count, [asked.count] * room.size)
        for of in range(room.size):
            room.expect_of(of, 0, asked.count, (of + 1) * asked.count)
    return dist.gather(room.part(0, asked.count), output, here.ranks[asked.root], here.group, here.later)


@kind
def scatter(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    whole = asked.count * room.size
    given = room.parts(0, [asked.count] * room.size) if here.place == asked.root else None
    room.expect_of(asked.root, asked.count * here.place, asked.count, whole)
    return dist.scatter(room.part(whole, asked.count), given, here.ranks[asked.root], here.group, here.later)


def sent(asked: Asked, sender: int, receiver: int) -> int:
    """Return how many elements a rank sends to another in an all_to_all with parts of unequal sizes."""
    return asked.count + (2 * sender + receiver) % 3


def expect_exchanged(asked: Asked, here: Here, room: Room) -> tuple[list[int], list[int], int]:
    """Return how many elements this rank sends to each and receives of each, and where what it receives begins."""
    everybody = range(room.size)
    sends, receives = ([sent(asked, *pair) for pair in pairs] for pairs in _pairs(here.place, everybody))
    for of in everybody:
        before = sum(sent(asked, of, earlier) for earlier in range(here.place))
        room.expect_of(of, before, receives[of], sum(sends) + sum(receives[:of]))
    return sends, receives, sum(sends)


def _pairs(place: int, everybody: Iterable[int]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    return [(place, of) for of in everybody], [(of, place) for of in everybody]


@kind
def all_to_all(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    sends, receives, at = expect_exchanged(asked, here, room)
    return dist.all_to_all(room.parts(at, receives), room.parts(0, sends), here.group, here.later)


@kind
def all_to_all_single(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    sends, receives, at = expect_exchanged(asked, here, room)
    output, given = room.part(at, sum(receives)), room.part(0, at)
    return dist.all_to_all_single(output, given, receives, sends, here.group, here.later)


@kind
def barrier(_asked: Asked, here: Here, _room: Room) -> dist.Work | None:
    return dist.barrier(here.group, here.later)


@kind
def message(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    sender, receiver = asked.root, (asked.root + 1) % room.size
    tensor, tag = room.part(0, asked.count), here.number % 5
    if here.place == sender:
        send = dist.isend if here.later else dist.send
        return send(tensor, here.ranks[receiver], here.group, tag)
    if here.place != receiver:
        return None
    room.expect_of(sender, 0, asked.count, 0)
    if here.later:
        return dist.irecv(tensor, here.ranks[sender], here.group, tag)
    dist.recv(tensor, here.ranks[sender], here.group, tag)
    return None


def begin(asked: Asked, here: Here, room: Room) -> dist.Work | None:
    """Ask for an operation. None: it is over. Whatever torch raises."""
    return KINDS[asked.kind](asked, here, room)


def offered(dtype: torch.dtype) -> list[str]:
    """Return the reductions of a type."""
    if dtype in COMPLEX:
        return ["SUM", "AVG"]  # torch itself refuses others
    bitwise = [] if dtype in FLOATS else ["BAND", "BOR", "BXOR"]
    # Short floats round products. On several nodes gloo multiplies them in an order of its own.
    product = (
        [] if dtype in (torch.float16, torch.bfloat16) and "TORCHFLEET_SHM_NODE_RANKS" in os.environ else ["PRODUCT"]
    )
    return ["SUM", *product, "MIN", "MAX", *(["AVG"] if dtype in FLOATS else []), *bitwise]


NAMES = list(KINDS)
# What shm leaves to gloo takes ten times as long as the others.
OFTEN = {"shm": [name for name in NAMES for _number in range(1 if name in IN_ONE_PIECE else 16)], "mpi": NAMES}
OFFERED = {dtype: offered(dtype) for dtype in TYPES}


def asked_by(drawn: Sequence[int], dtypes: Sequence[torch.dtype], size: int, kinds: Sequence[str]) -> Asked:
    """Return what all ranks of a group may ask for, by seven random numbers."""
    one, dtype = kinds[drawn[0] % len(kinds)], dtypes[drawn[1] % len(dtypes)]
    form = FORMS[drawn[6] % 3]
    reductions = OFFERED[dtype]
    return Asked(
        one,
        dtype,
        drawn[3] % MOST_OF[drawn[2] % 10_000],
        drawn[4] % size,
        reductions[drawn[5] % len(reductions)],
        "whole" if form == "gaps" and one in IN_ONE_PIECE else form,
    )


def fitting(asked: Asked, size: int, used: int = 0) -> Asked:
    """Return this, or the same with few elements if there is not so much room besides what is used."""
    fits = used + elements_of(asked, size) <= LENGTH - SPARE
    return asked if fits else asked._replace(count=asked.count % 65)


def random_asked(chance: random.Random, size: int, kinds: Sequence[str] = NAMES) -> Asked:
    """Return something that all ranks of a group may ask for. `kinds`: one of these."""
    return fitting(asked_by([chance.getrandbits(30) for _number in range(7)], TYPES, size, kinds), size)


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
        other = fitting(asked._replace(**{what: getattr(fresh, what)}), size)
        if other.reduction not in offered(other.dtype):
            other = other._replace(reduction="SUM")
        if other.kind in IN_ONE_PIECE:
            other = other._replace(form="whole")
    return other


def described(asked: Asked) -> str:
    return re.sub(r"torch\.|Asked", "", str(asked))
