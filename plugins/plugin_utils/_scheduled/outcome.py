# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The result of a job in pods, from what their logs said: by the same rules as that of any job."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.first_failure import (
    blame_launcher,
    blame_lost_node,
    deaths_of,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.result import (
    Found,
    add_records,
    keep_usage,
    summarize,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.hang import Verdict
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.looks.last_look import (
    looked_at_end,
    verdict_at_end,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.evidence import Evidence
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import JobOrder, ranks_by_host
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import RankError
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.records import (
    BlamedLauncher,
    End,
    Metric,
    NodeReport,
    RankRecord,
    Result,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.last_look import keep_last_look

from .pod_memory import blame_memory_of_pod, blame_memory_of_ranks


def result_of(
    order: JobOrder,
    reports: Mapping[str, NodeReport],
    end: End | None,
    started: float,
    out_of_memory: Collection[str] = (),
) -> Result:
    """Return the result of a job. `reports` by pod: those that told one; `started`: seconds since the epoch.

    `out_of_memory`: pods in which the kernel killed something for want of memory.
    """
    blame_memory_of_ranks(reports, end, out_of_memory)
    hosts = {place["rank"]: place["host"] for place in order["placement"]}
    records: dict[int, RankRecord] = {}
    lines, ranks = dict.fromkeys(hosts, ("stderr", "")), ranks_by_host(order["placement"])
    metrics: dict[str, Metric] = {}
    for host, report in reports.items():
        own = ranks[host]
        add_records(records, report, host, hosts)
        lines.update({int(rank): (line[0], line[1]) for rank, line in report["lines"].items() if int(rank) in own})
        metrics.update({name: value for name, rank, value in report["metrics"] if rank in own})
    head, launchers = order["head"], {host: report["launcher"] for host, report in reports.items()}
    silent = [host for host in dict.fromkeys(hosts.values()) if host not in reports]
    end = blame_memory_of_pod(blame_lost_node(end, silent, launchers.get(head, {}), records, lines), out_of_memory)
    end = blame_launcher(end, deaths_of(launchers, head), records, head)
    blamed = (end.get("host") if end else "") or head
    culprit: BlamedLauncher = {**launchers.get(blamed, {}), "host": blamed}
    usages = {host: usage for host, report in reports.items() if (usage := report.get("usage"))}
    found = Found(
        leftovers={host: report["leftovers"] for host, report in reports.items()},
        metrics=metrics,
        started=started,
        ended=time.time(),
        hang=hang_of(end, reports, hosts),
        usage=usages,
    )
    return summarize(order, records, end, lines, culprit, found)


def hang_of(end: End | None, reports: Mapping[str, NodeReport], hosts: Mapping[int, str]) -> Verdict | None:
    """Return who kept a job from going on that job_timeout ended."""
    return verdict_at_end(end, evidence_in(reports), dict(hosts))


def evidence_in(reports: Mapping[str, NodeReport]) -> list[Evidence]:
    """Return what pods told of their ranks when job_timeout passed."""
    return [row for report in reports.values() for row in report.get("evidence", [])]


def keep(run_dir: Path, result: Result, reports: Mapping[str, NodeReport]) -> None:
    """Write result.json, usage.json and the last look into the run directory, and what pods did not know. OSError."""
    job = JobDir(str(run_dir))
    hosts = {row["rank"]: row["host"] for row in result["placement"]}
    for host, report in reports.items():
        for rank, record in ((int(text), record) for text, record in report["records"].items()):
            if record.get("error_code") == RankError.OUT_OF_MEMORY and hosts.get(rank) == host:
                os.makedirs(job.rank(rank, ""), 0o700, exist_ok=True)  # of a node that sent no files before
                job.write(os.path.join("ranks", str(rank), "record.json"), record)
    keep_usage(job, {host: usage for host, report in reports.items() if (usage := report.get("usage"))})
    evidence = evidence_in(reports)
    if evidence:
        keep_last_look(result["job_id"], run_dir, looked_at_end(result["placement"], evidence))
    job.write("result.json", result)
