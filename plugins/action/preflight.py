# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.preflight: judge the facts of the nodes, show and store the findings."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, cast

from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._controller.report_file import keep_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import findings as findings_module
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health import preflight, preflight_input
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift import compare
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.drift_values import versions_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_network import network_findings
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_rules import RULES
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._health.preflight_types import Target
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory import hostvars
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.away import groups_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import check_cluster
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.runtime_archive import digest

Result = dict[str, Any]
display = Display()


class ActionModule(Action):
    """One task for all nodes."""

    BYPASS_HOST_LOOP = True
    parses_values = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return report and msg; failed if there are errors among the findings."""
        options = preflight_input.parse_options(cast(preflight_input.Given, given), RULES)
        targets = [self.target(name, variables) for name in options.answers]
        facts = {name: answer.facts for name, answer in options.answers.items() if answer.facts}
        versions = {name: versions_of(fact, digest()) for name, fact in facts.items()}
        drift = compare(versions, [target.name for target in targets if target.worker])
        asked = {name: hostvars.asked_of_fabric(variables["hostvars"][name]) for name in facts}
        found = [
            *self.refusals(variables),
            *preflight.judge(targets, options.answers, options.limits, drift),
            *network_findings(targets, facts, asked, str(hostvars.to_plain(variables.get("fabric_subnet")) or "")),
        ]
        findings = findings_module.sort_out(found, options.ignore)
        at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        path = keep_report(
            "preflight_report", options.report, preflight_input.report_of(findings, options.answers, drift, at)
        )
        title = f"preflight of {len(targets)} node{'s' * (len(targets) != 1)}: {findings_module.count(findings)}"
        display.display("\n".join([title, *findings_module.render(findings)]))
        stops = findings_module.errors(findings)
        msg = f"{findings_module.verdict(findings)}; report: {path}" if stops else title
        return {"failed": bool(stops), "report": path, "msg": msg}

    def target(self, name: str, variables: dict[str, Any]) -> Target:
        """Return one host of the play."""
        theirs = variables["hostvars"][name]
        known = {key: hostvars.to_plain(theirs.get(key)) for key in preflight_input.HOST_VARIABLES}
        known["ansible_become_password"] = known["ansible_become_password"] or self._play_context.become_pass
        return preflight_input.target_of(name, known, hostvars.to_plain(variables["groups"]))

    def refusals(self, variables: dict[str, Any]) -> Iterator[findings_module.Finding]:
        """Yield what a job's plan would refuse in this inventory."""
        try:
            check_cluster(hostvars.cluster_from_hostvars(groups_of(variables), variables["hostvars"]))
        except InputError as error:
            yield findings_module.found(RULES, "TF-INVENTORY", [], str(error))
