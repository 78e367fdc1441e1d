# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Drift: differences between nodes that must be equal, as a table with a digest of each node and of all. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.distribution import words
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.launchers import LAUNCHERS, MPIS
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.node_names import fold_names

from .findings import Finding, Rule, found, text_table

SETUP = "run ansible-playbook setup.yml, which makes them equal"


def same(value: str) -> str:
    """Return a value as it is: every difference counts in full."""
    return value


def minor(value: str) -> str:
    """Return "3.11" of "3.11.2"."""
    return ".".join(value.split(".")[:2])


def release(value: str) -> str:
    """Return "2.13.0" of "2.13.0+cpu": the rest names the build, which differs with the hardware."""
    return value.partition("+")[0]


def model_of_gpus(value: str) -> str:
    """Return "NVIDIA H100" of "8 x NVIDIA H100"."""
    return value.partition(" x ")[2]


def cluster_of(value: str) -> str:
    """Return the cluster UUID of "UUID/32766"."""
    return value.partition("/")[0]


@dataclass(frozen=True)
class Property:
    """One property that is compared. A difference that `coarse` removes has the severity `fine`."""

    rule: Rule
    coarse: Callable[[str], str] = same
    fine: str = "info"
    workers_only: bool = False
    by_setup: bool = False  # setup.yml makes it equal: before that, a difference is only an info
    may_lack: bool = False  # a node may be without it


def differs(severity: str, title: str, why: str, source: str, mend: str = SETUP) -> Rule:
    """Return the rule of a property."""
    return Rule(severity, f"{title} differs", why, source, mend)


