# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How the launcher shall start the ranks: mapping, binding, ports, rendezvous, and words of the user's own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.restarts import Rule
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.values import parse_choice, parse_words

MAPPINGS = {"slot": "fill each node before the next", "node": "one rank on each node in turn"}
BINDINGS = {
    "none": "a rank bound to one core trains many times slower",
    "core": "each rank on cores of its own",
    "numa": "each rank on a NUMA node",
    "socket": "each rank on a socket",
}
RENDEZVOUS = ("static", "c10d")


@dataclass(frozen=True)
class LauncherOptions:
    """How the launcher shall start the ranks. `ports`: first and last that a firewall lets through.

    `rounds`: the rule by which torchrun's agents start them again while the job runs; None: they do not.
    """

    map_by: str = "slot"
    bind_to: str = "none"
    ports: tuple[int, int] | None = None
    rendezvous: str = "static"
    args: tuple[str, ...] = ()
    rounds: Rule | None = None

    @property
    def mapping_reason(self) -> str:
        """Return what the mapping means."""
        return MAPPINGS[self.map_by]

    @property
    def binding_reason(self) -> str:
        """Return what the binding means."""
        return BINDINGS[self.bind_to]

    def source(self, name: str) -> str:
        """Return where a value comes from."""
        return "default" if getattr(self, name) == getattr(LauncherOptions, name) else "user"


USUAL = LauncherOptions()


def parse_options(given: Mapping[str, object]) -> LauncherOptions:
    """Return how the launcher shall start the ranks."""
    return LauncherOptions(
        map_by=parse_choice("map_by", given.get("map_by"), tuple(MAPPINGS)) or USUAL.map_by,
        bind_to=parse_choice("bind_to", given.get("bind_to"), tuple(BINDINGS)) or USUAL.bind_to,
        ports=parse_ports(given.get("ports")),
        rendezvous=parse_choice("rendezvous", given.get("rendezvous"), RENDEZVOUS) or USUAL.rendezvous,
        args=parse_words("launcher_args", given.get("launcher_args", ())),
    )


def parse_ports(value: object, name: str = "ports") -> tuple[int, int] | None:
    """Return first and last of a range of ports, None for None."""
    if value is None:
        return None
    match = re.match(r"(\d{4,5})-(\d{4,5})\Z", str(value).strip())
    first, last = (int(match.group(1)), int(match.group(2))) if match else (0, 0)
    if not 1024 <= first < last <= 65535:
        raise InputError(name, value, f"give first and last, from 1024 to 65535: -e {name}=20000-20999")
    return first, last
