# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Which machines make a Python environment themselves, and which receive a copy from another one. Pure."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from .answers import Look


@dataclass(frozen=True)
class Share:
    """The part of one machine: it makes the environment, or receives it from `source`; then it sends it to `to`."""

    makes: bool = False
    source: str = ""
    to: tuple[str, ...] = ()
    sender: str = ""  # where the sending runs: the source itself, or the head in its place
    senders: tuple[str, ...] = ()  # those of `to` that can send it on


def share_out(looks: Mapping[str, Look], head: str, head_reaches: bool) -> dict[str, Share]:
    """Return the part of each machine.

    `looks`: by machine, what python_environment saw there (ready, receipt, kind, mesh). Machines of one kind get one
    environment, made once; a machine with nobody of its kind makes its own, and so do all if nobody can send: neither
    the machine that has it nor the head has the SSH mesh.
    """
    kinds: dict[str, list[str]] = {}
    for name, look in looks.items():
        kinds.setdefault(f"{look['kind']} {look.get('place')}" if look["kind"] else name, []).append(name)
    shares: dict[str, Share] = {}
    for names in kinds.values():
        shares.update(share_kind({name: looks[name] for name in names}, head, head_reaches))
    return shares


def share_kind(looks: Mapping[str, Look], head: str, head_reaches: bool) -> dict[str, Share]:
    """Return the part of each machine of one kind."""
    contents = {name: json.dumps(look["receipt"], sort_keys=True) for name, look in looks.items() if look["ready"]}
    popular = Counter(contents.values())

    def fitness(name: str) -> tuple[bool, int, bool, bool, bool]:
        """Prefer what most machines have already, then a machine that can build, then fewer hops."""
        can_build = not looks[name].get("missing_tools")
        return name in contents, popular[contents.get(name, "")], can_build, bool(looks[name]["mesh"]), name == head

    source = max(looks, key=fitness)  # the first of the inventory, of several
    direct = bool(looks[source]["mesh"])
    if not direct and not head_reaches:
        return {name: Share(makes=name not in contents) for name in looks}
    to = tuple(name for name in looks if name != source and contents.get(name, "") != contents.get(source))
    shares = {name: Share(source=source if name in to else "") for name in looks}
    senders = tuple(name for name in to if direct and looks[name]["mesh"])
    shares[source] = Share(source not in contents, "", to, (source if direct else head) if to else "", senders)
    return shares


def plan_of(
    looks: Mapping[str, Look], head: str, head_reaches: bool, homes: Mapping[str, str]
) -> dict[str, Mapping[str, object]]:
    """Return nodes, steps and missing_tools, as module python_environment_plan documents them.

    `homes`: where torchfleet lies on each machine that may send.
    """
    shares = share_out(looks, head, head_reaches)
    nodes: dict[str, dict[str, object]]
    nodes = {name: {**asdict(share), "home": homes.get(share.sender, "")} for name, share in shares.items()}
    for name, look in looks.items():
        nodes[name].update(place=look["place"], adopts=look["adopts"])
        nodes[name]["proven"] = look["ready"] and look["proven"] and not shares[name].source
    missing = {name: look["missing_tools"] for name, look in looks.items() if shares[name].makes}
    return {
        "nodes": nodes,
        "steps": {name: steps_of(name, share) for name, share in shares.items()},
        "missing_tools": {name: tools for name, tools in missing.items() if tools},
    }


def steps_of(name: str, share: Share) -> list[dict[str, str]]:
    """Return what a machine does: each step, and the host that it runs on."""
    sending = [{"state": "send", "host": share.sender}] if share.to else []
    return [{"state": "make", "host": name}, *sending]