NOTHING = "nothing to do"
MIXED = "daemons of different versions do not work together: unknown options, unpack errors, hangs"
NOTHING_IF_MEANT = "nothing to do if this is intended"
FEWER_GBIT = "an all-reduce waits for the slowest rail"
PROPERTIES: Mapping[str, Property] = {
    "arch": Property(
        differs(
            "error",
            "processor architecture",
            "all nodes need the same environment, and wheels are made for one architecture",
            "PyTorch has a wheel for each architecture",
            "write an inventory for each architecture",
        )
    ),
    "os": Property(differs("info", "distribution", "it may explain other differences", "precaution", NOTHING)),
    "kernel": Property(
        differs("info", "kernel", "it may explain different speeds", "precaution", NOTHING), workers_only=True
    ),
    "next_kernel": Property(
        differs(
            "info",
            "the kernel that boots next",
            "after a reboot the nodes run different kernels, one of them perhaps without a driver",
            "/boot and /lib/modules",
            "install the same kernel on all nodes",
        ),
        workers_only=True,
        may_lack=True,
    ),
    "libc": Property(
        differs(
            "warning",
            "C library",
            "programs built with the newer one do not start on the older one (version GLIBC_2.x not found)",
            "ld.so(8)",
            "install the same distribution on all nodes",
        ),
        workers_only=True,
    ),
    "base_python": Property(
        differs(
            "warning",
            "system Python",
            "the ranks' environment is created with it and has its version",
            "roles/pytorch",
            "install the same Python on all nodes and set it: pytorch_python: /usr/bin/python3.11",
        ),
        coarse=minor,
        workers_only=True,
    ),
    "python": Property(
        differs(
            "warning",
            "the ranks' Python",
            "ranks exchange pickled objects, and marshal's format is specific to one version",
            "Python library, pickle and marshal",
        ),
        coarse=minor,
        workers_only=True,
        by_setup=True,
    ),
    "torch": Property(
        differs(
            "error",
            "PyTorch",
            "ranks with different versions may hang when they communicate",
            "precaution: PyTorch promises nothing between versions",
        ),
        coarse=release,
        fine="warning",
        workers_only=True,
        by_setup=True,
    ),
    "torch_backends": Property(
        differs("error", "backend mpi", "ranks with different versions do not work together", "precaution"),
        workers_only=True,
        by_setup=True,
    ),
    "nccl": Property(
        differs("error", "NCCL", "ranks with different versions of NCCL hang or fail to connect", "nccl#286"),
        workers_only=True,
        by_setup=True,
        may_lack=True,
    ),
    "driver": Property(
        differs(
            "warning",
            "GPU driver",
            "collectives between GPUs with different drivers may hang",
            "pytorch#129749",
            "install the same version of the driver and prevent upgrades: {hold_driver}",
        ),
        workers_only=True,
        may_lack=True,
    ),
    "gpus": Property(
        differs(
            "warning",
            "model of the GPUs",
            "every step waits for the slowest GPU",
            "precaution",
            "nothing to do if this is intended; else see the findings about GPUs",
        ),
        coarse=model_of_gpus,
        fine="error",  # the same model, and another number of them: one is lost
        workers_only=True,
    ),
    "vbios": Property(
        differs("info", "firmware of the GPUs", "it may explain different speeds", "precaution", NOTHING),
        workers_only=True,
        may_lack=True,
    ),
    "rdma_cards": Property(
        differs("warning", "model of the RDMA devices", FEWER_GBIT, "board_id (PSID) in sysfs", NOTHING_IF_MEANT),
        workers_only=True,
    ),
    "rdma_firmware": Property(
        differs(
            "warning",
            "firmware of the RDMA devices",
            "RoCE's congestion control and adaptive routing differ between versions: some nodes are slower under load",
            "fw_ver in sysfs",
            "install the same firmware on all nodes: mlxfwmanager, or the vendor's own tool",
        ),
        workers_only=True,
    ),
    "rdma_links": Property(
        differs(
            "warning", "rate or width of the rails", FEWER_GBIT, "rate in sysfs", "check cable and switch port: ibstat"
        ),
        workers_only=True,
    ),
    "mtu": Property(
        differs(
            "warning",
            "MTU",
            "packets of the full size of one node are lost at another, or none uses the size that the network allows",
            "sysfs, of the NICs that role fabric chose",
            "set the same MTU on these NICs of all nodes; then ansible-playbook setup.yml --tags fabric",
        ),
        workers_only=True,
    ),
    "nvlink_domain": Property(
        differs(
            "info",
            "NVLink domain",
            "NCCL uses NVLink between nodes of one domain only; between the others it uses the network",
            "nvidia-smi --query, CliqueId and ClusterUUID",
            "nothing to do for racks that are joined by the network; else put the nodes into one NVLink partition",
        ),
        coarse=cluster_of,
        fine="warning",  # of one rack, and in different cliques
        workers_only=True,
    ),
    "memory": Property(
        differs(
            "warning",
            "main memory",
            "the node with the least memory ends the job first; a module may have failed",
            "precaution",
            "look for a failed memory module, on the node: dmidecode --type memory",
        ),
        workers_only=True,
    ),
    **{
        name: Property(differs("error", LAUNCHERS[name].title, MIXED, LAUNCHERS[name].mixed), by_setup=True)
        for name in MPIS
    },
    "image": Property(
        differs(
            "error",
            "the image that ranks run in",
            "train.yml refuses nodes with different images, for their ranks would run different programs",
            "plugin_utils/_launch/containers.py",
            "bring one to all nodes: ansible-playbook setup.yml -e container_image=NAME -e container_archive=/its.tar",
        ),
        by_setup=True,
    ),
    "ucx": Property(
        differs(
            "warning",
            "UCX",
            "one node may choose a transport that the other does not have",
            "precaution",
            "install the same version on all nodes",
        ),
        workers_only=True,
        may_lack=True,
    ),
    "wrapper": Property(
        differs(
            "info",
            "torchfleet's own code",
            "the next job copies the current version to every node",
            "runtime_archive.py",
            NOTHING,
        )
    ),
}


def rule_id(name: str) -> str:
    """Return the id of the finding about a property that differs."""
    return f"TF-DRIFT-{name.upper().replace('_', '-')}"


RULES: Mapping[str, Rule] = {rule_id(name): each.rule for name, each in PROPERTIES.items()}


@dataclass(frozen=True)
class Row:
    """One property: each value with its nodes, the most common first. The severity is empty if all are equal.

    Of values that as many nodes have, that of the inventory's first node is first: the others are said to differ.
    """

    name: str
    values: tuple[tuple[str, tuple[str, ...]], ...]
    severity: str


