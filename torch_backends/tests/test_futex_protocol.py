"""The protocol of csrc/shared.cpp, checked in every interleaving of 2 and of 3 ranks.

Two models. The first has the single steps of `publish` and `await`, without the time limit of a nap: a wake-up that is
lost is a deadlock. It starts below the wrap of the 32-bit counters. The second takes both as atomic, which the first
one proves, and has the slots: each read must find what the operation wrote, whatever operations follow each other.

Steps are taken one after the other, as sequentially consistent atomics are. Data is ordered by the marks: their stores
release it, their loads acquire it. What the models leave out: deadlines, failures, tensors that are reduced in place.
"""

import enum
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

CODE = Path(__file__).parent.parent / "csrc"
WRAP = 1 << 32
Numbers = tuple[int, ...]
State = TypeVar("State")


class BrokenProtocolError(Exception):
    """A state in which no rank can go on, or a read of what another operation wrote."""


class Fault(enum.Enum):
    """What is left out of the protocol."""

    NONE = "nothing"
    LOOKS_TOO_EARLY = "publish looks for sleepers before it stores the value"
    NOT_COUNTED = "await does not count itself as a sleeper"
    NOT_COMPARED = "the futex does not compare the value"
    WAKES_ONE = "publish wakes one sleeper only"
    NO_ROOM = "a slot is written without a look whether it is still read"
    ONE_SLOT = "one slot instead of two"
    TWO_SIGNATURES = "two signatures are kept instead of four"


def explore(start: State, moves: Callable[[State], Iterator[State]], is_over: Callable[[State], bool]) -> int:
    """Visit every state that can be reached, and return their number."""
    seen, left = {start}, [start]
    while left:
        state = left.pop()
        following = list(moves(state))
        if not following and not is_over(state):
            raise BrokenProtocolError(f"no rank can go on: {state}")
        new = set(following) - seen
        seen |= new
        left.extend(new)
    return len(seen)


def is_before(counter: int, value: int) -> bool:
    """Compare as the function of this name in shared.cpp does."""
    return (counter - value) % WRAP >= WRAP // 2


def put(numbers: Numbers, index: int, value: int) -> Numbers:
    return (*numbers[:index], value, *numbers[index + 1 :])


class Waking(NamedTuple):
    """Barriers: each rank publishes its mark, then awaits those of the others."""

    done: Numbers  # by rank: how many calls of publish and await are over
    step: Numbers  # by rank: the step within the call
    seen: Numbers  # by rank: what it loaded last
    value: Numbers  # by mark
    sleepers: Numbers  # by mark
    asleep: Numbers  # by rank: the mark on which the kernel lets it sleep, or -1


def published(state: Waking, rank: int, value: int, fault: Fault) -> Waking:
    """`publish`: 0 stores the value, 1 loads the sleepers, 2 wakes them."""
    early = fault is Fault.LOOKS_TOO_EARLY
    step = state.step[rank]
    if step == (1 if early else 0):
        state = state._replace(value=put(state.value, rank, value))
    elif step == (0 if early else 1):
        state = state._replace(seen=put(state.seen, rank, state.sleepers[rank]))
    if step < 2:
        return state._replace(step=put(state.step, rank, step + 1))
    if state.seen[rank]:
        woken = [other for other, mark in enumerate(state.asleep) if mark == rank]
        for other in woken[:1] if fault is Fault.WAKES_ONE else woken:
            state = state._replace(asleep=put(state.asleep, other, -1))
    return next_call(state, rank)


def awaited(state: Waking, rank: int, mark: int, value: int, fault: Fault) -> Waking:
    """`await`: 0 polls, 1 counts itself, 2 looks, 3 loads what the futex compares, 4 sleeps, 5 uncounts itself."""
    step = state.step[rank]
    there = not is_before(state.value[mark], value)
    counted = 0 if fault is Fault.NOT_COUNTED else 1
    if step == 0 and there:
        return next_call(state, rank)
    if step == 1:
        state = state._replace(sleepers=put(state.sleepers, mark, state.sleepers[mark] + counted))
    if step == 3:
        state = state._replace(seen=put(state.seen, rank, state.value[mark]))
    if step == 4 and (state.value[mark] == state.seen[rank] or fault is Fault.NOT_COMPARED):
        state = state._replace(asleep=put(state.asleep, rank, mark))
    if step == 5:
        state = state._replace(sleepers=put(state.sleepers, mark, state.sleepers[mark] - counted))
        return next_call(state, rank)
    following = {2: 5 if there else 3, 3: 2 if there else 4, 4: 2}.get(step, step + 1)
    return state._replace(step=put(state.step, rank, following))


def next_call(state: Waking, rank: int) -> Waking:
    return state._replace(
        done=put(state.done, rank, state.done[rank] + 1), step=put(state.step, rank, 0), seen=put(state.seen, rank, 0)
    )


