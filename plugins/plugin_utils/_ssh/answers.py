# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The answers of nodes for the SSH mesh, checked before any of it reaches a file of another node. Pure.

An attacker may control a node. So every field has a type, a form and a size, and unknown fields are left out. The
fields are those of survey() in module_utils/_ssh/survey.py.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Callable, Mapping
from typing import TypedDict, cast

from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.keys import KeyFailed, strict_key
from ansible_collections.torchfleet.cluster.plugins.module_utils._ssh.survey import MOST_ADDRESSES, MOST_FILES
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

MOST_KEYS = 16  # host keys of a node
LONGEST = 1024  # characters of a text; PATH_MAX is 4096
# No wildcard of ssh's patterns, no separator of its lists. A directory service names users user@domain.
USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,255}\$?\Z")
# ssh expands % (doubled where a path is written) and $; quotes, backslashes and control characters end a word.
PATH = re.compile(r"/[\w .,:;@%+=~()\[\]{}#&/-]*\Z")
PROGRAM = re.compile(r"/[\w.+/-]+\Z")
CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
STARTUPS = re.compile(r"[0-9:]{0,32}\Z")
DIGEST = re.compile(r"[0-9a-f]{64}\Z")
SURE = "is it still the machine that you set up?"


class NodeAnswer(TypedDict):
    """What a node told, checked. `clock`: seconds since 1970; `applied`: the digest of the last work done there."""

    user: str
    directory: str
    key: str
    host_keys: tuple[str, ...]
    staged: bool
    addresses: tuple[str, ...]
    primary: str
    authorized_keys: str
    loose: str
    service: str
    sshd_path: str
    version: tuple[int, ...]
    limits: dict[str, str] | None
    root_files: tuple[str, ...]
    tenant: str
    others: tuple[str, ...]
    clock: float
    applied: str


def checked(node: str, found: Mapping[str, object]) -> NodeAnswer:
    """Return the checked fields of a node's answer. Raise InputError for the first invalid one.

    Lists become tuples. A missing field gets its empty value.
    """
    fields = {
        field: checked_field(node, field, found.get(field, default)) for field, (default, _check) in FIELDS.items()
    }
    return cast(NodeAnswer, fields)


def checked_field(node: str, field: str, value: object) -> object:
    """Return one field of a node's answer. Raise InputError if it is invalid."""
    try:
        return FIELDS[field][1](value)
    except (ValueError, TypeError, KeyFailed) as error:
        title = {"directory": "torchfleet_home", "addresses": "addresses"}.get(field, field)
        allowed = str(error) if isinstance(error, Unfit) else f"the node's answer is invalid: {SURE}"
        raise InputError(f"{title} of {node}", shown(value), allowed) from None


class Unfit(ValueError):
    """A value is invalid; the text says what is allowed."""


def shown(value: object) -> str:
    """Return a value for a message, without control characters."""
    return str(value)[:200].encode("ascii", "backslashreplace").decode()


# --- forms ----------------------------------------------------------------------------------------------------------


def text_like(form: re.Pattern[str], allowed: str, may_lack: bool = False) -> Callable[[object], str]:
    """Return a check of a text of this form; `may_lack` also allows an empty one."""

    def check(value: object) -> str:
        if not isinstance(value, str) or len(value) > LONGEST or not (form.match(value) or (may_lack and not value)):
            raise Unfit(allowed)
        return value

    return check


def path_like(form: re.Pattern[str], allowed: str, may_lack: bool = False) -> Callable[[object], str]:
    """Return a check of an absolute path of this form, without ".."."""
    text = text_like(form, allowed, may_lack)

    def check(value: object) -> str:
        if ".." in text(value).split("/"):
            raise Unfit(allowed)
        return str(value)

    return check


