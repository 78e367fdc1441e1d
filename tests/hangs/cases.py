"""The truth about the hangs of made.py: who keeps the others waiting, where, and in which collective."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import VerdictCode, spans

PROGRAM = Path(__file__).with_name("made.py")
# Words of a sentence. {c}: the culprit, {o}: the others, {n}: the number of the collective, and
# {NAME}: the place of that name.
WAIT = "{o} in all_reduce{n} at {others}"
SIDES = "ranks wait for each other in different calls: "


@dataclass(frozen=True)
class Case:
    """A hang. `says`: what its sentence has to have, each once; `ranks`: the culprits, empty for CULPRIT alone.

    `sides`: any of these is true, where two sides are equal. `ends`: the job cannot go on after it.
    """

    name: str
    kind: str  # for people
    says: Sequence[str]
    code: VerdictCode = VerdictCode.BLAMED
    ranks: tuple[int, ...] = ()
    sides: tuple[tuple[int, ...], ...] = ()
    size: int = 3
    ends: bool = False
    module: str = ""  # a program of others that hangs by itself, with the packages of its folder in tests/compat
    folder: str = ""


def stays(name: str, kind: str, place: str = "", **given: object) -> Case:
    """Return a case in which the culprit is in own code while the others wait."""
    said = ["{c} is sleeping or waiting at", "{" + (place or name) + "}", WAIT]
    return Case(name, kind, said, **given)  # type: ignore[arg-type]


CASES = (
    stays("own_code", "sleeps in its own code"),
    stays("takes_a_lock", "a lock"),
    stays("deadlock_of_threads", "a deadlock of two threads"),
    stays("reads_a_queue", "a queue", "reads_a_queue"),
    stays("opens_a_pipe", "reading a file that does not answer"),
    stays("waits_for_a_file_lock", "a file lock"),
    stays("waits_for_a_server", "a server that does not answer"),
    Case("spins", "an endless loop in Python", ["{c} is computing at {spins} in spins", WAIT]),
    stays("holds_the_gil", "in C, with the GIL"),
    Case("is_stopped", "stopped (SIGSTOP)", ["{c} is stopped by a signal (state T)", WAIT]),
    Case(
        "waits_for_a_child",
        "a program that it started",
        ["{c} is waiting for a program that it started, `sleep 1000` ({waits_for_a_child})", WAIT],
    ),
    Case(
        "waits_for_a_pool",
        "a pool of processes",
        ["{c} is waiting for another process, whose worker", "is at {pool_worker} ({waits_for_a_pool})", WAIT],
    ),
    Case(
        "loader_is_stuck",
        "a worker of its data loader",
        ["{c} is waiting for its data loader, whose worker", "is at {stuck_worker}", "{loader_is_stuck}", WAIT],
    ),
    stays("imports_a_package", "an import"),
    Case(
        "in_backward",
        "missing in backward() of DistributedDataParallel",
        ["{c} is sleeping or waiting at {own_code}", "{o} in ", "at {in_backward}"],
    ),
    Case(
        "gathers_objects",
        "missing in all_gather_object",
        ["{c} is sleeping or waiting at {own_code}", "{o} in all_gather", "at {gathers_objects}"],
    ),
    Case(
        "in_a_thread",
        "missing in a collective of a thread",
        ["{c} is sleeping or waiting at {own_code}", "{o} in all_reduce{n} at {in_a_thread}"],
    ),
    Case(
        "all_but_one_are_in_own_code",
        "one waits, the others are elsewhere",
        ["{O} are sleeping or waiting at {own_code}", "waits for them in all_reduce", "at {alone}"],
        ranks=(-1,),
    ),
    Case("steps", "no hang: slow steps", ["slow, not hung"], VerdictCode.SLOW, sides=((),)),
    Case("works_long", "no hang: a rank works and tells of it", ["slow, not hung"], VerdictCode.SLOW, sides=((),)),
    Case("stays_in_a_hook", "missing at the end", ["{c} is sleeping or waiting at {own_code}", "{o} in barrier"]),
    Case(
        "two_are_missing",
        "two ranks, each in its own place",
        ["rank 1 on localhost is sleeping or waiting at", "rank 2 on localhost is", "at {two_are_missing}"],
        ranks=(1, 2),
        size=4,
        ends=True,
    ),
    Case("computes_in_c", "a long call in C", ["{c} is computing at {computes_in_c}", WAIT], ends=True),
    Case("writes_a_checkpoint", "writing a checkpoint", ["{c} is", "{writes_a_checkpoint}", WAIT], ends=True),
    stays("starts_a_child_that_never_begins", "state D", ends=True),
    Case(
        "becomes_another_program", "runs what is no Python", ["{c} is running `sleep 1000`", WAIT], ends=True
    ),
    Case(
        "broadcasts",
        "another collective",
        [SIDES, "{c} in broadcast{n} at {broadcasts}", "{o} on localhost in all_reduce{n} at {others}"],
        VerdictCode.MISMATCH,
        ends=True,
    ),
    Case(
        "receives",
        "receives what nobody sends",
        [SIDES, "{c} in recv at {receives}", "{o} on localhost in all_reduce{n} at {others}"],
        VerdictCode.MISMATCH,
        ends=True,
    ),
    Case(
        "has_a_step_less",
        "has a step less than the others",
        [SIDES, "{c} in barrier{n} at {has_a_step_less}", "{o} on localhost in all_reduce{n} at {one_more}"],
        VerdictCode.MISMATCH,
        ends=True,
    ),
    Case(
        "all_in_order",
        "two collectives in another order",
        [SIDES, "{c} in broadcast{n} at {first_broadcast}", "{o} on localhost in all_reduce{n} at {first_all_reduce}"],
        VerdictCode.MISMATCH,
        ends=True,
    ),
    Case(
        "another_size",
        "tensors of different sizes in one collective",
        [
            "ranks have tensors of different sizes in all_reduce{n}: {c} has 12 Float at {another_size}",
            "; {o} on localhost have 8 Float",
        ],
        VerdictCode.MISMATCH,
        ends=True,
    ),
    Case(
        "two_sides",
        "two equal sides",
        [
            SIDES,
            "ranks 0,3 on localhost in all_reduce{n} at {side_all_reduce}",
            "ranks 1-2 on localhost in barrier{n} at {side_barrier}",
        ],
        VerdictCode.MISMATCH,
        sides=((0, 3), (1, 2)),
        size=4,
        ends=True,
    ),
    Case(
        "groups_in_another_order",
        "two groups in another order",
        [SIDES, "{c} in all_reduce", "; {o} on localhost in all_reduce", "at {groups_in_another_order} of group "],
        VerdictCode.MISMATCH,
        ends=True,
    ),
    Case(
        "does_not_leave",
        "hangs at exit: a thread that does not end",
        ["{c} is waiting at exit for a thread at {own_code}", "finished with exit status 0"],
        ends=True,
    ),
    Case(
        "never_comes",
        "never comes to init_process_group",
        ["{c} is sleeping or waiting at {never_comes}", "{o} in init_process_group at {init}"],
        ends=True,
    ),
    Case(
        "accelerate_data_loop",
        "Accelerate's own test_distributed_data_loop",
        [
            SIDES,
            "rank 0 on localhost in broadcast{n} at test_distributed_data_loop.py:173",
            "rank 1 on localhost in barrier{n} at test_distributed_data_loop.py:178",
        ],
        VerdictCode.MISMATCH,
        sides=((0,), (1,)),
        size=2,
        ends=True,
        module="accelerate.test_utils.scripts.test_distributed_data_loop",
        folder="accelerate",
    ),
)  # fmt: skip


def places() -> dict[str, str]:
    """Return the places that made.py names, each as file:line."""
    rows = PROGRAM.read_text().splitlines()
    named = [(number, re.search(r"# <- (\w+)$", row)) for number, row in enumerate(rows, 1)]
    return {found[1]: f"{PROGRAM.name}:{number}" for number, found in named if found}


def culprits_of(case: Case, culprit: int) -> list[tuple[int, ...]]:
    """Return the sets of ranks of which one has to be named."""
    if case.sides:
        return list(case.sides)
    if case.ranks == (-1,):
        return [tuple(rank for rank in range(case.size) if rank != culprit)]
    return [case.ranks or (culprit,)]


def expected(case: Case, culprit: int) -> list[str]:
    """Return what the sentence about a case has to have."""
    others = [rank for rank in range(case.size) if rank != culprit]
    words: Mapping[str, str] = {
        "c": f"rank {culprit} on localhost",
        "o": f"ranks {spans(others)}",
        "O": f"ranks {spans(others)} on localhost",
        "n": " #5",
        **places(),
    }
    blamed = case.code == VerdictCode.BLAMED
    said = [text.replace("{o} in ", "{o} wait for it in ") if blamed else text for text in case.says]
    return [text.format(**words) for text in said]
