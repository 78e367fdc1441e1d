# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Chains of rules, whichever program shows them: which of them drop, and what is wanted in them."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from typing import Iterator, Mapping, NamedTuple, Sequence

NAME_LENGTH = 48  # of a cluster's name in a mark: comments of nftables have 128 bytes


class Grant(NamedTuple):
    """Who may connect. `sources`: addresses or blocks of addresses; `port`: of TCP, 0: any port of any protocol."""

    sources: Sequence[str]
    port: int = 0


class Rule(NamedTuple):
    """One rule. `verdict`: accept, drop, reject or empty; `target`: the chain that it jumps to; `handle`: its place."""

    verdict: str = ""
    target: str = ""
    conditional: bool = False
    invalid_only: bool = False  # it concerns packets that belong to no connection
    comment: str = ""
    handle: str = ""


class Chain(NamedTuple):
    """One chain. `hook`: input or output if the kernel calls it, else empty."""

    name: str
    hook: str = ""
    policy: str = ""
    rules: Sequence[Rule] = ()


class Command(NamedTuple):
    """A program to run, and what it reads."""

    argv: Sequence[str]
    stdin: str = ""


class Change(NamedTuple):
    """What is ours in a firewall before and after, a line for each rule, and the commands that make it so.

    `loaded`: the firewall keeps nothing itself. Its commands remove all that is ours, and `files` adds what is wanted:
    texts by the program that reads them.
    """

    before: Sequence[str] = ()
    after: Sequence[str] = ()
    commands: Sequence[Command] = ()
    files: Mapping[str, str] = {}
    loaded: bool = False

    @property
    def needed(self) -> bool:
        """Return whether there is anything to do."""
        return list(self.before) != list(self.after)


class Found(NamedTuple):
    """A firewall that lets in only what it knows. `kind`: firewalld, ufw, nftables or iptables."""

    kind: str
    where: str


def closed(chains: Mapping[str, Chain], chain: Chain) -> bool:
    """Return whether a chain drops what it does not know: by its policy, or by a rule without a condition."""
    return chain.policy == "drop" or any(
        rule.verdict in ("drop", "reject") and not rule.conditional for rule in reached(chains, chain, sure=True)
    )


def filters(chains: Mapping[str, Chain], chain: Chain) -> bool:
    """Return whether a chain drops anything that belongs to a connection."""
    return chain.policy == "drop" or any(
        rule.verdict in ("drop", "reject") and not rule.invalid_only for rule in reached(chains, chain, sure=False)
    )


def reached(chains: Mapping[str, Chain], chain: Chain, sure: bool) -> Iterator[Rule]:
    """Yield the rules of a chain and of the chains that it jumps to; `sure`: that it jumps to without a condition."""
    todo, seen = [chain], {chain.name}
    while todo:
        for rule in todo.pop().rules:
            yield rule
            if rule.target in chains and rule.target not in seen and not (sure and rule.conditional):
                seen.add(rule.target)
                todo.append(chains[rule.target])


def mark_of(cluster: str) -> str:
    """Return the word by which the rules of a cluster are known. The end of its name is kept, which is its own."""
    return "torchfleet:" + re.sub(r"[^A-Za-z0-9._-]", "-", cluster)[-NAME_LENGTH:]


def marked(mark: str, text: str) -> str:
    """Return the comment of a rule: the mark, and what the rule says, so that another one is another rule."""
    return f"{mark}:{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def is_marked(comment: str, mark: str) -> bool:
    """Return whether a comment is one of this cluster's."""
    return comment.startswith(f"{mark}:")


def blocks(sources: Sequence[str], version: int) -> list[str]:
    """Return the addresses of an IP version as the fewest blocks that have exactly them; one address has no /32."""
    nets = [ipaddress.ip_network(source) for source in sources]
    if version == 4:
        found = list(ipaddress.collapse_addresses(net for net in nets if isinstance(net, ipaddress.IPv4Network)))
        return [str(net.network_address) if net.num_addresses == 1 else str(net) for net in found]
    others = ipaddress.collapse_addresses(net for net in nets if isinstance(net, ipaddress.IPv6Network))
    return [str(net.network_address) if net.num_addresses == 1 else str(net) for net in others]


def each(grants: Sequence[Grant], version: int = 0) -> Iterator[tuple[int, str, int]]:
    """Yield IP version, block of addresses and port of every grant."""
    for grant in grants:
        for number in (4, 6) if version == 0 else (version,):
            for block in blocks(grant.sources, number):
                yield number, block, grant.port
