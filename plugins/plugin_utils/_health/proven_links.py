# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Links that an earlier proof measured: where a node was added, it is tested with the others, not they with each other.

A file on the controller (`verify_matrix`) has the measurements of every pair of nodes without a fault, and of each node
a digest of what they depend on: the machine, its versions, its seat in the network. A pair is kept if both are as they
were.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric import answers as fabric_answers
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._fabric.fabric_types import Measured, RailMeasured
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .drift import digest_of
from .findings import Finding
from .rail_links import NOT_TRIED
from .trial import Trial

Row = TypeVar("Row", Measured, RailMeasured)
Rows = Mapping[str, Sequence[Row]]  # by the node that measured
Pair = tuple[str, str]  # in the order of their names
MATRIX_BYTES = 256 << 20  # of the file: 1,000 nodes have some 100 MB
SEAT = ("nic", "address", "network", "mtu", "rdma", "daemons")  # of fabric.json; the rest tells of other nodes too
# Findings about links: a pair that one of them may be about is tested again.
FAULTS = {
    *("TF-VERIFY-LINK", "TF-VERIFY-FIREWALL", "TF-VERIFY-MTU", "TF-VERIFY-SLOW", "TF-VERIFY-ADDRESS"),
    *("TF-RAIL-LINK", "TF-RAIL-FIREWALL", "TF-RAIL-MTU", "TF-RAIL-LINK-SLOW"),
}


@dataclass(frozen=True)
class Proven:
    """What was measured. `at`: when all links were last tested; `nodes`: the digest of each node."""

    at: str = ""
    nodes: Mapping[str, str] = field(default_factory=dict)
    measured: Rows[Measured] = field(default_factory=dict)
    rails: Rows[RailMeasured] = field(default_factory=dict)


def read_proven(variable: str, name: str) -> Proven:
    """Return what is stored; nothing if there is no such file. InputError for any other content."""
    try:
        with Path(name).expanduser().open("rb") as file:
            found = json.loads(file.read(MATRIX_BYTES))
        nodes = {str(node): str(digest) for node, digest in found["nodes"].items()}
        measured = {node: fabric_answers.measured_of(node, found["measured"].get(node), list(nodes)) for node in nodes}
        rails = {node: fabric_answers.rails_measured_of(node, found["rails"].get(node), list(nodes)) for node in nodes}
        return Proven(str(found["at"]), nodes, measured, rails)
    except FileNotFoundError:
        return Proven()
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it has no links"
        raise InputError(variable, name, f"{reason}: remove the file, or give the path of another") from None


def digest_of_node(facts: Mapping[str, object], versions: Mapping[str, str], told: Mapping[str, object]) -> str:
    """Return the digest of what the tests of a node's links depend on. `told`: its fabric.json, under `fabric`."""
    fabric, host = (found if isinstance(found, Mapping) else {} for found in (told.get("fabric"), facts.get("host")))
    machine = {name: host.get(name) for name in ("machine_id", "host_keys")}
    own = {name: version for name, version in versions.items() if name != "image"}  # in which no link is tested
    return digest_of([machine, own, {name: fabric.get(name) for name in SEAT}])


def digests(
    facts: Mapping[str, Mapping[str, object]],
    versions: Mapping[str, Mapping[str, str]],
    told: Mapping[str, Mapping[str, object]],
) -> dict[str, str]:
    """Return the digest of each node that has facts. `told`: what each says of its fabric."""
    return {name: digest_of_node(fact, versions[name], told[name]) for name, fact in facts.items()}


def pair_of(one: str, other: str) -> Pair:
    """Return two nodes in the order of their names."""
    return (one, other) if one < other else (other, one)


def spare(trial: Trial, proven: Proven, now: Mapping[str, str]) -> Trial:
    """Return the tests without those of proven pairs. If all pairs are proven, or none, every one is tested.

    `now`: the digest of each node that answers.
    """
    planned = {pair_of(name, step["node"]) for name, own in trial.steps.items() for step in own}
    same = {name for name, digest in now.items() if proven.nodes.get(name) == digest}
    known = {pair_of(name, row["node"]) for name, row in each_of(proven.measured) if row["network"] == trial.network}
    kept = {pair for pair in planned & known if same.issuperset(pair)}
    if not kept or kept == planned:
        return trial
    steps = {
        name: [step for step in own if pair_of(name, step["node"]) not in kept] for name, own in trial.steps.items()
    }
    return dataclasses.replace(trial, steps=steps, kept=tuple(sorted(kept)), kept_at=proven.at)


def each_of(rows: Rows[Row]) -> Iterable[tuple[str, Row]]:
    """Yield the node that measured, and what, of all."""
    return ((name, row) for name, own in rows.items() for row in own)


def rows_of(rows: Rows[Row], pairs: Collection[Pair]) -> dict[str, list[Row]]:
    """Return the measurements of some pairs."""
    found: dict[str, list[Row]] = {}
    for name, row in each_of(rows):
        if pair_of(name, row["node"]) in pairs:
            found.setdefault(name, []).append(row)
    return found


def joined(rows: Rows[Row], more: Rows[Row]) -> dict[str, list[Row]]:
    """Return both measurements as one."""
    found = {name: list(own) for name, own in rows.items()}
    for name, own in more.items():
        found.setdefault(name, []).extend(own)
    return found


def next_proven(
    proven: Proven,
    now: Mapping[str, str],
    measured: Rows[Measured],
    rails: Rows[RailMeasured],
    findings: Iterable[Finding],
    at: str,
) -> Proven:
    """Return what to store after a proof: what it measured or kept, and of nodes that did not take part what there was.

    A node that is away, or does not answer, is not tested with all others because of that. `at`: when all links were
    last tested.
    """
    suspects = [set(finding.nodes) for finding in findings if finding.id in FAULTS and finding.nodes]
    failed = {pair_of(name, row["node"]) for name, row in each_of(measured) if row["error"]}
    failed |= {pair_of(name, row["node"]) for name, row in each_of(rails) if row["code"] not in ("", *NOT_TRIED)}
    here = {pair_of(name, row["node"]) for name, row in each_of(measured)} - failed
    here = {pair for pair in here if not any(nodes <= set(pair) for nodes in suspects)}
    nodes = {**proven.nodes, **now}
    same = {name for name, digest in proven.nodes.items() if nodes[name] == digest}
    left = {pair_of(name, row["node"]) for name, row in each_of(proven.measured)}
    left = {pair for pair in left if same.issuperset(pair) and not now.keys() >= set(pair)}
    return Proven(
        at,
        dict(sorted(nodes.items())),
        joined(rows_of(measured, here), rows_of(proven.measured, left)),
        joined(rows_of(rails, here), rows_of(proven.rails, left)),
    )
