# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Pods that took more memory than they have. The kernel kills a rank or the whole container; the kubelet has a code."""

from __future__ import annotations

import signal
from collections.abc import Collection, Mapping

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.rank_record import rank_state
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import EndReason, RankError
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import (
    End,
    NodeReport,
    RankRecord,
)

OOM_KILLED = "OOMKilled"  # why a container ended in which the kernel killed a process for want of memory (kubelet)


def killed(report: NodeReport, end: End | None) -> list[RankRecord]:
    """Return the records of a pod's ranks that SIGKILL ended, which we did not send."""
    records = report["records"].values()
    return [row for row in records if row.get("signal") == signal.SIGKILL and rank_state(row, end) == "failed"]


def blame_memory_of_ranks(reports: Mapping[str, NodeReport], end: End | None, out_of_memory: Collection[str]) -> None:
    """Write into the records of killed ranks that their pod had no memory left. `out_of_memory`: these pods."""
    for host, report in reports.items():
        for record in killed(report, end) if host in out_of_memory else []:
            record["error_code"], record["error"] = RankError.OUT_OF_MEMORY, reasons.RANK_OUT_OF_MEMORY


def blame_memory_of_pod(end: End | None, out_of_memory: Collection[str]) -> End | None:
    """Return why a job ended: memory, if the pod that was lost was killed whole for want of it. It had no last word."""
    host = end.get("host", "") if end else ""
    if end is None or end["reason"] != EndReason.LOST or host not in out_of_memory:
        return end
    code, detail = reasons.pod_out_of_memory(host)
    return {**end, "reason": code, "detail": detail}
