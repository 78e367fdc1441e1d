# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Programs that a rank has started and that work for it, such as a compiler: waiting for one is no hang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Collection, Mapping, Sequence

from ..processes.processes import Process
from ..types.forms import printable

if TYPE_CHECKING:
    from ..types.evidence import Evidence

LEAST_SHARE = 0.3  # of a CPU, that the busiest has: on a busy machine it does not get more
NAME_MOST = 40  # characters
# Compilers, assemblers, linkers and what starts them, as Linux names their processes (at most 15 characters).
BUILDERS = {
    *("cc1plus", "cc1", "collect2", "lto1", "lto-wrapper", "as", "ld", "ld.bfd", "ld.gold", "ld.lld", "lld", "gcc"),
    *("g++", "c++", "clang", "clang++", "icpx", "ninja", "make", "cmake", "nvcc", "cicc", "ptxas", "cudafe++"),
    *("fatbinary", "hipcc", "amdclang++", "rustc", "nvlink"),
}


def name_of(pid: int) -> str:
    """Return the name of a process, an empty text if it is gone. Its program may have chosen it."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as file:
            return printable(file.read(NAME_MOST).decode(errors="replace").strip())
    except OSError:
        return ""


def busy_program(below: Sequence[Process], used: Mapping[int, float], seconds: float) -> list[str]:
    """Return the name of the busiest program that a rank has started, and of the one by which. Empty: none is busy.

    `below`: the processes below the rank's own, parents first; `used`: seconds of CPU by pid, in so many `seconds`.
    """
    busiest = max(below, key=lambda process: used.get(process.pid, 0.0), default=None)
    if busiest is None or used.get(busiest.pid, 0.0) <= LEAST_SHARE * seconds:
        return []
    known = {process.pid: process for process in below}
    top = busiest
    while top.parent in known:
        top = known[top.parent]
    names = [name_of(busiest.pid), name_of(top.pid)]
    return list(dict.fromkeys(name for name in names if name))


def of(busy: Sequence[str]) -> str:
    """Return the names in words: "cc1plus of ninja"."""
    return " of ".join(busy)


def builds(busy: Sequence[str]) -> bool:
    """Whether one that busy_program() returned has the name of a compiler, or of a program that starts some.

    A program gives itself any name: it can excuse itself, in its own job.
    """
    return not BUILDERS.isdisjoint(busy)


def of_ranks(rows: Collection[Evidence]) -> dict[str, list[tuple[int, str]]]:
    """Return the ranks and hosts of evidence by the program that is busy for them and lets them write nothing."""
    found: dict[str, list[tuple[int, str]]] = {}
    for row in rows:
        if row["busy"] and not row["wrote"]:
            found.setdefault(of(row["busy"]), []).append((row["rank"], row["host"]))
    return found
