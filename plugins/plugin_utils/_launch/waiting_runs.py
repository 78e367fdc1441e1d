# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Runs that are over and wait on the head: which are fetched, dropped, or left to other controllers."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.job_rows import WaitingRun
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .run_directory import fetched_run, noted_run

DAY = 86400.0
SHOWN = 10  # runs of others that are named
FATES = ("runs", "dropped", "others")


class Given(TypedDict):
    """Options of the action."""

    job_id: str
    runs_dir: str
    drop_run: bool
    drop_after: float | None  # days


def check_given(given: Given) -> None:
    """InputError for what would drop all runs of others, or none."""
    if given["drop_run"] and not given["job_id"]:
        raise InputError("drop_run", True, "name the run: -e job_id=...")
    if given["drop_after"] is not None and not given["drop_after"] > 0:  # refuses nan too
        raise InputError("drop_after", given["drop_after"], "give days greater than 0: -e drop_after=30")


def fate(run: WaitingRun, given: Given) -> str:
    """Return what is done with a run that waits: one of this controller is fetched, and so is the one that is named."""
    named = run["job_id"] == given["job_id"]
    old = given["drop_after"] is not None and run["seconds"] >= given["drop_after"] * DAY
    if given["drop_run"] if named else old and not run["own"]:
        return "dropped"
    return "runs" if named or run["own"] else "others"


def place_for(run: WaitingRun, given: Given) -> tuple[Path, list[tuple[int, str]] | None]:
    """Return the directory of a run, and its ranks with their hosts if they were planned here. InputError."""
    try:
        return noted_run(run["job_id"], run["run_dir"], given["runs_dir"])
    except InputError:
        if run["job_id"] != given["job_id"]:
            raise
        return fetched_run(run["job_id"], given["runs_dir"]), None


def of_others(runs: list[WaitingRun], head: str) -> str:
    """Return one line on the runs that other controllers started and did not fetch."""
    shown = ", ".join(f"{run['job_id']} ({run['state']}, {run['seconds'] / DAY:.0f} days)" for run in runs[:SHOWN])
    more = f" and {len(runs) - SHOWN} more" if len(runs) > SHOWN else ""
    help_text = (
        "clean.yml -e job_id=... fetches one, with -e drop_run=true it is dropped; -e drop_after=30 drops all older"
    )
    return f"of other controllers on {head}: {shown}{more}: {help_text}"
