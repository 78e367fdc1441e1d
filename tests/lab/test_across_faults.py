"""Some of the fault matrix (tests/faults/rows.py): its cells, played as `make faults` does."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.combinations import combined
from tests.faults.bed import Bed
from tests.faults.cell import CellRun
from tests.faults.rows import ROWS
from tests.lab.cluster import Cluster

CELLS = [
    *[(row, "openmpi") for row in ("raise", "supervisor-n1", "term", "kill-all", "cut-n2", "pause-n2")],
    *[(row, "torchrun") for row in ("launcher-n1", "launcher-n2", "guard-n2")],
    *[(row, "mpich") for row in ("launcher-n2", "kill")],
    *[(row, "intelmpi") for row in ("supervisor-n2", "ctrl-c")],
    *combined(*((row, launcher) for row in ("raise", "ctrl-c") for launcher in ("torchrun", "mpich"))),
    *combined(("guard-n1", "mpich"), ("raise", "intelmpi"), ("launcher-n1", "intelmpi")),
]


@pytest.fixture(scope="module")
def bed(four_nodes: Cluster) -> Iterator[Bed]:
    """The nodes, with bystanders that go at the end."""
    made = Bed(four_nodes)
    yield made
    made.clear()


@pytest.mark.parametrize(("row", "launcher"), CELLS)
def test_a_fault(bed: Bed, row: str, launcher: str) -> None:
    """The next job is that of the next test; where clean.yml comes between them, one that does nothing before that."""
    job_id = f"fault-{row}-{launcher}-{os.getpid()}"
    assert CellRun(bed, ROWS[row], launcher, job_id).play(following=ROWS[row].needs_cleaning).wrong == []
