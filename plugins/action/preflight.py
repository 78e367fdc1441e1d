# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Action of torchfleet.cluster.preflight: judge, show and keep what nodes told. Documentation: plugins/modules."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from ansible.utils.display import Display

from ansible_collections.torchfleet.cluster.plugins.plugin_utils import _border, _drift, _findings, _preflight
from ansible_collections.torchfleet.cluster.plugins.plugin_utils import _preflight_wish as _wish
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._action import Action
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cluster import check_cluster
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._preflight_rules import RULES
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._report import keep_report
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._runtime import digest

Result = dict[str, Any]
display = Display()


class ActionModule(Action):
    """One task for all nodes."""

    BYPASS_HOST_LOOP = True
    parses_values = True

    def act(self, given: Result, variables: Result) -> Result:
        """Return report and msg; failed if there are errors among the findings."""
        wish = _wish.parse_wish(given, RULES)
        targets = [self.target(name, variables) for name in wish.answers]
        facts = {name: answer.facts for name, answer in wish.answers.items() if answer.facts}
        versions = {name: _drift.versions_of(fact, digest()) for name, fact in facts.items()}
        drift = _drift.compare(versions, [target.name for target in targets if target.worker])
        found = [*self.refusals(variables), *_preflight.judge(targets, wish.answers, wish.limits, drift)]
        findings = _findings.sort_out(found, wish.ignore)
        at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        path = keep_report("preflight_report", wish.report, _wish.report_of(findings, wish.answers, drift, at))
        title = f"preflight of {len(targets)} node{'s' * (len(targets) != 1)}: {_findings.count(findings)}"
        display.display("\n".join([title, *_findings.render(findings)]))
        stops = _findings.errors(findings)
        msg = f"{_findings.verdict(findings)}; report: {path}" if stops else title
        return {"failed": bool(stops), "report": path, "msg": msg}

    def target(self, name: str, variables: dict[str, Any]) -> _preflight.Target:
        """Return one host of the play."""
        theirs = variables["hostvars"][name]
        known = {key: _border.to_plain(theirs.get(key)) for key in _wish.HOST_VARIABLES}
        known["ansible_become_password"] = known["ansible_become_password"] or self._play_context.become_pass
        return _wish.target_of(name, known, _border.to_plain(variables["groups"]))

    def refusals(self, variables: dict[str, Any]) -> Iterator[_findings.Finding]:
        """Yield what the plan of a job would refuse of this inventory."""
        try:
            check_cluster(_border.cluster_from_hostvars(_border.to_plain(variables["groups"]), variables["hostvars"]))
        except InputError as error:
            yield _findings.found(RULES, "TF-INVENTORY", [], str(error))
