# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How the answers of nodes during setup are checked before they are shown or used for other nodes. Pure.

An attacker may control a node. So each answer is declared, with the type, form and size of each field: in
_fabric/answers, _health/answers, _software/answers and _ssh/answers; those of jobs in module_utils/_runtime/frames.
Other fields are left out, and control characters are removed from text.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import TypeVar, cast

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import (
    DEPTH,
    BadFrame,
    like,
    listed,
    path,
    plain_fields,
    printable,
    whole,
    words,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.node_form import NIC

from .errors import InputError

Check = Callable[[object], object]
Value = TypeVar("Value")
Shape = TypeVar("Shape")  # a TypedDict
SURE = "is it still the machine that you set up?"
FILE = 1 << 20  # characters of a small file


class Misfit(BadFrame):
    """A field is invalid: its name, and what was expected."""

    def __init__(self, where: str, expected: str) -> None:
        super().__init__(expected)
        self.where = where


def take(node: str, what: str, check: Callable[[object], Value], value: object) -> Value:
    """Return a node's checked answer. Raise InputError, which names the node, for the first invalid field."""
    try:
        return check(value)
    except (BadFrame, ValueError, TypeError, OverflowError, RecursionError) as error:
        where = f", {error.where}" if isinstance(error, Misfit) else ""
        expected = str(error) if isinstance(error, BadFrame) else "something else was expected"
        raise InputError(f"answer of {node}", f"{what}{where}", f"{expected}: {SURE}") from None


# --- forms ----------------------------------------------------------------------------------------------------------


def exact(fields: Mapping[str, Check], optional_ones: Mapping[str, Check] | None = None) -> Callable[[object], Shape]:
    """Return a check of an object with these fields, and any of `optional_ones`; other fields are left out.

    Its type is what the caller declares: these are the fields of that.
    """

    def check(value: object) -> dict[str, object]:
        if not isinstance(value, Mapping):
            raise BadFrame("an object was expected")
        more = {name: field for name, field in (optional_ones or {}).items() if name in value}
        return {name: at(name, field, value.get(name)) for name, field in {**fields, **more}.items()}

    return cast(Callable[[object], Shape], check)


def at(name: str, check: Check, value: object) -> object:
    """Return a checked field. Raise Misfit, which names the field."""
    try:
        return check(value)
    except (BadFrame, ValueError, TypeError, OverflowError) as error:
        inner = f".{error.where}" if isinstance(error, Misfit) else ""
        raise Misfit(name + inner, str(error) if isinstance(error, BadFrame) else "another form was expected") from None


def short(most: int = 200) -> Callable[[object], str]:
    """Return a check of a text for people: one line, cut if it is too long."""
    return lambda value: words(value)[:most]


def or_nothing(check: Check) -> Check:
    """Return a check that replaces an invalid value by an empty text, for settings that users write by hand."""

    def fitting(value: object) -> object:
        try:
            return check(value)
        except (BadFrame, ValueError):
            return ""

    return fitting


def text_file(value: object) -> str:
    """Return the text of a file unchanged: it is compared, and parsed by its users."""
    if not isinstance(value, str) or len(value) > FILE:
        raise BadFrame("the text of a small file was expected")
    return value


def empty_or(check: Check) -> Check:
    """Return a check that also accepts an empty text or None, and returns an empty text for both."""
    return lambda value: "" if value in ("", None) else check(value)


def those(check: Callable[[object], Value], most: int) -> Callable[[object], list[Value]]:
    """Return a check of a list that leaves out invalid items: a node may have NICs with odd names."""

    def fitting(value: object) -> list[Value]:
        found: list[Value] = []
        for item in listed(lambda each: each, most)(value):
            try:
                found.append(check(item))
            except (BadFrame, ValueError):
                continue
        return found

    return fitting


def ip(value: object) -> str:
    """Return an address of a NIC, which may be loopback or link-local."""
    if not isinstance(value, str) or len(value) > 45 or "%" in value:
        raise BadFrame("an IP address was expected")
    return str(ipaddress.ip_address(value))


def rooted(value: object) -> str:
    """Return an absolute path without characters that are special in a shell or in another program's file."""
    found = path(value)
    if not re.fullmatch(r"/[\w .,:;@%+=~()\[\]{}#&/-]*", found) or ".." in found.split("/"):
        raise BadFrame("an absolute path, free of quotes, '$', backslashes and line ends, was expected")
    return found


def port_range(value: object) -> list[int]:
    """Return the first and last port of outgoing connections; an empty list if the node does not know them."""
    found: list[int] = listed(whole(0, 65535), 2)(value)
    if len(found) == 1:
        raise BadFrame("a first and a last port were expected")
    return found


def each_once(check: Callable[[object], Value], most: int) -> Callable[[object], list[Value]]:
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


def line(text: str) -> str:
    """Return a text for people as one line without control characters."""
    return printable(" ".join(text.split()))


# --- any module ------------------------------------------------------------------------------------------------------

# Keys that Ansible acts on by itself: variables of hosts, and texts that it shows even if the task succeeded.
OBEYED = ("ansible_facts", "add_host", "add_group", "warnings", "deprecations", "exception", "invocation")
SHOWN = ("msg", "module_stdout", "module_stderr", "stdout", "stderr")  # of a task that failed


def module_answer(node: str, value: Mapping[str, object]) -> dict[str, object]:
    """Return the answer of one of our modules on a node: bounded, printable, without keys that Ansible acts on."""
    kept = {name: content for name, content in value.items() if name not in OBEYED and not name.startswith("_ansible")}
    found = take(node, "module", lambda _value: plain_fields(kept, DEPTH, printable_lines), kept)
    return {**found, **{name: line(str(found[name])) for name in SHOWN if name in found}}


def printable_lines(text: str) -> str:
    """Return the text of a small file with printable lines."""
    return "\n".join(map(printable, text_file(text).split("\n")))
