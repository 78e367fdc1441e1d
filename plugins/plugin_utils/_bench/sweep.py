# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is asked of a bench, checked one by one before anything starts, and the cases that follow from it. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import DEFAULT, LAUNCHERS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.publication import rails_in_use
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import (
    parse_bytes,
    parse_flag,
    parse_names,
    parse_text,
    parse_whole,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.allocation import ranks_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.backends import BACKENDS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.plan import LaunchPlan
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_job_id

from .cells import ONE_NODE, RDMA, TCP, Case

CELLS_MOST = 2000
ROUNDS = 5
BASELINE = "reports/bench_baseline.json"
RDMA_WORDS = ("auto", "on", "off", "both")
LEAST_BYTES, MOST_BYTES = 4, 1 << 40  # one float32 at least
NO_RDMA_IN_BACKEND, NO_RDMA_ON_NODES, CANNOT_RUN = "no_rdma_in_backend", "no_rdma_on_nodes", "cannot_run"


@dataclass(frozen=True)
class World:
    """How many ranks: `ranks` in all, as `np` of train.yml, or so many `nodes` with `each` ranks."""

    ranks: int
    nodes: int | None = None
    each: int | None = None

    def __str__(self) -> str:
        return f"{self.nodes}x{self.each}" if self.nodes else str(self.ranks)


@dataclass(frozen=True)
class Sweep:
    """What to measure. No worlds: 2, 4, 8 ... ranks and all slots. Backend None: that of train.yml."""

    worlds: tuple[World, ...]
    sizes: tuple[int, ...]
    launchers: tuple[str, ...]
    backends: tuple[str | None, ...]
    rdma: str = "auto"
    rounds: int = ROUNDS
    iterations: int | None = None
    bench_id: str | None = None
    floor: float = 0.0  # of the bus bandwidth, in GB/s; 0: none
    baseline: str = BASELINE
    baseline_reset: bool = False
    runs_dir: str = "runs"


def parse_sweep(given: Mapping[str, object]) -> Sweep:
    """Return what is asked for. InputError names the first option that is wrong."""
    backends = names_of("bench_backends", given.get("bench_backends"), tuple(BACKENDS))
    return Sweep(
        worlds=tuple(dict.fromkeys(parse_world(text) for text in items("bench_worlds", given.get("bench_worlds")))),
        sizes=parse_sizes(given.get("bench_sizes")),
        launchers=names_of("bench_launchers", given.get("bench_launchers"), tuple(LAUNCHERS)) or (DEFAULT,),
        backends=backends or (None,),
        rdma=parse_rdma(given.get("bench_rdma")),
        rounds=parse_whole("bench_rounds", given.get("bench_rounds", ROUNDS), 1, 1000) or ROUNDS,
        iterations=parse_whole("bench_iterations", given.get("bench_iterations"), 1, 10**6),
        bench_id=parse_bench_id(given.get("bench_id")),
        floor=parse_floor(given.get("bench_floor_gbps", 0)),
        baseline=parse_text("bench_baseline", given.get("bench_baseline", BASELINE)),
        baseline_reset=parse_flag("bench_baseline_reset", given.get("bench_baseline_reset", False)),
        runs_dir=parse_text("runs_dir", given.get("runs_dir", "runs")),
    )


def items(name: str, value: object) -> tuple[str, ...]:
    """Return the items of a list or of a text with commas between them; none for None."""
    if value is None:
        return ()
    return parse_names(name, value if isinstance(value, (str, list, tuple)) else [value])


def names_of(name: str, value: object, known: tuple[str, ...]) -> tuple[str, ...]:
    """Return names out of the known ones, each once."""
    found = tuple(dict.fromkeys(items(name, value)))
    for each in found:
        if each not in known:
            raise InputError(name, each, f"choose from {', '.join(known)}: -e {name}={known[0]}")
    return found


def parse_world(text: str) -> World:
    """Return the world that a text asks for: "8" ranks, or "2x4", two nodes with four ranks each."""
    found = re.fullmatch(r"(?:([1-9]\d{0,5})x)?([1-9]\d{0,6})", text)
    nodes, each = (int(found[1] or 0), int(found[2])) if found else (0, 0)
    if not found or max(nodes, 1) * each < 2:
        wanted = "give numbers of ranks of at least 2, or nodes x ranks of each: -e bench_worlds=2,4,2x4"
        raise InputError("bench_worlds", text, wanted)
    return World(nodes * each, nodes, each) if nodes else World(each)


def parse_sizes(value: object) -> tuple[int, ...]:
    """Return message sizes in bytes, each once, the smallest first. "1K..64M" are 1K, 4K, 16K up to 64M."""
    found: set[int] = set()
    for text in items("bench_sizes", value) or ("1M", "16M", "256M"):
        first, dots, last = text.partition("..")
        try:
            ends = [parse_bytes("bench_sizes", part) for part in ([first, last] if dots else [first])]
        except InputError:
            ends = []
        if not ends or ends != sorted(ends) or not all(LEAST_BYTES <= end <= MOST_BYTES for end in ends):
            wanted = "give bytes, or the first and the last: -e bench_sizes=1M,4G or -e bench_sizes=1K..256M"
            raise InputError("bench_sizes", text, wanted)
        size = ends[0]
        while size <= ends[-1]:
            found.add(size)
            size *= 4
    return tuple(sorted(size - size % LEAST_BYTES for size in found))


def parse_rdma(value: object) -> str:
    """Return one of RDMA_WORDS. YAML takes a bare on for true."""
    text = {"none": "auto", "true": "on", "false": "off"}.get(str(value).lower(), str(value).lower())
    if text not in RDMA_WORDS:
        raise InputError("bench_rdma", value, f"choose one of {', '.join(RDMA_WORDS)}: -e bench_rdma=both")
    return text


def parse_bench_id(value: object) -> str | None:
    """Return the name of a bench, None for None. It is a directory, like the id of a job."""
    try:
        return parse_job_id(value, 60)
    except InputError:
        wanted = "use letters, digits, '.', '_' and '-', at most 60: -e bench_id=bench-before"
        raise InputError("bench_id", value, wanted) from None


def parse_floor(value: object) -> float:
    """Return a rate in GB/s; 0: none."""
    try:
        rate = float(value) if isinstance(value, (int, float, str)) and not isinstance(value, bool) else -1.0
    except (TypeError, ValueError):
        rate = -1.0
    if not 0 <= rate < 1e6:  # also refuses nan
        wanted = "give GB/s of bus bandwidth (10^9 bytes a second), or 0 for none: -e bench_floor_gbps=10"
        raise InputError("bench_floor_gbps", value, wanted)
    return rate


def worlds_of(sweep: Sweep, slots: Mapping[str, int]) -> tuple[World, ...]:
    """Return the worlds to measure. InputError for one that is larger than the slots of the nodes."""
    total, each = sum(slots.values()), ", ".join(f"{host} has {count}" for host, count in slots.items())
    if not sweep.worlds:
        powers = [World(1 << power) for power in range(1, 40) if 1 << power <= total]
        if total < 2:
            raise InputError("bench_worlds", "", f"there is 1 slot ({each}), and an all-reduce takes two: raise slots")
        return tuple(dict.fromkeys([*powers, World(total)]))
    for world in sweep.worlds:
        first = list(slots.values())[: world.nodes]
        fits = len(first) == world.nodes and min(first) >= (world.each or 1) if world.nodes else world.ranks <= total
        if not fits:
            text = f"there are {total} slots ({each}): give fewer ranks, or raise slots"
            raise InputError("bench_worlds", str(world), text)
    return sweep.worlds


Planner = Callable[[str, str | None, World, bool], LaunchPlan]  # launcher, backend, world, rdma. InputError


def cases_of(sweep: Sweep, worlds: Sequence[World], plan: Planner) -> list[Case]:
    """Return the cases in order, each placement once, also those that cannot be measured.

    InputError if nothing of a launcher or a backend that was asked for can run, or RDMA is asked for and none is there.
    """
    found: dict[tuple[object, ...], Case] = {}
    errors: dict[tuple[str, str | None], InputError] = {}
    for launcher in sweep.launchers:
        for backend in sweep.backends:
            try:
                cases = [case for world in worlds for case in cases_of_world(sweep, launcher, backend, world, plan)]
            except InputError as error:
                errors[launcher, backend] = error
                cases = []
            found.update({(case.launcher, case.backend, case.way, case.counts): case for case in cases})
    refuse_what_never_runs(sweep, errors)
    cases = [*found.values(), *(impossible(key, error) for key, error in errors.items())]
    wanted = [case for case in cases if case.way == RDMA]
    if sweep.rdma == "on" and wanted and all(case.code for case in cases if case.way != ONE_NODE):
        raise InputError("bench_rdma", sweep.rdma, f"{wanted[0].reason}: -e bench_rdma=off")
    if len(cases) * len(sweep.sizes) > CELLS_MOST:
        count = len(cases) * len(sweep.sizes)
        raise InputError("bench_sizes", f"{count} cells", f"at most {CELLS_MOST} are allowed: ask for less at a time")
    return cases


class Refused(InputError):
    """What the plan of a job refuses, with the names that the options have here."""

    def __init__(self, error: InputError) -> None:
        ValueError.__init__(self, in_our_words(str(error)))
        self.code = error.code


def in_our_words(text: str) -> str:
    """Return a sentence about the options of train.yml with the names that bench.yml has for them."""
    for of_a_job, here in (("launcher", "bench_launchers"), ("backend", "bench_backends")):
        text = re.sub(rf"^{of_a_job}(?=: got)", here, re.sub(rf"(?<=-e ){of_a_job}(?==)", here, text))
    return text


def refuse_what_never_runs(sweep: Sweep, errors: Mapping[tuple[str, str | None], InputError]) -> None:
    """Raise the error of a launcher that runs with no backend, or of a backend that no launcher runs with."""
    for launcher in sweep.launchers:
        if all((launcher, backend) in errors for backend in sweep.backends):
            raise Refused(errors[launcher, sweep.backends[0]])
    for backend in sweep.backends:
        if all((launcher, backend) in errors for launcher in sweep.launchers):
            raise Refused(errors[sweep.launchers[0], backend])


def impossible(key: tuple[str, str | None], error: InputError) -> Case:
    """Return the case of a launcher and a backend that do not go together, on whatever nodes."""
    return Case(key[0], key[1] or "", ONE_NODE, (), (), code=CANNOT_RUN, reason=in_our_words(str(error)))


def cases_of_world(sweep: Sweep, launcher: str, backend: str | None, world: World, plan: Planner) -> Iterator[Case]:
    """Yield the cases of a world: with RDMA, without, or as train.yml would. InputError if it cannot be planned."""
    planned = plan(launcher, backend, world, True)
    counts = ranks_of(planned.placement)
    case = Case(launcher, planned.backend, ONE_NODE, tuple(counts), tuple(counts.values()), world.each)
    if len(case.nodes) < 2:
        yield case
        return
    code, reason = without_rdma(planned)
    if sweep.rdma in ("on", "both") or (sweep.rdma == "auto" and not code):
        yield replace(case, way=RDMA, code=code, reason=reason)
    if sweep.rdma in ("off", "both") or (sweep.rdma == "auto" and code):
        yield replace(case, way=TCP)


def without_rdma(plan: LaunchPlan) -> tuple[str, str]:
    """Return code and sentence of why a job does not use RDMA, empty texts if it does."""
    if not BACKENDS[plan.backend].uses_rdma:
        return NO_RDMA_IN_BACKEND, f"{plan.backend} has no RDMA: it sends over TCP"
    bare = [node.name for node in plan.nodes if not (node.fabric and rails_in_use(node.fabric))]
    if bare:
        why = next((node.fabric.get("rdma_off", "") for node in plan.nodes if node.fabric), "")
        names = ", ".join(bare[:5]) + ", ..." * (len(bare) > 5)
        return NO_RDMA_ON_NODES, f"no RDMA device is in use on {names}" + (f" ({why})" if why else "")
    return "", ""