def address(value: object) -> str:
    """Return the usual form of one machine's address. Raise Unfit for a pattern, a network or a shared address.

    Python accepts anything after % as the scope of an IPv6 address, even line ends.
    """
    allowed = f"a node's own addresses are plain IP addresses: {SURE}"
    if not isinstance(value, str) or len(value) > 45 or "%" in value:
        raise Unfit(allowed)
    try:
        ip = ipaddress.ip_address(value)
    except ValueError:
        raise Unfit(allowed) from None
    mapped = ip.version == 6 and ip.ipv4_mapped is not None
    everybody = str(ip) == "255.255.255.255"
    if mapped or everybody or ip.is_unspecified or ip.is_multicast or ip.is_loopback or ip.is_link_local:
        raise Unfit(allowed)
    return str(ip)


def optional(check: Callable[[object], object]) -> Callable[[object], object]:
    """Return a check that also allows an empty text."""
    return lambda value: "" if value == "" else check(value)


def listed(check: Callable[[object], object], most: int, what: str) -> Callable[[object], tuple[object, ...]]:
    """Return a check of a list without duplicates, of at most `most` items."""

    def every(value: object) -> tuple[object, ...]:
        if not isinstance(value, (list, tuple)) or len(value) > most:
            raise Unfit(f"a node has at most {most} {what}")
        return tuple(dict.fromkeys(check(item) for item in value))

    return every


def version(value: object) -> tuple[int, ...]:
    """Return OpenSSH's version as two whole numbers."""
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not all(type(part) is int for part in value):
        raise Unfit("a version is two whole numbers")
    if not all(0 <= part < 1000 for part in value):
        raise Unfit("a version is two whole numbers below 1000")
    return tuple(value)


def clock(value: object) -> float:
    """Return seconds since 1970."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise Unfit("a clock is a number of seconds since 1970")
    return float(value)


def limits(value: object) -> dict[str, str] | None:
    """Return MaxStartups and MaxSessions from the node's sshd_config; empty if they are not set."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise Unfit("limits are an object of names and values")
    texts = {name: value.get(name) for name in ("maxstartups", "maxsessions")}
    return {name: text if isinstance(text, str) and STARTUPS.match(text) else "" for name, text in texts.items()}


def yes_or_no(value: object) -> bool:
    if not isinstance(value, bool):
        raise Unfit("it must be true or false")
    return value


def service(value: object) -> str:
    if value not in ("", "user", "system"):
        raise Unfit("it must be user, system or empty")
    return str(value)


def key(value: object) -> str:
    """Return a public key as "type base64"."""
    try:
        return strict_key(value)
    except KeyFailed:
        raise Unfit(f"that is not a public SSH key: {SURE}") from None


PATH_ALLOWED = "it must be an absolute path, free of quotes, '$', backslashes and line ends"
FIELDS: Mapping[str, tuple[object, Callable[[object], object]]] = {
    "user": ("", text_like(USER, "its name must be free of spaces, quotes, commas, wildcards and '%'")),
    "directory": ("", path_like(PATH, PATH_ALLOWED)),
    "key": ("", optional(key)),
    "host_keys": ((), listed(key, MOST_KEYS, "host keys")),
    "staged": (False, yes_or_no),
    "addresses": ((), listed(address, MOST_ADDRESSES, "addresses")),
    "primary": ("", optional(address)),
    "authorized_keys": ("", path_like(PATH, PATH_ALLOWED, may_lack=True)),
    "loose": ("", path_like(PATH, PATH_ALLOWED, may_lack=True)),
    "service": ("", service),
    "sshd_path": ("", path_like(PROGRAM, "it must be the absolute path of a program", may_lack=True)),
    "version": ((0, 0), version),
    "limits": (None, limits),
    "root_files": ((), listed(path_like(PATH, PATH_ALLOWED), MOST_FILES, "such files")),
    "tenant": ("", text_like(CLUSTER_NAME, "it must be the name of a cluster", may_lack=True)),
    "others": ((), listed(path_like(PATH, PATH_ALLOWED), MOST_FILES, "such files")),
    "clock": (0.0, clock),
    "applied": ("", text_like(DIGEST, "it must be a digest", may_lack=True)),
}
