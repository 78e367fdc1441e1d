# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Tests the SSH mesh from the head: logs in to every node, and explains each failed login."""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable, Mapping, NamedTuple, TypedDict, TypeVar

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import ready

from .keys import KeyFailed, read_certificate

Result = TypeVar("Result")
WORD = "torchfleet"
MOST_DAYS = 100_000  # ssh-keygen can sign for ever
AT_ONCE = 16
ATTEMPTS = 4
MOST_SAID = 1 << 20  # bytes of one login: the results of 1000 nodes are a tenth of that
TOO_MUCH = "its output is too long"
DEADLINE = 30.0  # seconds for one login; ssh itself gives up on a silent address after ConnectTimeout
# ssh's messages when sshd hangs up before the login, with too many at once (MaxStartups): the login is repeated.
HUNG_UP = re.compile(r"kex_exchange_identification|Connection (closed|reset) by|Not allowed at this time")
# Logs in to one node after the other, and prints for each: its name, ssh's exit status, and the output in one line.
RELAY = (
    f"for name in %s; do said=$(ssh -F %s -o ControlPath=none $name echo {WORD} 2>&1 </dev/null); "
    'echo "$name $? "$said; done'
)


class Node(TypedDict):
    """A node of the mesh. `config`: the path of its ssh configuration."""

    name: str
    address: str
    port: int
    config: str


class Attempt(NamedTuple):
    """The result of one login."""

    status: int
    output: str
    errors: str


def prove(by: str, nodes: Mapping[str, Node], any_to_any: bool) -> list[dict[str, str]]:
    """Log in to all nodes, and with `any_to_any` from each to all; return the failed logins with their reasons."""
    attempts = {(by, name): came for name, came in log_in_to_all(nodes[by]["config"], list(nodes)).items()}
    if any_to_any:
        reached = [name for (_by, name), came in attempts.items() if name != by and is_good(came)]
        for name, found in each(lambda name: ask(by, name, nodes), reached).items():
            attempts.update({(name, to): came for to, came in found.items()})
    return [
        {"from": one, "to": to, "why": explain(came, one, nodes[to], certificate_of(nodes[one]["config"], one == by))}
        for (one, to), came in attempts.items()
        if not is_good(came)
    ]


def tell(failures: list[dict[str, str]]) -> str:
    """Return all failures in one line."""
    rows = [f"{failure['from']} to {failure['to']}: {failure['why']}" for failure in failures]
    return f"{len(rows)} login{'s fail' if len(rows) > 1 else ' fails'}: {'; '.join(rows)}"


def is_good(came: Attempt) -> bool:
    return (came.status, came.output.strip()) == (0, WORD)


def each(action: Callable[[str], Result], names: list[str]) -> dict[str, Result]:
    """Return the action's result for each name; several run at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip(names, pool.map(action, names)))


def log_in_to_all(config: str, names: list[str]) -> dict[str, Attempt]:
    """Log in to all nodes from this one; repeat logins at which sshd hung up."""
    found: dict[str, Attempt] = {}
    for attempt in range(ATTEMPTS):
        again = [name for name in names if name not in found or HUNG_UP.search(found[name].errors)]
        if again and attempt:
            time.sleep(attempt * random.uniform(0.2, 0.8))
        found.update(each(lambda name: log_in(config, name, f"echo {WORD}", DEADLINE), again))
    return found


def ask(by: str, name: str, nodes: Mapping[str, Node]) -> dict[str, Attempt]:
    """Let another node log in to all; repeat logins at which sshd hung up.

    It begins with the node after itself in the list, so that not all begin with the same one.
    """
    names, found = list(nodes), {}
    order = [*names[names.index(name) + 1 :], *names[: names.index(name) + 1]]
    for attempt in range(ATTEMPTS):
        if order and attempt:
            time.sleep(attempt * random.uniform(0.2, 0.8))
        if order:
            found.update(relay(nodes[by]["config"], name, nodes[name]["config"], order))
        order = [to for to in order if to not in found or HUNG_UP.search(found[to].errors)]
    return found


def relay(config: str, name: str, config_there: str, order: list[str]) -> dict[str, Attempt]:
    """Return the results of another node's logins, as far as it reported them."""
    script = RELAY % (" ".join(order), shlex.quote(config_there))
    came = log_in(config, name, f"exec sh -c {shlex.quote(script)}", DEADLINE * (1 + len(order)))
    found = {}
    for line in came.output.splitlines():
        words = [*line.split(" ", 2), "", ""]
        if words[0] in order and words[1].isdigit():
            status, said = int(words[1]), words[2].strip()
            found[words[0]] = Attempt(status, said if status == 0 else "", said if status else "")
    missing = Attempt(came.status or 255, "", came.errors or f"{name} did not report this login")
    return {**dict.fromkeys(order, missing), **found}


