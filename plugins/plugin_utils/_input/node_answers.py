# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The answers of nodes during setup, checked before they are shown or used for other nodes. Pure.

An attacker may control a node. So this file declares each answer, with the type, form and size of each field. Other
fields are left out, and control characters are removed from text. The answers for the SSH mesh are in _ssh/answers,
those of jobs in module_utils/_runtime/frames.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.forms import (
    BadFrame,
    Check,
    address,
    flag,
    like,
    listed,
    mapped,
    network,
    number,
    one_of,
    optional,
    path,
    plain,
    printable,
    whole,
    words,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.frames import NIC
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.gpu_vendors import MODULES, USABLE, VENDORS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.launchers import MPIS
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.survey import PORTS

from .errors import InputError

Json = Any
SURE = "is it still the machine that you set up?"
FASTEST = 100_000_000  # Mbit/s
FILE = 1 << 20  # characters of a small file


class Misfit(BadFrame):
    """A field is invalid: its name, and what was expected."""

    def __init__(self, where: str, expected: str) -> None:
        super().__init__(expected)
        self.where = where


def take(node: str, what: str, check: Check, value: Json) -> Json:
    """Return a node's checked answer. Raise InputError, which names the node, for the first invalid field."""
    try:
        return check(value)
    except (BadFrame, ValueError, TypeError, OverflowError, RecursionError) as error:
        where = f", {error.where}" if isinstance(error, Misfit) else ""
        expected = str(error) if isinstance(error, BadFrame) else "something else was expected"
        raise InputError(f"answer of {node}", f"{what}{where}", f"{expected}: {SURE}") from None


# --- forms ----------------------------------------------------------------------------------------------------------


def exact(fields: Mapping[str, Check], optional_ones: Mapping[str, Check] | None = None) -> Check:
    """Return a check of an object with these fields, and any of `optional_ones`; other fields are left out."""

    def check(value: Json) -> dict[str, Json]:
        if not isinstance(value, Mapping):
            raise BadFrame("an object was expected")
        more = {name: field for name, field in (optional_ones or {}).items() if name in value}
        return {name: at(name, field, value.get(name)) for name, field in {**fields, **more}.items()}

    return check


def at(name: str, check: Check, value: Json) -> Json:
    """Return a checked field. Raise Misfit, which names the field."""
    try:
        return check(value)
    except (BadFrame, ValueError, TypeError, OverflowError) as error:
        inner = f".{error.where}" if isinstance(error, Misfit) else ""
        raise Misfit(name + inner, str(error) if isinstance(error, BadFrame) else "another form was expected") from None


def short(most: int = 200) -> Check:
    """Return a check of a text for people: one line, cut if it is too long."""
    return lambda value: words(value)[:most]


def or_nothing(check: Check) -> Check:
    """Return a check that replaces an invalid value by an empty text, for settings that users write by hand."""

    def fitting(value: Json) -> Json:
        try:
            return check(value)
        except (BadFrame, ValueError):
            return ""

    return fitting


def text_file(value: Json) -> str:
    """Return the text of a file unchanged: it is compared, and parsed by its users."""
    if not isinstance(value, str) or len(value) > FILE:
        raise BadFrame("the text of a small file was expected")
    return value


def empty_or(check: Check) -> Check:
    """Return a check that also accepts an empty text or None, and returns an empty text for both."""
    return lambda value: "" if value in ("", None) else check(value)


def those(check: Check, most: int) -> Check:
    """Return a check of a list that leaves out invalid items: a node may have NICs with odd names."""

    def fitting(value: Json) -> list[Json]:
        found = []
        for item in listed(lambda each: each, most)(value):
            try:
                found.append(check(item))
            except (BadFrame, ValueError):
                continue
        return found

    return fitting


def ip(value: Json) -> str:
    """Return an address of a NIC, which may be loopback or link-local."""
    if not isinstance(value, str) or len(value) > 45 or "%" in value:
        raise BadFrame("an IP address was expected")
    return str(ipaddress.ip_address(value))


def rooted(value: Json) -> str:
    """Return an absolute path without characters that are special in a shell or in another program's file."""
    found = path(value)
    if not re.fullmatch(r"/[\w .,:;@%+=~()\[\]{}#&/-]*", found) or ".." in found.split("/"):
        raise BadFrame("an absolute path, free of quotes, '$', backslashes and line ends, was expected")
    return found


def port_range(value: Json) -> list[int]:
    """Return the first and last port of outgoing connections; an empty list if the node does not know them."""
    found: list[int] = listed(whole(0, 65535), 2)(value)
    if len(found) == 1:
        raise BadFrame("a first and a last port were expected")
    return found


def each_once(check: Check, most: int) -> Check:
    """Return a check of a list that removes duplicates."""
    every = listed(check, most)
    return lambda value: list(dict.fromkeys(every(value)))


SIZE = whole(0, 1 << 80)  # some file systems report more than 64 bits
NIC_NAME = like(NIC, "the name of a NIC")
DEVICE = like(re.compile(r"[A-Za-z0-9_.:-]{1,64}\Z"), "the name of a device")
DIGEST = like(re.compile(r"[0-9a-f]{16}\Z"), "a digest")
WORD = like(re.compile(r"[A-Za-z0-9_.+-]{0,64}\Z"), "a word")
FINGERPRINT = like(re.compile(r"SHA256:[A-Za-z0-9+/]{43}\Z"), "the fingerprint of a key")
STARTUPS = like(re.compile(r"[0-9:]{0,32}\Z"), "MaxStartups")
TOKEN = like(re.compile(r"[A-Za-z0-9]{1,64}\Z"), "a token")

# --- networks -------------------------------------------------------------------------------------------------------

ADDRESS = exact(
    {"address": ip, "prefix": whole(0, 128), "stable": flag, "route": empty_or(NIC_NAME)},
    {"peer": empty_or(ip)},
)
NIC_FACTS = exact(
    {
        "name": NIC_NAME,
        "kind": WORD,
        "mtu": whole(0, 1 << 24),
        "speed_mbit": optional(whole(1, FASTEST)),
        "up": flag,
        "carrier": flag,
        "operstate": WORD,
        "port_of": short(15),
        "addresses": listed(ADDRESS, 1000),
    }
)
GID = exact(
    {
        "index": whole(0, 65535),
        "gid": lambda value: str(ipaddress.IPv6Address(ip(value))),
        "type": like(re.compile(r"[A-Za-z0-9 /]{1,20}\Z"), "a kind of GID"),
        "netdev": empty_or(NIC_NAME),
    }
)
PORT_FACTS = exact(
    {
        "device": DEVICE,
        "port": whole(1, 255),
        "active": flag,
        "link_layer": WORD,
        "rate_gbit": optional(number),
        "netdevs": those(NIC_NAME, 256),
        "gids": listed(GID, 4096),
    }
)


def nics(value: Json) -> list[Json]:
    """Return the NICs of a node, without those whose names do not fit into a library's option."""
    rows = listed(lambda each: each, 4096)(value)
    fitting = [row for row in rows if not isinstance(row, Mapping) or NIC.match(str(row.get("name")))]
    return [NIC_FACTS(row) for row in fitting]


NETWORKS = exact(
    {
        "host_name": short(255),
        "host_name_addresses": those(ip, 1000),
        "arrival": empty_or(ip),
        "nics": nics,
        "rdma": listed(PORT_FACTS, 256),
        "files": exact({"fabric.json": text_file, "fabric.env": text_file}),
    },
    {"default_nic": empty_or(NIC_NAME)},
)
AGENT = exact({"port": whole(1, 65535), "token": TOKEN})
CONSTRAINTS = exact({}, {"nic": empty_or(short(100)), "address": empty_or(short(100))})
RAIL = exact(
    {"device": DEVICE, "port": whole(1, 255), "gid_index": optional(whole(0, 65535)), "netdev": empty_or(NIC_NAME)}
)
REJECTED = exact({"nic": short(15), "address": short(64), "reason": words}, {"code": short(40)})
FABRIC = exact(
    {"nic": NIC_NAME, "address": address, "network": network},
    {
        "version": whole(1, 99),
        "mtu": whole(0, 1 << 24),
        "speed_mbit": optional(whole(1, FASTEST)),
        "same_name": flag,
        "rdma": listed(RAIL, 256),
        "rdma_off": words,
        "nccl_gid": one_of("auto", "always", "never"),
        "why": words,
        "usable": listed(network, 256),
        "digest": DIGEST,
        "rejected": listed(REJECTED, 10_000),
    },
)


def published(text: Json) -> dict[str, Json]:
    """Return the fabric.json of a node from its text; an empty dict if it is missing or invalid."""
    try:
        found: dict[str, Json] = FABRIC(json.loads(text))
    except (BadFrame, ValueError, TypeError, OverflowError, RecursionError):
        return {}
    return found if ipaddress.ip_address(found["address"]) in ipaddress.ip_network(found["network"]) else {}


def networks_of(node: str, value: Json) -> dict[str, Json]:
    """Return the networks of a node (module fabric_facts)."""
    return dict(take(node, "networks", NETWORKS, value))


def agent_of(node: str, value: Json) -> dict[str, Json]:
    """Return port and token of the agent of a node."""
    return dict(take(node, "agent", AGENT, value))


def constraints_of(node: str, value: Json) -> dict[str, str]:
    """Return the user's constraints for a node, as the node returned them."""
    return dict(take(node, "wish", CONSTRAINTS, value or {}))


def reached_of(node: str, value: Json, nodes: Collection[str]) -> list[dict[str, Json]]:
    """Return which of the other nodes this node reports as reached."""
    row = exact(
        {
            "node": one_of(*nodes),
            "network": network,
            "reason": short(300),
            "mtu": optional(whole(0, 1 << 24)),
        }
    )
    return list(take(node, "reached", listed(row, 100_000), value))


def measured_of(node: str, value: Json, nodes: Collection[str]) -> list[dict[str, Json]]:
    """Return the measurements that a node reports. Rows of failed ones have no figures."""
    head = {"node": one_of(*nodes), "network": network, "error": short(300)}
    figures = {"rtt_us": from_zero(1e9), "mbit_out": from_zero(FASTEST), "mbit_in": from_zero(FASTEST)}

    def row(found: Json) -> Json:
        measured = exact(head)(found)
        return measured if measured["error"] else exact({**head, **figures})(found)

    return list(take(node, "measured", listed(row, 100_000), value or []))


def failures_of(node: str, value: Json, nodes: Collection[str]) -> list[dict[str, Json]]:
    """Return the failed logins that the head reports."""
    row = exact({"from": one_of(*nodes), "to": one_of(*nodes), "why": short(500)})
    return list(take(node, "logins", listed(row, 100_000), value or []))


def from_zero(most: float) -> Check:
    """Return a check of a number from 0 to `most`."""

    def check(value: Json) -> float:
        found = number(value)
        if not 0 <= found <= most:
            raise BadFrame(f"a number from 0 to {most:g} was expected")
        return found

    return check


# --- the machine ----------------------------------------------------------------------------------------------------

PLACE: Mapping[str, Check] = {
    "near": short(4096),
    "free": SIZE,
    "size": SIZE,
    "free_inodes": optional(SIZE),
    "writable": flag,
    "read_only": flag,
    "noexec": flag,
    "source": short(500),
    "kind": short(64),
}
LOOSE = exact({"path": short(4096), "why": one_of("owner", "everybody")})
GPU = exact(
    {
        "address": DEVICE,
        "vendor": one_of(*VENDORS),
        "id": like(re.compile(r"[0-9a-f]{4}:[0-9a-f]{4}\Z"), "the id of a device"),
        "model": short(100),
        "target": WORD,
        "open_modules": flag,
        "numa_node": optional(whole(0, 65535)),
        "driver": WORD,
    }
)
ACCELERATOR_COUNTS = mapped(one_of(*USABLE), whole(0, 64), len(USABLE))
LIBRARY = one_of("cuda", "rocm", "verbs", "ucx", "ucc")
ACCELERATORS = exact(
    {
        "gpus": listed(GPU, 64),
        "nvswitches": whole(0, 256),
        "modules": mapped(one_of(*MODULES), WORD),
        "secure_boot": optional(flag),
        "driver_library": WORD,
        "usable": ACCELERATOR_COUNTS,
        "libraries": mapped(LIBRARY, empty_or(rooted)),
        "versions": mapped(LIBRARY, WORD),
    }
)
SEAT = exact(
    {
        "home": rooted,
        "cores": whole(1, 1 << 16),
        "accelerators": ACCELERATOR_COUNTS,
        "fabric": optional(FABRIC),
    }
)
SYSTEM = exact(dict.fromkeys(("kernel", "arch", "os", "os_version", "os_name", "libc"), short()))
VERSIONS = (
    *("kernel", "python", "torch", "torch_backends", "nccl", "driver", "driver_library", "ucx"),
    *MPIS,
)
FACTS = exact(
    {
        "system": SYSTEM,
        "user": exact(
            {
                "name": short(256),
                "uid": whole(0, (1 << 32) - 1),
                "sudo": one_of("root", "yes", "no", "missing", "not tried"),
            }
        ),
        "python": exact({"path": short(4096), "version": short(64), "venv": flag, "headers": flag}),
        "host": exact(
            {
                "name": short(255),
                "addresses": optional(those(ip, 1000)),
                "machine_id": empty_or(DIGEST),
                "network": empty_or(DIGEST),
                "host_keys": listed(FINGERPRINT, 16),
            }
        ),
        "home": exact({"path": rooted, "loose": listed(LOOSE, 100), **PLACE}),
        "tmp": exact(PLACE),
        "shm": exact(PLACE),
        "limits": exact(dict.fromkeys(("memlock", "nofile", "nproc"), optional(SIZE))),
        "memory": exact({"total": SIZE, "available": SIZE, "swap": SIZE, "limit": optional(SIZE)}),
        "ports": exact(
            {"local_range": port_range, "listening": each_once(whole(PORTS.start, PORTS.stop - 1), len(PORTS))}
        ),
        "sshd": exact({"max_startups": or_nothing(STARTUPS), "from": short(300)}),
        "ssh": short(4096),
        "compiler": short(4096),
        "backends": flag,
        "firewall": listed(short(), 16),
        "rdma": those(DEVICE, 256),
        "accelerators": ACCELERATORS,
        "wrappers": those(DIGEST, 100_000),
        "versions": exact(dict.fromkeys(VERSIONS, short())),
        "networks": optional(NETWORKS),
        "seat": optional(SEAT),
    }
)
USUAL = exact(
    {
        "system": short(64),
        "machine": short(64),
        "env": mapped(short(300), words, 10_000),
        "python": exact(
            {
                "executable": short(4096),
                "version": exact(dict.fromkeys(("major", "minor", "micro"), whole(0, 1000))),
            }
        ),
    }
)


def facts_of(node: str, value: Json) -> dict[str, Json]:
    """Return the facts of a node (module node_facts)."""
    return dict(take(node, "facts", FACTS, value))


def usual_facts_of(node: str, value: Json) -> dict[str, Json]:
    """Return the part of Ansible's own facts that a node reports. No other name becomes a variable of the host."""
    return dict(take(node, "ansible_facts", USUAL, value))


def accelerators_of(node: str, value: Json) -> dict[str, Json]:
    """Return the GPUs of a node (module accelerator_facts)."""
    return dict(take(node, "accelerators", ACCELERATORS, value))


def seat_of(node: str, value: Json) -> dict[str, Json]:
    """Return the facts of a node that a host file needs."""
    return dict(take(node, "seat", SEAT, value))


# --- environments ---------------------------------------------------------------------------------------------------

RECEIPT = optional(mapped(short(), plain, 100))
ANSWERS: Mapping[str, Callable[[Json], Json]] = {
    "look": exact(
        {
            "refusals": listed(short(2000), 32),
            "ready": flag,
            "receipt": RECEIPT,
            "proven": flag,
            "kind": empty_or(DIGEST),
            "mesh": flag,
            "python": like(re.compile(r"\d{1,3}\.\d{1,3}\Z"), "the version of Python"),
            "libc": WORD,
            "machine": WORD,
            "os": WORD,
            "lacks": listed(like(re.compile(r"[A-Za-z0-9_.+-]{1,64}\Z"), "the name of a program"), 64),
            "lacks_pip": flag,
        }
    ),
    "send": mapped(short(300), words, 100_000),
}


def environment_answer(node: str, state: str, value: Json) -> dict[str, Json]:
    """Return what module python_environment answered on a node with a state, look or send."""
    return dict(take(node, state, ANSWERS[state], value))


def line(text: str) -> str:
    """Return a text for people as one line without control characters."""
    return printable(" ".join(text.split()))


# --- any module ------------------------------------------------------------------------------------------------------

# Keys that Ansible acts on by itself: variables of hosts, and texts that it shows even if the task succeeded.
OBEYED = ("ansible_facts", "add_host", "add_group", "warnings", "deprecations", "exception", "invocation")
SHOWN = ("msg", "module_stdout", "module_stderr", "stdout", "stderr")  # of a task that failed


def module_answer(node: str, value: Mapping[str, Json]) -> dict[str, Json]:
    """Return the answer of one of our modules on a node: bounded, printable, without keys that Ansible acts on."""
    kept = {name: content for name, content in value.items() if name not in OBEYED and not name.startswith("_ansible")}
    found: dict[str, Json] = take(node, "module", lambda text: plain(text, text=printable_lines), kept)
    return {**found, **{name: line(str(found[name])) for name in SHOWN if name in found}}


def printable_lines(text: str) -> str:
    """Return the text of a small file with printable lines."""
    return "\n".join(map(printable, text_file(text).split("\n")))
