"""Facts of ports."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import (
    ports,
)
from tests.unit.file_tree import tree


def test_listeners_in_the_range_of_jobs(tmp_path: Path) -> None:
    line = "   {}: {}:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 00000000 0 0 17 1 0 100 0 0 10 0\n"
    rows = [(20000, "0A"), (29999, "0A"), (30000, "0A"), (22, "0A"), (25000, "01")]
    four = "  sl\n" + "".join(line.format(at, "00000000", port, state) for at, (port, state) in enumerate(rows))
    six = "  sl\n" + line.format(0, "0" * 32, 20001, "0A")
    root = tree(tmp_path, proc__net__tcp=four, proc__net__tcp6=six)
    assert ports.listening(root) == [20000, 20001, 29999]
