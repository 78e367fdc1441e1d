# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The look that nodes make before a job is ended, at home: its evidence lies where that of any other look does."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import open_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import HUNG
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.transfer.fetched_files import LAST_LOOK
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import BadFrame
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import frames
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import SeenJob

from .autopsy import EVIDENCE_FILE, judged, write_bundle
from .run_directory import DIAGNOSIS


def bring_last_look(job_id: str, run_dir: Path, placement: Collection[tuple[int, str]] | None) -> None:
    """Put what the head sent of the look before a job's end, if it did, into its diagnosis. No error if that fails.

    `placement`: ranks of the job and their hosts, None if they are not known here. What is no such look is dropped.
    """
    sent = run_dir / LAST_LOOK
    with contextlib.suppress(OSError, BadFrame):
        with open(open_file(str(sent)), "rb") as file:
            frame = frames.parse(file.read(frames.LINE_BYTES))
        looked = frames.checked(frame, {"looked": frames.looked})
        planned = [(place["rank"], place["host"]) for place in looked["placement"]]
        if placement is None or planned == list(placement):
            keep_last_look(job_id, run_dir, looked)
    with contextlib.suppress(OSError):
        sent.unlink()


def keep_last_look(job_id: str, run_dir: Path, looked: SeenJob) -> None:
    """Write a diagnosis, unless there is one and this look found no hang: a job on its way out tells less."""
    placement, evidence, missing = looked["placement"], looked["evidence"], looked["missing"]
    seen: SeenJob = {"placement": placement, "evidence": evidence, "missing": missing}
    autopsy = judged(job_id, seen)
    if autopsy.verdict.code in HUNG or not (run_dir / DIAGNOSIS / EVIDENCE_FILE).exists():
        with contextlib.suppress(OSError):
            write_bundle(run_dir, autopsy)
