# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""firewalld: rich rules in every zone that packets may come by, both in what runs and in what it starts with.

A reload would lose what an administrator changed in the running firewall only, and is not needed for rich rules. They
have no comments: those of a cluster are known by their priority, a number that nobody types. A negative one comes
before all else in its zone (firewalld.richlanguage(5), since firewalld 0.7).
"""

from __future__ import annotations

import hashlib
import re
from typing import Mapping, NamedTuple, Sequence

from .rules import Change, Command, Found, Grant, each

FIRST, COUNT = -30000, 20000  # the priorities of clusters


class Zone(NamedTuple):
    """One zone: whether packets come by it, what becomes of what it does not know, its rich rules."""

    active: bool
    target: str
    rules: Sequence[str]


def parse(text: str) -> dict[str, Zone]:
    """Return the zones of `firewall-cmd --list-all-zones` by name."""
    zones: dict[str, Zone] = {}
    name, in_rules = "", False
    for line in text.splitlines():
        if line and not line[0].isspace():
            name, _space, more = line.partition(" ")
            zones[name], in_rules = Zone("active" in more, "", ()), False
        elif name and line.strip().startswith("target:"):
            zones[name] = zones[name]._replace(target=line.partition(":")[2].strip())
        elif name and line.strip().startswith("rich rules:"):
            in_rules = True
        elif in_rules and line.strip().startswith("rule "):
            zones[name] = zones[name]._replace(rules=(*zones[name].rules, line.strip()))
    return zones


def priority_of(mark: str) -> int:
    """Return the priority of the rules of a cluster."""
    return FIRST + int(hashlib.sha256(mark.encode()).hexdigest(), 16) % COUNT


def found(default: str) -> list[Found]:
    """Return firewalld. `default`: its default zone."""
    return [Found("firewalld", f"default zone {default}" if default else "it runs")]


def ours(zones: Mapping[str, Zone], mark: str) -> dict[str, list[str]]:
    """Return the rules of a cluster in each zone that has any."""
    begin = re.compile(rf'rule priority="{priority_of(mark)}"')
    rows = {name: sorted(rule for rule in zone.rules if begin.match(rule)) for name, zone in zones.items()}
    return {name: rules for name, rules in rows.items() if rules}


def plan(running: str, kept: str, default: str, grants: Sequence[Grant], mark: str) -> Change:
    """Return the change. `running`, `kept`: of `firewall-cmd [--permanent] --list-all-zones`."""
    zones = parse(running)
    open_to = sorted(
        name for name, zone in zones.items() if (zone.active or name == default) and zone.target != "ACCEPT"
    )
    wanted = {name: texts(grants, priority_of(mark)) for name in open_to if grants}
    before: list[str] = []
    after: list[str] = []
    commands: list[Command] = []
    for words, there in ((("--permanent",), ours(parse(kept), mark)), ((), ours(zones, mark))):
        before += [f"{' '.join((*words, name))}: {rule}" for name, rules in sorted(there.items()) for rule in rules]
        after += [f"{' '.join((*words, name))}: {rule}" for name, rules in sorted(wanted.items()) for rule in rules]
        for name in sorted({*there, *wanted}):
            commands += changes(words, name, there.get(name, []), wanted.get(name, []))
    return Change(before, after, commands)


def changes(words: Sequence[str], zone: str, there: Sequence[str], wanted: Sequence[str]) -> list[Command]:
    """Return the commands for one zone, in what runs or in what is kept."""
    start = ("firewall-cmd", *words, f"--zone={zone}")
    gone = [f"--remove-rich-rule={rule}" for rule in there if rule not in wanted]
    new = [f"--add-rich-rule={rule}" for rule in wanted if rule not in there]
    return [Command((*start, *options)) for options in (new, gone) if options]


def texts(grants: Sequence[Grant], priority: int) -> list[str]:
    """Return the rules, as firewalld prints them."""
    rules = []
    for version, block, port in each(grants):
        ports = f' port port="{port}" protocol="tcp"' if port else ""
        rules.append(f'rule priority="{priority}" family="ipv{version}" source address="{block}"{ports} accept')
    return sorted(rules)
