# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.verify: plan the tests, judge their results. Documentation: plugins/modules."""

from __future__ import annotations

import dataclasses
import shutil
import time
from typing import Any

from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import TRIED
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.report_file import keep_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import answers as health_answers
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import proven_links, verify, verify_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import trial as trial_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift import RULES, compare
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift_values import versions_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.findings import (
    check_ids,
    errors,
    sort_out,
    verdict,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_input import answer_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.run_results import (
    read_baseline,
    run_of,
    speeds_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.speed import merged_baseline
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory import hostvars
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.away import groups_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.runtime_archive import digest

Result = dict[str, Any]
display = Display()
JUDGED = ("untested", "left_out", "kept", "kept_at")  # of a trial: what the next tasks do not need


class ActionModule(Action):
    """One task for all nodes."""

    BYPASS_HOST_LOOP = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return the tests to run, or report and msg; failed if there are errors among the findings.

        Raise InputError for an answer that no node can have given.
        """
        head, workers = groups_of(variables)["head"][0], groups_of(variables)["workers"]
        asked = {name: answer_of(answer) for name, answer in given["answers"].items()}
        checked = verify.take(asked, given["listened"], given["measured"])
        answers = checked.answers
        facts = {name: answer.facts for name, answer in answers.items() if answer.facts}
        versions = {name: versions_of(fact, digest()) for name, fact in facts.items()}
        now = proven_links.digests(facts, versions, checked.listened)
        proven = proven_links.read_proven("verify_matrix", given["matrix"])
        launchers = TRIED if given["launchers"] is None else given["launchers"]
        image = hostvars.has_image(given["container_image"], variables["hostvars"], workers)
        trial = trial_module.plan_trial(answers, checked.listened, head, workers, launchers, image)
        trial = trial if given["all"] else proven_links.spare(trial, proven, now)
        if given["state"] == "plan":
            return {key: value for key, value in dataclasses.asdict(trial).items() if key not in JUDGED}
        runs = [run_of(run) for run in given["runs"]]
        outcome = verify.Outcome(
            answers=answers,
            listened=checked.listened,
            failures=health_answers.failures_of(head, given["logins"], list(answers)),
            measured=proven_links.joined(checked.measured, proven_links.rows_of(proven.measured, trial.kept)),
            runs=runs,
            trial=trial,
            drift=compare(versions, workers),
            head=head,
            workers=workers,
            gpus={name: hostvars.expected_gpus(name, variables["hostvars"][name]) for name in workers},
            speeds=speeds_of(runs),
            floor=given["floor_gbps"],
            cluster=given["cluster"],
            baseline={} if given["baseline_reset"] else read_baseline("verify_baseline", given["baseline"]),
            rails=proven_links.joined(checked.rails, proven_links.rows_of(proven.rails, trial.kept)),
            certificate_days=given["certificate_days"],
        )
        judged = self.judge(outcome, given["report"], given["ignore"])
        at = trial.kept_at or self.at
        links = proven_links.next_proven(proven, now, outcome.measured, outcome.rails, self.findings, at)
        if trial.steps:  # also if no link is good any more: none of those in the file is proven then
            keep_report("verify_matrix", given["matrix"], dataclasses.asdict(links))
        return {**judged, **keep_baseline(outcome, given)}

    def judge(self, outcome: verify.Outcome, path: str, ignore: list[str]) -> Result:
        """Show and store the findings. Raise InputError for a report that cannot be written, or an unknown id."""
        known = {**verify.RULES, **RULES}
        self.findings = findings = sort_out(verify.judge(outcome), check_ids("verify_ignore", ignore, known))
        self.at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        kept = keep_report("verify_report", path, verify_report.report(outcome, findings, self.at))
        for run in outcome.runs:
            if not run["failed"]:
                shutil.rmtree(run["run_dir"], ignore_errors=True)  # the report has its results
        lines = verify_report.show(outcome, findings)
        display.display("\n".join(lines))
        stops = errors(findings)
        return {
            "failed": bool(stops),
            "report": kept,
            "msg": f"{verdict(findings)}; report: {kept}" if stops else lines[-1],
        }


def keep_baseline(outcome: verify.Outcome, given: Result) -> Result:
    """Store the best rates that were ever measured. A run that was too slow does not make the baseline lower."""
    rates = merged_baseline(outcome.baseline, outcome.speeds, outcome.network)
    if not rates or rates == dict(outcome.baseline):
        return {}
    return {"baseline": keep_report("verify_baseline", given["baseline"], {"busbw_gbps": rates})}