def barriers(ranks: int, rounds: int, fault: Fault = Fault.NONE) -> int:
    """Explore that many barriers; return the number of states."""
    first = WRAP - 1
    none = (0,) * ranks

    def moves(state: Waking) -> Iterator[Waking]:
        for rank in range(ranks):
            if state.done[rank] == rounds * ranks or state.asleep[rank] >= 0:
                continue
            number, call = divmod(state.done[rank], ranks)
            value = (first + number + 1) % WRAP
            if call == 0:
                yield published(state, rank, value, fault)
            else:
                yield awaited(state, rank, (rank + call) % ranks, value, fault)

    start = Waking(none, none, none, (first,) * ranks, none, (-1,) * ranks)
    return explore(start, moves, lambda state: set(state.done) == {rounds * ranks})


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 4), (3, 1)])
def test_no_wake_up_is_lost(ranks: int, rounds: int) -> None:
    assert barriers(ranks, rounds) > 100


@pytest.mark.parametrize(
    ("fault", "ranks"),
    [(Fault.LOOKS_TOO_EARLY, 2), (Fault.NOT_COUNTED, 2), (Fault.NOT_COMPARED, 2), (Fault.WAKES_ONE, 3)],
)
def test_the_model_finds_a_lost_wake_up(fault: Fault, ranks: int) -> None:
    with pytest.raises(BrokenProtocolError, match="no rank can go on"):
        barriers(ranks, 1, fault)


class Step(NamedTuple):
    """One step of a rank: `wait` for a mark, or `write` or `read` a place, with or of a value."""

    what: str
    place: tuple[object, ...]
    value: object


class Program:
    """The steps of one rank, in the order of shared.cpp. Marks count from 1, chunks and small operations from 0."""

    def __init__(self, rank: int, ranks: int, fault: Fault) -> None:
        self.rank, self.ranks, self.fault = rank, ranks, fault
        self.others = [other for other in range(ranks) if other != rank]
        self.steps: list[Step] = []
        self.operations = self.small = self.chunks = 0

    def number(self, count: int) -> int:
        """Which of the two slots; shared.cpp: `chunk & 1`, `number & 1`."""
        return 0 if self.fault is Fault.ONE_SLOT else count % 2

    def signature(self, rank: int) -> tuple[object, ...]:
        kept = 2 if self.fault is Fault.TWO_SIGNATURES else kept_signatures()
        return ("signature", rank, self.operations % kept)

    def add(self, what: str, place: tuple[object, ...], value: object) -> None:
        self.steps.append(Step(what, place, value))

    def publish(self, mark: str, value: int) -> None:
        self.add("write", (mark, self.rank), value)

    def wait(self, mark: str, rank: int, value: int) -> None:
        """`await`, and `compare`, for which the rank must have entered this operation."""
        if rank != self.rank:
            self.add("wait", (mark, rank), value)
            self.add("compare", self.signature(rank), self.operations)

    def enter(self) -> None:
        self.operations += 1
        self.add("write", self.signature(self.rank), self.operations)
        self.publish("entered", self.operations)

    def write_chunk(self, chunk: int, parts: list[int]) -> None:
        if self.fault is not Fault.NO_ROOM:
            for rank in range(self.ranks):
                self.wait("done", rank, chunk - 1)
        for part in parts:
            self.add("write", (self.number(chunk), self.rank, part), ("input", chunk))
        self.publish("ready", chunk + 1)

    def barrier(self) -> None:
        self.enter()
        for rank in self.others:
            self.wait("entered", rank, self.operations)

    def all_at_once(self) -> None:
        number, self.small = self.small, self.small + 1
        self.add("write", ("small", self.number(number), self.rank), number)
        self.barrier()
        for rank in self.others:
            self.add("read", ("small", self.number(number), rank), number)

    def in_chunks(self, count: int = 2) -> None:
        self.enter()
        self.write_chunk(self.chunks, self.others)
        for left in range(count - 1, -1, -1):
            chunk, self.chunks = self.chunks, self.chunks + 1
            if left:
                self.write_chunk(chunk + 1, self.others)
            for rank in self.others:
                self.wait("ready", rank, chunk + 1)
            for rank in self.others:
                self.add("read", (self.number(chunk), rank, self.rank), ("input", chunk))
                self.add("write", (self.number(chunk), rank, self.rank), ("result", chunk))
            self.publish("done", chunk + 1)
            for rank in self.others:
                self.wait("done", rank, chunk + 1)
                self.add("read", (self.number(chunk), self.rank, rank), ("result", chunk))

    def chunk(self, writes: bool, sources: list[int], parts: list[int], part: int) -> None:
        """One step of `chunk_by_chunk`."""
        self.enter()
        chunk, self.chunks = self.chunks, self.chunks + 1
        if writes:
            self.write_chunk(chunk, parts)
        for rank in sources:
            self.wait("ready", rank, chunk + 1)
            self.add("read", (self.number(chunk), rank, part), ("input", chunk))
        self.publish("done", chunk + 1)

    def reduce(self) -> None:
        self.chunk(self.rank != 0, [] if self.rank else self.others, [0], 0)

    def broadcast(self, root: int = 0) -> None:
        self.chunk(self.rank == root, [] if self.rank == root else [root], [0], 0)

    def broadcast_of_last(self) -> None:
        self.broadcast(self.ranks - 1)

    def all_gather(self) -> None:
        self.chunk(True, self.others, [0], 0)

    def reduce_scatter(self) -> None:
        self.chunk(True, self.others, self.others, self.rank)


