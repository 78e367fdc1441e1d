# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a library is built with: the libraries of a machine that it can use, as options of its configure. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

SYSTEM = "/usr"  # searched anyway: naming it would put it ahead of our own prefixes
INSTALL = """install the others first (-e '{"libraries": ["ucx", "ucc"]}', -e '{"accelerators": ["cuda"]}')"""


class Build(NamedTuple):
    """How a library is built."""

    options: list[str]  # of configure
    versions: dict[str, str]  # of what it is built with, by name: with another one it is built again
    parts: list[str]  # what shows that it was built with each
    environment: dict[str, str]  # so that it finds libraries outside the system's directories when it runs


def build_with(parts: Mapping[str, str], wanted: str | Sequence[str], facts: Mapping[str, Mapping[str, str]]) -> Build:
    """Return how a library is built with those of `wanted` that are on a machine; "auto" is everything that is there.

    `parts`: what it can be built with, in the order of the options, for another order is another build.
    `facts`: those of module accelerator_facts.
    """
    there = libraries_of(facts)
    chosen = [name for name in parts if name in there and (wanted == "auto" or name in wanted)]
    own = {name: there[name] for name in chosen if there[name] != SYSTEM}
    options = [f"--with-{name}" + (f"={own[name]}" if name in own else "") for name in chosen]
    return Build(
        options=options + [f"--without-{name}" for name in parts if name not in chosen],
        versions={name: facts["versions"][name] for name in chosen},
        parts=[parts[name] for name in chosen],
        environment={"LDFLAGS": " ".join(f"-Wl,-rpath,{place}/lib" for place in own.values())},
    )


def check_build(
    role: str,
    parts: Mapping[str, str],
    wanted: str | Sequence[str],
    facts: Mapping[str, Mapping[str, str]],
    node: str,
    needs: str = "",
) -> None:
    """InputError if something that is asked for, or that the library needs, is not on the node."""
    there = [name for name in parts if name in libraries_of(facts)]
    if wanted != "auto" and (isinstance(wanted, str) or not set(wanted) <= set(there)):
        has = ", ".join(there) or f"none of {', '.join(parts)}"
        raise InputError(f"{role}_with", wanted, f"{node} has {has}: {INSTALL}")
    if needs and (needs not in there or (wanted != "auto" and needs not in wanted)):
        advice = f"""install it first: -e '{{"libraries": ["{needs}", "{role}"]}}'"""
        raise InputError(f"{role}_with", wanted, f"{role} cannot be built on {node} without {needs}: {advice}")


def libraries_of(facts: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return the libraries of a machine, with the directory of each."""
    return {name: place for name, place in facts["libraries"].items() if place}
