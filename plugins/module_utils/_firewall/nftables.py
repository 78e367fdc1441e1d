# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""nftables: rules in the very chains that drop. An accept in a table of our own would not help: a drop is final."""

from __future__ import annotations

import json
import re
from typing import Iterator, Mapping, NamedTuple, Sequence

from .rules import Chain, Change, Command, Found, Grant, Rule, blocks, closed, filters, is_marked, marked

FAMILIES = {"ip": (4,), "ip6": (6,), "inet": (4, 6)}
SIDES = {"input": "saddr", "output": "daddr"}  # who the others are
WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]{0,255}\Z")  # what needs no quotes in a file for nft
NO_CONDITION = {"counter", "log", "limit", "accept", "drop", "reject", "jump", "goto", "queue", "continue", "return"}


class Place(NamedTuple):
    """A chain in its table."""

    family: str
    table: str
    chain: str

    def __str__(self) -> str:
        return f"{self.family} {self.table} {self.chain}"


class Ruleset(NamedTuple):
    """The chains of each table, by family and name of the table."""

    tables: Mapping[tuple[str, str], Mapping[str, Chain]]

    def base_chains(self) -> Iterator[tuple[Place, Chain, Mapping[str, Chain]]]:
        """Yield the chains that the kernel calls for packets to and from this machine, with their tables' chains."""
        for (family, table), chains in self.tables.items():
            for chain in chains.values():
                if chain.hook:
                    yield Place(family, table, chain.name), chain, chains


def parse(text: str) -> Ruleset:
    """Return the chains of `nft -j -a list ruleset` that concern IP. ValueError if it is no such text."""
    tables: dict[tuple[str, str], dict[str, Chain]] = {}
    rules: dict[Place, list[Rule]] = {}
    rows = json.loads(text)["nftables"] if text.strip() else []
    for kind, row in ((kind, row) for each in rows for kind, row in each.items()):
        if row.get("family") in FAMILIES and kind == "chain" and of_words(row, "table", "name"):
            hook = row.get("hook", "") if row.get("type") == "filter" and row.get("hook") in SIDES else ""
            chain = Chain(row["name"], hook, row.get("policy", "") if hook else "")
            tables.setdefault((row["family"], row["table"]), {})[row["name"]] = chain
        if row.get("family") in FAMILIES and kind == "rule" and of_words(row, "table", "chain"):
            rules.setdefault(Place(row["family"], row["table"], row["chain"]), []).append(rule_of(row))
    for (family, table), chains in tables.items():
        for name, chain in chains.items():
            chains[name] = chain._replace(rules=tuple(rules.get(Place(family, table, name), ())))
    return Ruleset(tables)


def of_words(row: Mapping[str, object], *keys: str) -> bool:
    """Return whether these names need no quotes."""
    return all(WORD.match(str(row.get(key))) for key in keys)


def rule_of(row: Mapping[str, object]) -> Rule:
    """Return one rule."""
    parts = row.get("expr")
    rows = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    said = [(name, value) for part in rows for name, value in part.items()]
    names = {name for name, _value in said}
    conditions = [value for name, value in said if name not in NO_CONDITION]
    state = [value for name, value in said if name == "match" and value.get("left") == {"ct": {"key": "state"}}]
    jumps = [value.get("target", "") for name, value in said if name in ("jump", "goto") and isinstance(value, dict)]
    return Rule(
        verdict=next((name for name in ("accept", "drop", "reject") if name in names), ""),
        target=jumps[0] if jumps else "",
        conditional=bool(conditions),
        invalid_only=any(value.get("right") == "invalid" for value in state),
        comment=str(row.get("comment", "")),
        handle=str(row.get("handle", "")),
    )


def of_another(place: Place, others: Sequence[str]) -> bool:
    """Return whether a chain belongs to firewalld, or to iptables (which calls its chains INPUT and OUTPUT)."""
    if "firewalld" in others and place.table.startswith("firewalld"):
        return True
    return "iptables" in others and place.table == "filter" and place.chain in ("INPUT", "OUTPUT")


def found(text: str, others: Sequence[str]) -> list[Found]:
    """Return where nftables drops what it does not know. `others`: the programs that look after their own chains."""
    return [
        Found("nftables", f"table {place.family} {place.table}, chain {place.chain}")
        for place, chain, chains in parse(text).base_chains()
        if closed(chains, chain) and not of_another(place, others)
    ]


def wanted(ruleset: Ruleset, grants: Sequence[Grant], mark: str, others: Sequence[str]) -> dict[str, str]:
    """Return the rules that the chains which drop need, by their comments."""
    return {
        marked(mark, f"{place} {text}"): f"{place} {text}"
        for place, chain, chains in ruleset.base_chains()
        if filters(chains, chain) and not of_another(place, others)
        for text in texts(place, chain, grants)
    }


def texts(place: Place, chain: Chain, grants: Sequence[Grant]) -> Iterator[str]:
    """Yield the rules for one chain."""
    for grant in grants:
        for version in FAMILIES[place.family]:
            found = blocks(grant.sources, version)
            side = "dport" if chain.hook == "input" else "sport"
            port = f" tcp {side} {grant.port}" if grant.port else ""
            if found:
                yield f"{'ip' if version == 4 else 'ip6'} {SIDES[chain.hook]} {{ {', '.join(found)} }}{port} accept"


def plan(text: str, grants: Sequence[Grant], mark: str, others: Sequence[str] = ()) -> Change:
    """Return the change of what `nft -j -a list ruleset` shows. Its commands remove rules, its file adds the others."""
    ruleset = parse(text)
    ours = [
        (Place(family, table, chain.name), rule)
        for (family, table), chains in ruleset.tables.items()
        for chain in chains.values()
        for rule in chain.rules
        if is_marked(rule.comment, mark)
    ]
    lines = wanted(ruleset, grants, mark, others)
    before = sorted(lines.get(rule.comment, f"{place} {rule.comment}") for place, rule in ours)
    removed = "".join(f"delete rule {place} handle {rule.handle}\n" for place, rule in ours)
    added = "".join(f'insert rule {line} comment "{comment}"\n' for comment, line in lines.items())
    commands = [Command(("nft", "-f", "-"), removed)] if removed else []
    return Change(before, sorted(lines.values()), commands, {"nft": added} if added else {}, True)
