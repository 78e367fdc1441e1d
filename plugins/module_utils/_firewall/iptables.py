# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""iptables and ip6tables, whatever is below them: rules at the top of INPUT and OUTPUT."""

from __future__ import annotations

import shlex
from typing import Iterator, Mapping, Sequence

from .rules import Chain, Change, Command, Found, Grant, Rule, blocks, closed, filters, is_marked, marked

PROGRAMS = {"iptables": 4, "ip6tables": 6}
SIDES = {"INPUT": ("-s", "--dport"), "OUTPUT": ("-d", "--sport")}
VERDICTS = {"ACCEPT": "accept", "DROP": "drop", "REJECT": "reject"}
# Options that are no condition, and how many words each has.
NO_CONDITION = {"-A": 2, "-j": 2, "-g": 2, "--comment": 2, "--reject-with": 2, "--limit": 2, "--limit-burst": 2}
NO_CONDITION.update({"--log-prefix": 2, "--log-level": 2})
NO_MATCH = ("comment", "limit")  # modules that only describe, or count


def parse(text: str) -> dict[str, Chain]:
    """Return the chains of `iptables -S` by name."""
    chains: dict[str, Chain] = {}
    for words in (shlex.split(line) for line in text.splitlines() if line.startswith("-")):
        if words[0] == "-P" and len(words) >= 3:
            chains[words[1]] = Chain(words[1], words[1].lower() if words[1] in SIDES else "", words[2].lower())
        elif words[0] == "-N" and len(words) >= 2:
            chains[words[1]] = Chain(words[1])
        elif words[0] == "-A" and len(words) >= 2 and words[1] in chains:
            chain = chains[words[1]]
            chains[words[1]] = chain._replace(rules=(*chain.rules, rule_of(words)))
    return chains


def rule_of(words: Sequence[str]) -> Rule:
    """Return one rule. Its handle is the rule itself: that is how iptables removes one."""
    value = {words[at]: words[at + 1] for at in range(len(words) - 1)}
    target = value.get("-j") or value.get("-g") or ""
    return Rule(
        verdict=VERDICTS.get(target, ""),
        target=target,
        conditional=bool(list(conditions(words))),
        invalid_only=value.get("--ctstate") == "INVALID",
        comment=value.get("--comment", ""),
        handle=shlex.join(words[1:]),
    )


def conditions(words: Sequence[str]) -> Iterator[str]:
    """Yield the options of a rule that not every packet fits."""
    at = 0
    while at < len(words):
        if words[at] == "-m" and words[at + 1 : at + 2] and words[at + 1] in NO_MATCH:
            at += 2
        elif words[at] in NO_CONDITION:
            at += NO_CONDITION[words[at]]
        else:
            yield words[at]
            at += 1


def base_chains(chains: Mapping[str, Chain]) -> Iterator[Chain]:
    """Yield the chains for packets to and from this machine."""
    return (chains[name] for name in SIDES if name in chains)


def found(program: str, text: str) -> list[Found]:
    """Return where the output of `iptables -S` drops what it does not know."""
    chains = parse(text)
    return [Found("iptables", f"{program}, chain {each.name}") for each in base_chains(chains) if closed(chains, each)]


def plan(program: str, text: str, grants: Sequence[Grant], mark: str) -> Change:
    """Return the change of what `iptables -S` shows. Its commands remove rules, its file adds the others."""
    chains = parse(text)
    ours = [(chain, rule) for chain in chains.values() for rule in chain.rules if is_marked(rule.comment, mark)]
    lines = {
        marked(mark, rule): rule
        for chain in base_chains(chains)
        if filters(chains, chain)
        for rule in texts(chain.name, PROGRAMS[program], grants)
    }
    before = sorted(f"{program} {lines.get(rule.comment, rule.handle)}" for _chain, rule in ours)
    after = sorted(f"{program} {line}" for line in lines.values())
    removed = "".join(f"-D {rule.handle}\n" for _chain, rule in ours)
    added = "".join(f"-I {line} -m comment --comment {comment} -j ACCEPT\n" for comment, line in lines.items())
    restore = f"{program}-restore"
    commands = [Command((restore, "--noflush"), f"*filter\n{removed}COMMIT\n")] if removed else []
    return Change(before, after, commands, {restore: f"*filter\n{added}COMMIT\n"} if added else {}, True)


def texts(chain: str, version: int, grants: Sequence[Grant]) -> Iterator[str]:
    """Yield chain and condition of the rules for one chain."""
    source, port = SIDES[chain]
    for grant in grants:
        for block in blocks(grant.sources, version):
            yield f"{chain} {source} {block}" + (f" -p tcp -m tcp {port} {grant.port}" if grant.port else "")