def log_in(config: str, name: str, command: str, deadline: float) -> Attempt:
    """Run one command over a new connection."""
    return listen(["ssh", "-F", config, "-o", "ControlPath=none", name, command], deadline)


def listen(argv: list[str], deadline: float) -> Attempt:
    """Run ssh and return the result. The connection to a node with endless output is closed, and the output ignored."""
    with subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    ) as ssh:
        ends, streams = time.monotonic() + deadline, [stream.fileno() for stream in (ssh.stdout, ssh.stderr) if stream]
        received, waiting = dict.fromkeys(streams, b""), set(streams)
        while waiting:
            found = ready(waiting, ends - time.monotonic())
            for stream in found:
                part = os.read(stream, MOST_SAID)
                received[stream] += part
                waiting -= {stream} if not part else set()
            too_much = any(len(text) > MOST_SAID for text in received.values())
            if too_much or not found:
                ssh.kill()
                return Attempt(255, "", TOO_MUCH if too_much else "timed out after the connection was made")
        output, errors = (text.decode(errors="replace") for text in received.values())
        return Attempt(ssh.wait(), output, errors)


def printable(text: str, limit: int = 300) -> str:
    """Return a text of another machine for a message: one line, cut, without control characters."""
    return "".join(char if char.isprintable() else "?" for char in text[:limit])


def certificate_of(config: str, here: bool) -> str:
    """Return why this node's certificate is not valid by its own clock, or "". Other nodes' are not checked."""
    if not here:
        return ""
    path = os.path.join(os.path.dirname(config), "id_ed25519-cert.pub")
    try:
        with open(path) as file:
            found = read_certificate(file.read())
    except (OSError, KeyFailed):
        return ""
    now = time.time()
    if found.valid_after <= now < found.valid_before:
        return ""
    word = "starts" if now < found.valid_after else "ended"
    at = time.gmtime(found.valid_after if now < found.valid_after else found.valid_before)
    return f"the certificate {word} on {time.strftime('%Y-%m-%d %H:%M', at)} UTC"


def days_left(config: str) -> int:
    """Return for how many whole days this node's certificate is valid, by its own clock; -1 if it has none."""
    try:
        with open(os.path.join(os.path.dirname(config), "id_ed25519-cert.pub")) as file:
            until = read_certificate(file.read()).valid_before
    except (OSError, KeyFailed):
        return -1
    return min(max(0, int(until - time.time())) // 86400, MOST_DAYS)


def explain(came: Attempt, by: str, to: Node, certificate: str) -> str:
    """Return in one line why a login failed and how to fix it."""
    name, place, errors = to["name"], f"{to['address']} port {to['port']}", came.errors
    if came.status == 0:
        return f"its shell prints {came.output[:60]!r} at login, which breaks programs over SSH; silence ~/.bashrc"
    found = [text for pattern, text in causes(by, name, place, certificate) if re.search(pattern, errors)]
    lines = [line.strip() for line in errors.splitlines() if line.strip() and set(line.strip()) != {"@"}]
    said = [printable(line) for line in lines[-2:]]
    return found[0] if found else f"{place}: {'; '.join(said) or f'exit status {came.status}'}"


def causes(by: str, name: str, place: str, certificate: str) -> list[tuple[str, str]]:
    """Return ssh's messages and their causes, the most specific first."""
    address = place.split(" ", 1)[0]
    clock = "the clocks differ, or the last setup was long ago: check date on both, then run setup again"
    return [
        (
            "Certificate invalid: (expired|not yet valid)",
            f"its host certificate is not valid by the clock of {by}: {clock}",
        ),
        (
            "IDENTIFICATION HAS CHANGED|Host key verification failed|name is not a listed principal",
            f"{place} does not show the host key of {name}: another machine has that address, or the "
            "key changed: run setup again",
        ),
        (
            "Permission denied",
            f"{place} refuses the key: {certificate or f'journalctl -u ssh -u sshd on {name} says why'}"
            + (f"; {clock}" if certificate else ""),
        ),
        ("Connection refused", f"nothing listens on {place}: start sshd there, or set its port (ssh_mesh_port)"),
        ("No route to host|Network is unreachable", f"no route to {address}: set ssh_mesh_address of {name}"),
        ("Could not resolve hostname", f"{by} cannot resolve {address}: set ssh_mesh_address of {name}"),
        ("timed out|Timeout", f"no answer from {place}: a firewall, or no route: set ssh_mesh_address of {name}"),
        (HUNG_UP.pattern, f"sshd on {place} hangs up before the login: too many at once (MaxStartups)?"),
    ]
