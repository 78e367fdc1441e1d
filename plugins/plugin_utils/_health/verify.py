# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""verify.yml: the findings from the results of its tests (trial.py has the tests). Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ansible_collections.torchfleet.cluster.plugins.module_utils._fabric.unreached import BY_FIREWALL, UnreachedCode
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric import answers as fabric_answers
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric import link_matrix
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.choice import daemons_of
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.fabric_types import (
    Measured,
    Published,
    RailMeasured,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.firewalls import (
    OPEN,
    blockers,
    names_of,
)
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.networks import node_net
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.rail_matrix import unreported
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from . import speed as speed_module
from .drift import Drift, drift_findings
from .findings import Finding, Rule, found
from .gpu_proof import RULES as GPU_PROOF_RULES
from .gpu_proof import gpu_proof_findings
from .gpu_rules import RULES as GPU_RULES
from .gpu_rules import gpu_findings
from .preflight_types import Answer
from .rail_links import RULES as RAIL_LINK_RULES
from .rail_links import judge_rail_links
from .rails import RULES as RAIL_RULES
from .rails import judge_rails, missing_address
from .run_results import Run
from .speed import Network, Speed, judge_speed, network_of
from .trial import BURN_IN, Listened, Trial, published

# By the code of a link.
RULE_OF: Mapping[str, str] = {
    **dict.fromkeys(BY_FIREWALL, "TF-VERIFY-FIREWALL"),
    UnreachedCode.SMALL_MTU: "TF-VERIFY-MTU",
}
RENEW_DAYS = 30  # setup renews a certificate much earlier: nobody has run it for long

RULES: Mapping[str, Rule] = {
    "TF-VERIFY-NODE": Rule(
        "error",
        "the node does not answer",
        "a job needs all of its nodes",
        "Ansible's own connection failed",
        "see the error: ansible {node} -m ping; or remove the node from the inventory",
    ),
    "TF-VERIFY-LOGIN": Rule(
        "error",
        "a login between nodes fails",
        "the launcher starts its daemons over SSH: a job would not start",
        "tested with strict host keys, as in a job",
        "ansible-playbook setup.yml --tags ssh_mesh",
    ),
    "TF-VERIFY-CERTIFICATE": Rule(
        "warning",
        "the SSH certificate of the head ends soon",
        "from then on no node lets the head in, and no job starts",
        "its end is in the certificate: ssh-keygen -L -f ~/.torchfleet/ssh/id_ed25519-cert.pub",
        "ansible-playbook setup.yml --tags ssh_mesh",
    ),
    "TF-VERIFY-FABRIC": Rule(
        "error",
        "no NIC was chosen",
        "without it libraries guess a NIC, and a wrong guess hangs without a message",
        "Open MPI, gloo and Intel MPI with a dead second NIC",
        "ansible-playbook setup.yml --tags fabric",
    ),
    "TF-VERIFY-LINK": Rule(
        "error",
        "two nodes cannot reach each other over the chosen NICs",
        "collectives between them would hang",
        "tested over TCP",
        "check cable, switch and firewall between them; or choose the NICs again: "
        "ansible-playbook setup.yml --tags fabric",
    ),
    "TF-VERIFY-FIREWALL": Rule(
        "error",
        "a firewall stops two nodes from reaching each other over the chosen NICs",
        "collectives between them would hang",
        "tested over TCP; the machine answers on the link (ARP, NDP), or an ICMP error arrived",
        OPEN,
    ),
    "TF-VERIFY-MTU": Rule(
        "error",
        "two nodes lose full packets over the chosen NICs",
        "small messages pass, and the first tensor hangs",
        "packets of the full MTU that no router may split",
        "set the MTU of the switch ports between them, or a smaller one on both NICs: ip link set <NIC> mtu 1500; then "
        "ansible-playbook setup.yml --tags fabric",
    ),
    "TF-VERIFY-SLOW": Rule(
        "warning",
        "a link is much slower than the others",
        "every all-reduce waits for the slowest link",
        "measured against the median of all links",
        "check speed, duplex and cable, on the node: ethtool <NIC>",
    ),
    "TF-VERIFY-LAUNCHER": Rule(
        "error",
        "none of the requested launchers is on all nodes",
        "a job could not start its ranks",
        "versions found on the nodes",
        "ansible-playbook setup.yml",
    ),
    "TF-VERIFY-RUN": Rule(
        "error",
        "an all-reduce failed",
        "training would fail the same way",
        "run as a job, with its placement and sums checked",
        "ansible-playbook train.yml -e workload=all_reduce_bench -e launcher={launcher} -e backend={backend}",
    ),
    "TF-VERIFY-BURN-IN": Rule(
        "error",
        "a GPU is slow or computes wrongly",
        "every step waits for the slowest GPU, and a wrong result spoils the model",
        "matrix products and copies on every GPU, against the median and against each other",
        "see its clocks and temperature under load, on the node: nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE",
    ),
    **speed_module.RULES,
    **GPU_PROOF_RULES,
    **GPU_RULES,
    **RAIL_RULES,
    **RAIL_LINK_RULES,
}


@dataclass(frozen=True)
class CheckedAnswers:
    """The checked answers of the nodes. An invalid answer is replaced by an empty one; `answers` has the reason."""

    answers: Mapping[str, Answer]
    listened: Mapping[str, Listened]
    measured: Mapping[str, Sequence[Measured]]
    rails: Mapping[str, Sequence[RailMeasured]]  # what was measured of them


def take(
    answers: Mapping[str, Answer], listened: Mapping[str, Mapping[str, object]], measured: Mapping[str, object]
) -> CheckedAnswers:
    """Return the checked answers of the nodes."""
    kept, checked_listened = dict(answers), dict[str, Listened]()
    rows, rails = dict[str, list[Measured]](), dict[str, list[RailMeasured]]()
    for name in answers:
        try:
            checked_listened[name] = listened_of(name, listened.get(name) or {})
            links, of_rails = fabric_answers.parted(measured.get(name))
            rows[name] = fabric_answers.measured_of(name, links, list(answers))
            rails[name] = fabric_answers.rails_measured_of(name, of_rails, list(answers))
        except InputError as error:
            kept[name], checked_listened[name] = Answer(failure=str(error)), {}
            rows[name], rails[name] = [], []
    return CheckedAnswers(kept, checked_listened, rows, rails)


def listened_of(name: str, listened: Mapping[str, object]) -> Listened:
    """Return fabric.json, probe server and networks of a node, from the answer of torchfleet.cluster.fabric_probe."""
    asked = fabric_answers.constraints_of(name, listened.get("constraints"))
    net = node_net(name, listened["facts"], asked) if listened.get("facts") else None
    agent = fabric_answers.agent_of(name, listened["agent"]) if listened.get("agent") else None
    text = (net.files or {}).get("fabric.json") if net else ""
    return {
        "fabric": fabric_answers.published(text or ""),
        "agent": agent,
        "net": net,
        "rates": {port.device: port.rate_gbit or 0.0 for port in net.ports} if net else {},
    }


@dataclass(frozen=True)
class Outcome:
    """The results of a trial."""

    answers: Mapping[str, Answer]
    listened: Mapping[str, Listened]
    failures: Sequence[Mapping[str, str]]  # of logins: from, to, why
    measured: Mapping[str, Sequence[Measured]]
    runs: Sequence[Run]  # launcher, backend, failed, msg, run_dir
    trial: Trial
    drift: Drift
    head: str = ""
    workers: Sequence[str] = ()
    gpus: Mapping[str, int | None] = field(default_factory=dict)  # torchfleet_gpus of the inventory
    speeds: Sequence[Speed] = ()
    floor: float | None = None  # GB/s
    baseline: Mapping[str, float] = field(default_factory=dict)  # GB/s by Network.key
    cluster: str = ""  # the name by which the mesh and the firewall know it
    rails: Mapping[str, Sequence[RailMeasured]] = field(default_factory=dict)  # what was measured of them
    certificate_days: int = -1  # that the head can log in for; -1 if it has no certificate

    @property
    def network(self) -> Network:
        """Return what carries the data of the workers."""
        fabrics = {name: each for name, each in published(self.listened).items() if name in self.workers}
        rates = {name: self.listened[name].get("rates", {}) for name in fabrics}
        return network_of(fabrics, rates, self.cluster)


def judge(outcome: Outcome) -> Iterator[Finding]:
    """Yield the findings of a trial."""
    for name, answer in outcome.answers.items():
        if not answer.facts:
            yield found(RULES, "TF-VERIFY-NODE", [name], answer.problem or answer.failure, node=name)
        elif name in outcome.workers:
            yield from gpu_findings(name, answer.facts, outcome.gpus.get(name))
    yield from drift_findings(outcome.drift)
    for login in outcome.failures:
        yield found(RULES, "TF-VERIFY-LOGIN", [login["from"]], f"to {login['to']}: {login['why']}")
    if 0 <= outcome.certificate_days < RENEW_DAYS:
        yield found(RULES, "TF-VERIFY-CERTIFICATE", [], f"it ends in {outcome.certificate_days} days")
    yield from judge_links(outcome)
    untested = (*outcome.trial.untested, *unreported(outcome.trial.steps, outcome.rails))
    yield from judge_rail_links(outcome.rails, untested, outcome.trial.left_out, gone_from(outcome))
    nets = [net for told in outcome.listened.values() if (net := told.get("net"))]
    yield from judge_rails([replace(net, worker=net.name in outcome.workers) for net in nets])
    if not outcome.runs:
        yield found(RULES, "TF-VERIFY-LAUNCHER", [], "none of verify_launchers")
    for run in outcome.runs:
        if run["failed"]:
            where = " in the image" if run["in_image"] else ""
            seen = f"{run['launcher']} with {run['backend']}{where}: {run['msg']}"
            name = "TF-VERIFY-BURN-IN" if run["workload"] == BURN_IN else "TF-VERIFY-RUN"
            yield found(RULES, name, [], seen, launcher=run["launcher"], backend=run["backend"])
    if outcome.runs:
        told = {name: facts for name in outcome.workers if (facts := outcome.answers[name].facts)}
        yield from gpu_proof_findings(told, outcome.runs, outcome.gpus)
    yield from judge_speed(outcome.speeds, outcome.network, outcome.floor, outcome.baseline)


def judge_links(outcome: Outcome) -> Iterator[Finding]:
    """Yield the findings about the network between the nodes."""
    fabrics = published(outcome.listened)
    without = [name for name in outcome.trial.nodes if name not in fabrics]
    if without and len(outcome.answers) > 1:
        yield found(RULES, "TF-VERIFY-FABRIC", without, "there is no fabric.json")
    yield from judge_networks(outcome, fabrics)
    for name, others in unmeasured(outcome).items():
        yield found(RULES, "TF-VERIFY-LINK", [name], f"to {fold_names(others)}: it reported no measurement")
    gone = gone_from(outcome)
    for name, rows in outcome.measured.items():
        for row in rows:
            if row["error"] and not gone & {name, row["node"]}:
                rule = RULE_OF.get(row.get("code", ""), "TF-VERIFY-LINK")
                seen = f"to {row['node']}: {row['error']}{known_firewalls(outcome, name, row)}"
                yield found(RULES, rule, [name], seen)
    rates = link_matrix.rates(outcome.measured, outcome.trial.network)
    of_ranks = set(outcome.workers if len(outcome.workers) > 1 else outcome.answers)
    for slow in link_matrix.slow_links({pair: rate for pair, rate in rates.items() if of_ranks >= set(pair)}):
        yield found(RULES, "TF-VERIFY-SLOW", [name for name in (slow.source, slow.target) if name], str(slow))


def gone_from(outcome: Outcome) -> set[str]:
    """Return the nodes that lost their address: TF-VERIFY-ADDRESS says why nothing reaches them, not a firewall."""
    return {name for name, told in outcome.listened.items() if (net := told.get("net")) and missing_address(net)}


def judge_networks(outcome: Outcome, fabrics: Mapping[str, Published]) -> Iterator[Finding]:
    """Yield the nodes that are in another network: of the ranks, or of the daemons that the head starts."""
    daemons = fabrics[outcome.head]["network"] if outcome.head in fabrics else ""
    for name, fabric in fabrics.items():
        apart = "daemons" in fabric or (name == outcome.head and name not in outcome.workers)
        if (
            outcome.trial.network
            and not (apart and name == outcome.head)
            and fabric["network"] != outcome.trial.network
        ):
            seen = f"its network is {fabric['network']}, that of the others is {outcome.trial.network}"
            yield found(RULES, "TF-VERIFY-FABRIC", [name], seen)
        if apart and daemons_of(fabric)["network"] != daemons:
            seen = f"launchers reach it by {daemons_of(fabric)['network']}, the head is in {daemons}"
            yield found(RULES, "TF-VERIFY-FABRIC", [name], seen)


def known_firewalls(outcome: Outcome, name: str, row: Measured) -> str:
    """Return the firewalls of the node that stopped a connection, as the end of a sentence."""
    blocker = blockers({name: [row]})
    facts = outcome.answers[blocker[0]].facts if blocker else None
    return f" ({blocker[0]}: {names_of(facts['firewall'])})" if facts else ""


def unmeasured(outcome: Outcome) -> dict[str, list[str]]:
    """Return the links that a node should have measured but did not report. A node without facts failed before."""
    missing = {}
    for name, steps in outcome.trial.steps.items():
        measured = {row["node"] for row in outcome.measured.get(name, ()) if row["network"] == outcome.trial.network}
        links = [step for step in steps if step["role"] == "client" and "rails" not in step]
        others = [step["node"] for step in links if step["node"] not in measured]
        if others and outcome.answers[name].facts:
            missing[name] = others
    return missing
