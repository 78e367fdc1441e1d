# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which build of PyTorch a node gets: by its GPUs, and by what the rows of the lockfile take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts.gpus import Accelerators
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

AUTO = "auto"
ANY = ""  # the default of the package index
CPU_MB, GPU_MB = 2000, 10000  # PyTorch and its dependencies: the libraries of a vendor are several GB


@dataclass(frozen=True)
class Build:
    """A build: its name, the suffix that its version has (or none), and the index that has it (or none).

    `preferred_index` has a smaller build for the node; where it cannot be reached, that of the package index will do.
    """

    name: str
    suffix: str = ""
    index: str = ""
    disk_mb: int = CPU_MB  # what it needs
    preferred_index: str = ""


def choose_build(node: str, wanted: str, facts: Accelerators, rows: Mapping[str, Mapping[str, str]]) -> Build:
    """Return the build for a node. InputError if there is none for it, or not the one that is wanted.

    `facts` are those of accelerator_facts; `rows` the builds of the lockfile, best first: index, and perhaps vendor,
    driver (the oldest that can run it), gpus (`open`: those that open kernel modules drive, Turing and newer) and
    targets (of AMD's GPUs that it has code for, separated by spaces).
    """
    if wanted not in (AUTO, ANY, *rows):
        raise InputError("pytorch_build", wanted, f"give one of {', '.join([AUTO, *rows])}")
    if wanted in (AUTO, ANY):
        return (
            first_fit(node, facts, rows)
            if wanted == AUTO
            else Build(ANY, disk_mb=GPU_MB if vendors_of(facts) else CPU_MB)
        )
    reasons = list(misfits(facts, rows[wanted]))
    if reasons:
        fits = [name for name, row in rows.items() if not any(misfits(facts, row))]
        raise InputError("pytorch_build", wanted, f"{node} {reasons[0]}: give one of {', '.join([AUTO, *fits])}")
    return build_of(wanted, rows[wanted])


def first_fit(node: str, facts: Accelerators, rows: Mapping[str, Mapping[str, str]]) -> Build:
    """Return the best build for the GPUs of a node; without GPUs the default of the package index."""
    vendors = vendors_of(facts)
    if not vendors:
        return Build(ANY, preferred_index=rows.get("cpu", {}).get("index", ""))
    if len(vendors) > 1:
        allowed = f"{node} has GPUs of {' and '.join(vendors)}: give one of {', '.join(rows)}"
        raise InputError("pytorch_build", AUTO, allowed)
    theirs = {name: row for name, row in rows.items() if row.get("vendor") == vendors[0]}
    for name, row in theirs.items():
        if not any(misfits(facts, row)):
            return build_of(name, row)
    why = "; ".join(f"{name}: {next(misfits(facts, row))}" for name, row in theirs.items())
    raise InputError("pytorch_build", AUTO, f"no build fits {node} ({why or f'none is for {vendors[0]}'}): give cpu")


def misfits(facts: Accelerators, row: Mapping[str, str]) -> Iterator[str]:
    """Yield why a build cannot run on a node. A driver that is not loaded yet does not count."""
    vendor = row.get("vendor", "")
    if vendor and vendor not in vendors_of(facts):
        yield f"has no GPU of {vendor}"
    loaded = facts["modules"].get("nvidia", "") if vendor == "nvidia" else ""
    if loaded and version(loaded) < version(row.get("driver", "0")):
        yield f"has the driver {loaded}, and this build needs {row['driver']} or newer"
    if row.get("gpus") == "open" and any(
        gpu["vendor"] == "nvidia" and not gpu["open_modules"] for gpu in facts["gpus"]
    ):
        yield "has a GPU older than Turing, which CUDA 13 does not support"
    named = {gpu.get("target", "") for gpu in facts["gpus"] if gpu["vendor"] == vendor} - {""}
    without = sorted(named.difference(row["targets"].split())) if row.get("targets") else []
    if without:
        yield f"has a GPU of target {' and '.join(without)}, and this build has code for {row['targets']} only"


def build_of(name: str, row: Mapping[str, str]) -> Build:
    """Return the build of a row. The package index itself has the one that names no other."""
    disk_mb = GPU_MB if row.get("vendor") else CPU_MB
    return Build(name, f"+{name}" if row.get("index") else "", row.get("index", ""), disk_mb)


def vendors_of(facts: Accelerators) -> list[str]:
    """Return the vendors of a node's GPUs, each once."""
    return sorted({gpu["vendor"] for gpu in facts["gpus"]})


def version(text: str) -> tuple[int, ...]:
    """Return a version of digits and dots, ready to be compared."""
    return tuple(int(part) for part in text.split(".") if part.isdigit())