OPERATIONS = [
    Program.barrier,
    Program.all_at_once,
    Program.in_chunks,
    Program.reduce,
    Program.broadcast,
    Program.broadcast_of_last,
    Program.all_gather,
    Program.reduce_scatter,
]
# Some ranks may be ahead of others in these.
AHEAD = [Program.reduce, Program.broadcast, Program.broadcast_of_last, Program.all_at_once]


def kept_signatures() -> int:
    """The constant of the code."""
    (found,) = re.findall(r"\bkSignatures = (\d+);", "".join(path.read_text() for path in CODE.glob("*.h")))
    return int(found)


class Slots(NamedTuple):
    """How far the ranks are, and what lies where."""

    done: Numbers
    memory: frozenset[tuple[tuple[object, ...], object]]


def taken(memory: dict[tuple[object, ...], object], step: Step) -> bool:
    """Take a step of a rank; false if it has to wait."""
    found = memory.get(step.place, 0)
    if step.what == "wait":
        return isinstance(found, int) and isinstance(step.value, int) and found >= step.value
    if step.what == "write":
        memory[step.place] = step.value
        return True
    entered = memory.get(("entered", step.place[1]), 0)
    if step.what == "compare" and isinstance(entered, int) and isinstance(step.value, int) and entered < step.value:
        return True  # the code compares later, if at all
    if found != step.value:
        raise BrokenProtocolError(f"{step.place} holds {found} instead of {step.value}")
    return True


def operations(ranks: int, calls: tuple[Callable[[Program], None], ...], fault: Fault = Fault.NONE) -> int:
    """Explore operations that all ranks call in this order; return the number of states."""
    programs = [Program(rank, ranks, fault) for rank in range(ranks)]
    for program, call in itertools.product(programs, calls):
        call(program)
    lengths = tuple(len(program.steps) for program in programs)

    def moves(state: Slots) -> Iterator[Slots]:
        for rank, program in enumerate(programs):
            if state.done[rank] < lengths[rank]:
                memory = dict(state.memory)
                if taken(memory, program.steps[state.done[rank]]):
                    yield Slots(put(state.done, rank, state.done[rank] + 1), frozenset(memory.items()))

    return explore(Slots((0,) * ranks, frozenset()), moves, lambda state: state.done == lengths)


def test_two_ranks_never_read_another_operations_data() -> None:
    for calls in itertools.product(OPERATIONS, repeat=2):
        operations(2, calls)
    for calls in itertools.product(AHEAD, repeat=3):
        operations(2, calls)


def test_three_ranks_never_read_another_operations_data() -> None:
    for calls in itertools.product(AHEAD, repeat=2):
        operations(3, calls)
    assert operations(3, (Program.in_chunks,)) > 1000


@pytest.mark.parametrize(
    ("fault", "call"),
    [
        (Fault.NO_ROOM, Program.broadcast),
        (Fault.ONE_SLOT, Program.all_at_once),
        (Fault.TWO_SIGNATURES, Program.broadcast),
    ],
    ids=lambda value: value.name if isinstance(value, Fault) else value.__name__,
)
def test_the_model_finds_data_of_another_operation(fault: Fault, call: Callable[[Program], None]) -> None:
    with pytest.raises(BrokenProtocolError, match="instead of"):
        operations(2, (call,) * 4, fault)


def test_the_code_has_the_steps_of_the_model() -> None:
    """The order on which the model relies. Who changes it changes the model too."""
    code = "".join(path.read_text() for path in sorted(CODE.glob("*.cpp")))
    publish = ["mark.value.store(value, std::memory_order_seq_cst)", "mark.sleepers.load(std::memory_order_seq_cst)"]
    sleeper = ["mark.sleepers.fetch_add(1)", "~Sleeper() {", "mark.sleepers.fetch_sub(1)"]
    wait = [*sleeper, "const Sleeper sleeper(", "mark.value.load()", "FUTEX_WAIT, seen"]
    for steps in ([*publish, "FUTEX_WAKE, size_"], wait):
        places = [code.find(step) for step in steps]
        assert -1 not in places, dict(zip(steps, places, strict=True))
        assert places == sorted(places)
    assert kept_signatures() == 4
