# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Where ranks were when job_timeout passed: each Python rank wrote its stacks to stderr, and they are merged here."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.doing import Doing, where
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.evidence import read_stacks
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.autopsy import branches

from .files import read_end, text_of

RANKS_MOST = 256  # whose stacks are read
STACK_BYTES = 1 << 16  # of the end of a rank's stderr
NOT_JUDGED = Doing("", "", "")


def last_stacks(run_dir: Path, ranks: Iterable[int]) -> tuple[str, ...]:
    """Return the merged stacks of the main threads as lines, outermost frames first; nothing if no rank wrote any."""
    stacks = {}
    for rank in sorted(ranks)[:RANKS_MOST]:
        threads = read_stacks(read_end(run_dir / "ranks" / str(rank) / "stderr", STACK_BYTES))
        if threads:
            stacks[rank] = [f"{frame['function']} {where(frame)}" for frame in reversed(threads[0])]
    return tuple(text_of(line) for line in branches(stacks, 0, dict.fromkeys(stacks, NOT_JUDGED)))
