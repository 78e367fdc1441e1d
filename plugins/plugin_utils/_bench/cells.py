# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The values of a bench: a case is one job, a cell is one message size of it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report.files import Fields

RDMA, TCP, ONE_NODE = "rdma", "tcp", "one_node"
WAYS = {RDMA: "RDMA", TCP: "no RDMA", ONE_NODE: "one node"}  # how the data goes from node to node
MEASURED, FAILED, IMPOSSIBLE = "measured", "failed", "impossible"
STATES = (MEASURED, FAILED, IMPOSSIBLE)
SECONDS_LEAST = 1e-9  # of one all-reduce: below this a figure is no measurement
SECONDS_MOST = 1e6  # of one all-reduce: above this a figure is no measurement
GBIT_LEAST, GBIT_MOST = 0.001, 1e6  # of a line


@dataclass(frozen=True)
class Case:
    """One job: its ranks, what starts them, what carries the data.

    `counts`: the ranks of each of `nodes`. `each`: ranks of a node at most, as train.yml takes it. `code` and `reason`:
    why it cannot be measured; empty texts if it can.
    """

    launcher: str
    backend: str
    way: str
    nodes: tuple[str, ...]
    counts: tuple[int, ...]
    each: int | None = None
    code: str = ""
    reason: str = ""

    @property
    def ranks(self) -> int:
        """Return the world size."""
        return sum(self.counts)

    @property
    def shape(self) -> str:
        """Return the ranks of the nodes: "2x4" are two nodes with four each, "3+1" are three and one."""
        if len(set(self.counts)) == 1:
            return f"{len(self.counts)}x{self.counts[0]}"
        return "+".join(map(str, self.counts))

    @property
    def name(self) -> str:
        """Return the case as people call it: "4 ranks (2x2), openmpi, gloo, no RDMA"."""
        if not self.nodes:
            return f"{self.launcher}, {self.backend}"
        way = "" if self.way == ONE_NODE else f", {WAYS[self.way]}"
        return f"{self.ranks} ranks ({self.shape}), {self.launcher}, {self.backend}{way}"

    def key(self, size: int) -> str:
        """Return the name of the file of a cell, without its ending."""
        shape = self.shape if len(self.shape) < 60 else f"{self.ranks}on{len(self.nodes)}"
        return f"{shape}-{self.launcher}-{self.backend}-{self.way}-{size}"


@dataclass(frozen=True)
class Figures:
    """What was measured: seconds of one all-reduce, the median, least and most of several rounds."""

    seconds: float
    seconds_min: float
    seconds_max: float


@dataclass(frozen=True)
class Cell:
    """One message size of a case, in bytes, and what became of it.

    `line_gbit`: what the NIC or the RDMA devices of the slowest node carry, in Gbit/s; 0: not known. `code` and
    `cause`: why there are no figures. `note`: what is odd about the figures.
    """

    case: Case
    size: int
    state: str
    figures: Figures | None = None
    line_gbit: float = 0.0
    code: str = ""
    cause: str = ""
    note: str = ""
    run_dir: str = ""
    at: str = ""

    @property
    def key(self) -> str:
        """Return the name of its file, without the ending."""
        return self.case.key(self.size)

    @property
    def algbw(self) -> float:
        """Return the rate at which a caller sees the bytes reduced, in GB/s (10^9 bytes a second); 0 without figures.

        Source of this and of busbw: NVIDIA nccl-tests, doc/PERFORMANCE.md, "Bandwidth", "AllReduce".
        """
        return self.size / self.figures.seconds / 1e9 if self.figures else 0.0

    @property
    def busbw(self) -> float:
        """Return the rate that the links must have carried, in GB/s, whatever the number of ranks: algbw 2(n-1)/n."""
        return self.algbw * 2 * (self.case.ranks - 1) / self.case.ranks if self.figures else 0.0

    @property
    def share(self) -> float | None:
        """Return which part of the line rate the bus bandwidth is, or None if that rate is not known."""
        return 8 * self.busbw / self.line_gbit if self.line_gbit and self.figures else None

    @property
    def name(self) -> str:
        """Return the cell's name for people."""
        return f"{self.case.name}, {size_text(self.size)}"


def size_text(size: int) -> str:
    """Return bytes as one types them: 1K, 64M, 4G, 1500."""
    for power, unit in ((30, "G"), (20, "M"), (10, "K")):
        if size >= 1 << power and size % (1 << power) == 0:
            return f"{size >> power}{unit}"
    return str(size)


def time_text(seconds: float) -> str:
    """Return a time as people read it: 12.3 us, 4.56 ms, 1.23 s."""
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def baseline_name(nodes: Sequence[str], cluster: str) -> str:
    """Return whose figures a baseline has: those of other nodes, or of another cluster with such names, are others."""
    return f"{fold_names(nodes)} of {cluster}"


def cell_report(cell: Cell) -> dict[str, object]:
    """Return a cell as plain values for its file."""
    return asdict(cell)


def cell_of(value: Fields) -> Cell | None:
    """Return the cell in a file, or None if it is none."""
    case, figures = value.of("case"), figures_of(value.of("figures"))
    counts = [item for item in case.items("counts") if type(item) is int and 0 < item < 1 << 20]
    size, state, way = value.whole("size") or 0, value.text("state"), case.text("way")
    nodes = case.words("nodes", 100_000)
    launcher, backend = case.text("launcher"), case.text("backend")
    if size < 1 or state not in STATES or way not in WAYS or not nodes or len(counts) != len(nodes):
        return None
    if not all(re.fullmatch(r"[a-z]{1,20}", word) for word in (launcher, backend)) or (
        state == MEASURED and not figures
    ):
        return None
    return Cell(
        Case(launcher, backend, way, nodes, tuple(counts), case.whole("each"), case.text("code"), case.text("reason")),
        size,
        state,
        figures if state == MEASURED else None,
        line_rate(value.number("line_gbit", 0)),
        *(value.text(name, 2000) for name in ("code", "cause", "note", "run_dir", "at")),
    )


def figures_of(value: Fields) -> Figures | None:
    """Return the seconds in an object, or None if they are none."""
    found = [value.number(name) for name in ("seconds", "seconds_min", "seconds_max")]
    middle, least, most = found
    if middle is None or least is None or most is None or not SECONDS_LEAST <= least <= middle <= most < SECONDS_MOST:
        return None
    return Figures(middle, least, most)


def line_rate(gbit: float | None) -> float:
    """Return the rate of a line in Gbit/s; 0 for what is none."""
    return gbit if gbit is not None and GBIT_LEAST <= gbit <= GBIT_MOST else 0.0
