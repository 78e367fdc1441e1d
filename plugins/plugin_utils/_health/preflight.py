# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Preflight: findings from the inventory and the facts of all nodes, before anything is changed. Pure.

A finding is looked for in preflight_inventory.py, preflight_no_answer.py, preflight_one_node.py and
preflight_all_nodes.py. preflight_rules.py has the texts of each (severity, why, source, mend). prerequisites.py knows
which of them setup mends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .drift import Drift, drift_findings
from .findings import Finding
from .preflight_all_nodes import shared_identities, without_compiler
from .preflight_inventory import inventory_findings
from .preflight_no_answer import explain_no_answer
from .preflight_one_node import NODE_RULES
from .preflight_types import Answer, Case, Limits, Target
from .prerequisites import mended_by_setup


def judge(targets: Sequence[Target], answers: Mapping[str, Answer], limits: Limits, drift: Drift) -> list[Finding]:
    """Return all findings, also of nodes that did not answer. `answers` by node name."""
    findings = list(inventory_findings(targets))
    cases = []
    for target in targets:
        answer = answers[target.name]
        if answer.facts is None:
            findings.append(explain_no_answer(target, answer))
        else:
            cases.append(Case(target, answer.facts, answer.clock, limits, len(targets)))
    for case in cases:
        findings += mended_by_setup(case, [finding for rule in NODE_RULES for finding in rule(case)])
    findings += shared_identities({case.target.name: case.facts for case in cases})
    findings += without_compiler(cases)
    return findings + drift_findings(drift, before_setup=True)
