# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The figures of the all-reduce runs of verify.yml, from the files that they left on the controller."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.backends import BACKENDS

from .nccl_log import Transport, transport_of
from .speed import Speed

RESULT_BYTES = 64 << 20
OUTPUT_BYTES = 4 << 20  # of each rank: NCCL prints its connections at the start
BASELINE_BYTES = 1 << 20
MAX_GBPS = 1e6  # above this a figure is no measurement


class Run(TypedDict):
    """How a job of the trial ended."""

    workload: str
    launcher: str
    backend: str
    failed: bool
    msg: str
    run_dir: str
    job_id: str
    in_image: bool


def run_of(run: Mapping[str, object]) -> Run:
    """Return the relevant values of one run of torchfleet.cluster.launch in a loop."""
    failed = bool(run.get("failed") or run.get("state") != "succeeded")
    item = run["item"]
    asked: Mapping[str, str] = item if isinstance(item, Mapping) else {}
    return {
        "workload": asked["workload"],
        "launcher": asked["launcher"],
        "backend": asked["backend"],
        "failed": failed,
        "msg": str(run.get("msg") or ""),
        "run_dir": str(run.get("run_dir") or ""),
        "job_id": str(run.get("job_id") or ""),
        "in_image": bool(asked.get("in_image")),
    }


def speeds_of(runs: Sequence[Run]) -> list[Speed]:
    """Return the figures of the runs that succeeded. A run without figures is left out.

    Those in an image are proven to work, and not compared: the baseline is that of the nodes.
    """
    found = [speed_of(run) for run in runs if not run["failed"] and not run["in_image"]]
    return [speed for speed in found if speed]


def speed_of(run: Run) -> Speed | None:
    """Return the figures of one run (launcher, backend, run_dir), or None if it reported none."""
    directory = Path(run["run_dir"])
    try:
        result = json.loads(head_of(directory / "result.json", RESULT_BYTES))
        metrics, world_size = result["metrics"], int(result["world_size"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    busbw = figure(metrics, "busbw_gbps")
    if busbw is None:
        return None
    return Speed(
        launcher=run["launcher"],
        backend=run["backend"],
        device=BACKENDS[run["backend"]].device,
        world_size=world_size,
        busbw=busbw,
        reduced=figure(metrics, "reduced_gb") or 0.0,
        nic_sent=figure(metrics, "nic_sent_gb"),
        rdma_sent=figure(metrics, "rdma_sent_gb"),
        transport=transport(directory) if run["backend"] == "nccl" else Transport(),
    )


def figure(metrics: Mapping[str, object], name: str) -> float | None:
    """Return a number that a run reported, or None for anything else."""
    value = metrics.get(name)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and 0 <= value < MAX_GBPS else None


def transport(directory: Path) -> Transport:
    """Return what the ranks of a run printed about their connections."""
    outputs = sorted(directory.glob("ranks/*/stdout"))
    return transport_of(head_of(path, OUTPUT_BYTES) for path in outputs)


def head_of(path: Path, size: int) -> str:
    """Return the first bytes of a file as text. OSError if it cannot be read."""
    with path.open("rb") as file:
        return file.read(size).decode("utf-8", "replace")


def read_baseline(variable: str, name: str) -> dict[str, float]:
    """Return the stored rates by run, in GB/s; none if there is no such file. InputError for any other content."""
    try:
        rows = json.loads(head_of(Path(name).expanduser(), BASELINE_BYTES))["busbw_gbps"]
        found = {str(key): figure(rows, key) for key in rows}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is no baseline"
        raise InputError(variable, name, f"{reason}: remove the file, or give the path of another") from None
    return {key: rate for key, rate in found.items() if rate is not None}
