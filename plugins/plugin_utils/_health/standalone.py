# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether nodes get a Python of their own, and from where. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypedDict

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.interpreter import number
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

SETTINGS = ("auto", "true", "false")


class About(TypedDict):
    """The facts of a node's Python."""

    version: str  # empty: there is none
    venv: bool
    standalone: bool  # it is ours


def is_usable(about: About, oldest: str, newest: str) -> bool:
    """Whether PyTorch's environment can be made with a Python."""
    return is_supported(about["version"], oldest, newest) and about["venv"]


def is_supported(version: str, oldest: str, newest: str) -> bool:
    """Whether PyTorch supports a version of Python."""
    return number(oldest) <= number(version)[:2] <= number(newest) if version else False


def is_wanted(switch: str, pythons: Mapping[str, About], oldest: str, newest: str) -> bool:
    """Whether nodes get a Python of their own: all of them, if one needs it or has it already. InputError."""
    if switch not in SETTINGS:
        raise InputError("prerequisites_python", switch, f"give one of {', '.join(SETTINGS)}")
    needs = any(about["standalone"] or not is_usable(about, oldest, newest) for about in pythons.values())
    return switch == "true" or (switch == "auto" and needs)


def source_for(machine: str, sources: Mapping[str, Mapping[str, str]], mirror: str) -> dict[str, str]:
    """Return version, url, sha256 and file of the archive for a machine. InputError where there is none."""
    if machine not in sources:
        raise InputError(
            "prerequisites_python",
            machine,
            f"there is one for {' and '.join(sorted(sources))} only: install Python yourself",
        )
    source = dict(sources[machine])
    url = source["url"] if "://" in source["url"] else f"{mirror.rstrip('/')}/{source['url']}"
    return {**source, "url": url}