@dataclass(frozen=True)
class Drift:
    """The whole comparison. Equal digests mean equal in every property."""

    rows: tuple[Row, ...]
    digests: Mapping[str, str]
    digest: str


def compare(versions: Mapping[str, Mapping[str, str]], workers: Collection[str]) -> Drift:
    """Return the drift between nodes, by node name. A head without ranks has no digest: it lacks what ranks need."""
    rows = tuple(row_of(name, versions, workers) for name in PROPERTIES)
    digests = {
        node: digest_of({name: mine.get(name, "") for name in PROPERTIES})
        for node, mine in versions.items()
        if node in workers
    }
    return Drift(rows, digests, digest_of(sorted(digests.values())))


def digest_of(value: object) -> str:
    """Return the first 12 hexadecimal digits of a value's SHA-256."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def row_of(name: str, versions: Mapping[str, Mapping[str, str]], workers: Collection[str]) -> Row:
    """Return the row of one property; only nodes that need the property are compared."""
    asked = [node for node in versions if node in workers or not PROPERTIES[name].workers_only]
    groups: dict[str, list[str]] = {}
    for node in asked:
        groups.setdefault(versions[node].get(name, ""), []).append(node)
    common_first = sorted(groups.items(), key=lambda group: -len(group[1]))  # of a tie that of the first node
    return Row(name, tuple((value, tuple(nodes)) for value, nodes in common_first), weight(name, list(groups)))


def weight(name: str, values: Collection[str]) -> str:
    """Return the severity of a difference; empty if there is none."""
    if len(values) < 2:
        return ""
    each = PROPERTIES[name]
    there = [value for value in values if value]
    if each.may_lack and len(there) < 2:
        return "info"
    coarse = {each.coarse(value) for value in (there if each.may_lack else values)}
    return each.rule.severity if len(coarse) > 1 else each.fine


def drift_findings(drift: Drift, before_setup: bool = False) -> list[Finding]:
    """Return the differences as findings, on the nodes that differ from the majority.

    Before setup.yml has run, a difference that setup.yml removes is only an info.
    """
    findings = []
    for row in drift.rows:
        if row.severity:
            odd = [node for _value, nodes in row.values[1:] for node in nodes]
            finding = found(RULES, rule_id(row.name), odd, values_text(row, "; "), **words(distribution(drift, odd)))
            severity = "info" if before_setup and PROPERTIES[row.name].by_setup else row.severity
            findings.append(Finding(**{**vars(finding), "severity": severity}))
    return findings


def distribution(drift: Drift, nodes: Collection[str]) -> str:
    """Return the distribution of these nodes; empty if they have different ones."""
    (row,) = [row for row in drift.rows if row.name == "os"]
    found_there = {value.partition(" ")[0] for value, names in row.values if set(names) & set(nodes)}
    return found_there.pop() if len(found_there) == 1 else ""


def values_text(row: Row, separator: str) -> str:
    """Return the values of a row with their nodes: "2.13.0: n1-n3; none: n4"."""
    return separator.join(f"{value or 'none'}: {fold_names(nodes)}" for value, nodes in row.values)


def drift_table(drift: Drift) -> list[str]:
    """Return the table to show: a row for each property that any node has, then the digests."""
    rows = []
    for row in drift.rows:
        if any(value for value, _nodes in row.values):
            value = row.values[0][0] if len(row.values) == 1 else values_text(row, "\n")
            rows.append((row.name.replace("_", " "), row.severity or "equal", value))
    groups: dict[str, list[str]] = {}
    for node, digest in drift.digests.items():
        groups.setdefault(digest, []).append(node)
    each = "\n".join(f"{digest}: {fold_names(nodes)}" for digest, nodes in groups.items())
    rows.append(("digest", "equal" if len(groups) < 2 else "", drift.digest if len(groups) < 2 else each))
    return text_table(("property", "differs", "value: nodes"), rows)


def drift_report(drift: Drift) -> dict[str, object]:
    """Return the drift as plain values for JSON."""
    rows = {
        row.name: {"severity": row.severity, "values": {value: list(nodes) for value, nodes in row.values}}
        for row in drift.rows
    }
    return {"digest": drift.digest, "digests": dict(drift.digests), "properties": rows}
