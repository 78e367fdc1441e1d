# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a look at a job found, for people: one sentence, the merged stacks of all ranks, and the bundle in `runs/<id>/`.

The merged tree has the form of LLNL's STAT: a run of frames that the same ranks share is one line.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.busy_program import of_ranks
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.doing import (
    WAITS,
    Doings,
    classify,
    where,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import (
    Verdict,
    judge,
    plural,
    spans,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.evidence import Evidence
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import SeenJob
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from .run_directory import DIAGNOSIS, write_private

EVIDENCE_FILE, TEXT_FILE = "look.json", "look.txt"
SHOWN_LINES = 40  # of a tree on the screen; the file has all
DEPTH_MOST = 6  # of indentation
BUSY_LINES = 4  # on the screen at once


@dataclass(frozen=True)
class Autopsy:
    """The judged look at one job."""

    job_id: str
    looked: SeenJob
    verdict: Verdict

    @property
    def headline(self) -> str:
        """Return the one sentence."""
        return f"job {self.job_id}: {self.verdict.sentence}"

    @property
    def tree(self) -> list[str]:
        """Return the merged stacks as lines."""
        found = {row["rank"]: row for row in self.looked["evidence"]}
        return list(tree_lines(found, classify(found)))

    @property
    def lines(self) -> list[str]:
        """Return all that is shown: the sentence, the tree, and the nodes that did not answer."""
        tree = self.tree
        hidden = [f"... {len(tree) - SHOWN_LINES} more lines in {TEXT_FILE}"] if len(tree) > SHOWN_LINES else []
        missing = [f"warning: nothing is known of the ranks of {text}" for text in self.looked["missing"]]
        return [self.headline, *tree[:SHOWN_LINES], *hidden, *missing]


def judged(job_id: str, looked: SeenJob) -> Autopsy:
    """Return what is to be said of a job that was looked at."""
    placement = {place["rank"]: place["host"] for place in looked["placement"]}
    return Autopsy(job_id, looked, judge(looked["evidence"], placement))


def busy_lines(looked: SeenJob, seconds: float) -> list[str]:
    """Return a line for each program that works for ranks which have shown nothing for so long, such as a compiler."""
    lines = []
    for busy, places in of_ranks(looked["evidence"]).items():
        ranks, hosts = [rank for rank, _host in places], fold_names(dict.fromkeys(host for _rank, host in places))
        who = f"{plural(ranks, 'rank', 'ranks')} {spans(ranks)} on {hosts}"
        lines.append(f"{who}: {seconds:.0f} s without output: {busy} is busy")
    return [*lines[:BUSY_LINES], *(["... and more"] if len(lines) > BUSY_LINES else [])]


def write_bundle(run_dir: Path, autopsy: Autopsy) -> Path:
    """Write all evidence and the text below a run directory; return where. OSError.

    Of a job of another controller the run directory may be new here, and others may write beside it.
    """
    place = run_dir / DIAGNOSIS
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    for directory in (run_dir, place):
        with contextlib.suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(errno.EPERM, f"{directory} is no directory of yours")
    verdict = autopsy.verdict._asdict()
    content = {"job_id": autopsy.job_id, "at": time.time(), "verdict": verdict, **autopsy.looked}
    missing = [f"nothing is known of the ranks of {text}" for text in autopsy.looked["missing"]]
    for name, text in (
        (EVIDENCE_FILE, json.dumps(content, indent=1)),
        (TEXT_FILE, "\n".join([autopsy.headline, "", *autopsy.tree, *missing, *nccl_lines(autopsy.looked)])),
    ):
        temporary = place / f".{name}.{os.getpid()}"
        write_private(temporary, text + "\n")
        temporary.replace(place / name)
    return place


def nccl_lines(looked: SeenJob) -> list[str]:
    """Return what NCCL's RAS service told of the job, below a title."""
    lines = [line for row in looked["evidence"] for line in row["nccl"]]
    return ["", "What NCCL itself tells (RAS):", *lines] if lines else []


def tree_lines(found: Mapping[int, Evidence], doings: Doings) -> Iterator[str]:
    """Yield the merged stacks of the main threads, outermost frames first."""
    stacks = {
        rank: [f"{frame['function']} {where(frame)}" for frame in reversed(row["threads"][0])]
        for rank, row in sorted(found.items())
        if row["threads"]
    }
    yield from branches(stacks, 0, doings)
    for rank in sorted(found.keys() - stacks.keys()):
        yield f"rank {rank} is {doings[rank].what}"


def branches(stacks: Mapping[int, Sequence[str]], depth: int, doings: Doings, indent: int = 0) -> Iterator[str]:
    """Yield the lines of the frames from `depth` on: of each set of ranks that are in the same frame."""
    heads: dict[str, list[int]] = {}
    for rank, frames in stacks.items():
        if len(frames) > depth:
            heads.setdefault(frames[depth], []).append(rank)
    for ranks in heads.values():
        own = {rank: stacks[rank] for rank in ranks}
        end = shared(own, depth)
        run = stacks[ranks[0]][depth:end]
        shown = " > ".join(run if len(run) < 4 else [run[0], f"({len(run) - 2} more)", run[-1]])
        done = [rank for rank in ranks if len(stacks[rank]) == end]
        who = f"{'  ' * min(indent, DEPTH_MOST)}{plural(ranks, 'rank', 'ranks')} {spans(ranks)}"
        yield f"{who}: {shown}{calls(done, doings)}"
        yield from branches(own, end, doings, indent + 1)


def shared(stacks: Mapping[int, Sequence[str]], depth: int) -> int:
    """Return the depth until which all these stacks are the same."""
    first = next(iter(stacks.values()))
    end = depth + 1
    while end < len(first) and all(frames[depth : end + 1] == first[depth : end + 1] for frames in stacks.values()):
        end += 1
    return end


def calls(ranks: Sequence[int], doings: Doings) -> str:
    """Return the collectives in which ranks wait whose stacks end here."""
    found = dict.fromkeys(doings[rank].call for rank in ranks if doings[rank].kind == WAITS)
    return f" [{', '.join(found)}]" if found else ""
