# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What role torch_backends installs: packages, what they are built for, and what must be there then. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.installed import MPI_PARTS, SHM_PART
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

WITHOUT_HEADERS, HAS_HEADERS = "intelmpi", "mpich"  # of one ABI: what is built for one runs under both
WHEEL, WHEEL_FORM = re.compile(r"torchfleet_backends-[^-]+-"), "torchfleet_backends-VERSION-...whl"


@dataclass(frozen=True)
class Build:
    """What an environment of backends consists of."""

    refusal: str = ""  # why it cannot be installed; the rest is empty then
    is_built: bool = False  # compiled here, which takes a compiler
    packages: list[str] = field(default_factory=list)  # pip requirements: the version of the wheel, if there is one
    environment: dict[str, str] = field(default_factory=dict)  # while building: if it changes, all is built again
    parts: list[str] = field(default_factory=list)  # paths in site-packages, as torch_backends/setup.py names them


class Options(TypedDict):
    """Options of role torch_backends that matter, the checksum of the wheel, versions, and where the MPIs are."""

    mpis: list[str]
    wheel: str
    wheel_sha256: str  # empty: there is no wheel
    torch: str
    home: str


def build_of(names: Sequence[str], options: Options) -> Build:
    """Return what is installed for these backends."""
    refusal = refusal_of(names, options)
    if refusal:
        return Build(refusal)
    wheel = str(options["wheel"])
    has_mpi, has_shm, has_ccl = (name in names for name in ("mpi", "shm", "ccl"))
    parts = parts_for(options["mpis"]) if has_mpi else []
    return Build(
        is_built=(has_mpi or has_shm) and not wheel,
        packages=[f"torchfleet-backends=={PurePath(wheel).name.split('-')[1]}"] if wheel else [],
        environment=environment_of(options, names),
        parts=[*parts, *[SHM_PART] * has_shm, *(["torchfleet_backends/oneccl"] if has_ccl else [])],
    )


def refusal_of(names: Sequence[str], options: Options) -> str:
    """Return why it cannot be installed; empty if it can."""
    wheel, mpis = str(options["wheel"]), list(options["mpis"])
    if wheel:
        if options["wheel_sha256"] and WHEEL.match(PurePath(wheel).name):
            return ""
        return str(InputError("torch_backends_wheel", wheel, f"give a file {WHEEL_FORM} on the controller"))
    if "mpi" in names and WITHOUT_HEADERS in mpis and HAS_HEADERS not in mpis:
        wanted = json.dumps({"mpis": [*mpis, HAS_HEADERS]})
        why = "Intel MPI comes without headers: install MPICH too, whose build serves both"
        return f"torch_backends: {why}: -e '{wanted}'"
    return ""


def environment_of(options: Options, names: Sequence[str]) -> dict[str, str]:
    """Return the variables that torch_backends/setup.py reads, or the checksum of the wheel that it came in."""
    if options["wheel"]:
        return {"TORCHFLEET_BACKENDS_WHEEL": str(options["wheel_sha256"])}
    homes = [f"{options['home']}/{name}" for name in options["mpis"] if name != WITHOUT_HEADERS]
    return {
        "TORCHFLEET_BACKENDS_MPI": ":".join(homes) if "mpi" in names else "",
        "TORCHFLEET_BACKENDS_TORCH": str(options["torch"]),
        **{f"TORCHFLEET_BACKENDS_{name.upper()}": "yes" for name in ("shm", "ccl") if name in names},
    }


def parts_for(mpis: Sequence[str]) -> list[str]:
    """Return what is compiled for these MPIs, once for each ABI."""
    found = [part for name in mpis for part, users in MPI_PARTS.items() if name in users]
    return list(dict.fromkeys(found))
