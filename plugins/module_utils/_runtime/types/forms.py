# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Checks of values that a node sent: the type, form and size of each. Texts come out printable."""

from __future__ import annotations

import ipaddress
import math
import re
from typing import Callable, Collection, Dict, Generic, Mapping, TypeVar, cast

from .codes import AnyCode, known

T = TypeVar("T")
Shape_co = TypeVar("Shape_co", covariant=True)
AnyText = TypeVar("AnyText", bound=str)
Check = Callable[[object], object]  # of any value as it came; returns it as it must be, or raises BadFrame, ValueError
Fields = Dict[str, object]  # an object of JSON
DEPTH = 16  # of nested values
ITEMS = 200_000  # of one list or object
TEXT = 10_000  # characters of a text for people
SHORT = 600  # of a line of output, a command, a name


class BadFrame(ValueError):
    """The other side sent what our code never sends."""


def printable(text: str) -> str:
    """Return a text without what changes a terminal: control characters, line ends, directions of writing."""
    if text.isprintable():
        return text
    return "".join(letter for letter in text if letter == "\t" or letter.isprintable())


def words(value: object) -> str:
    """Return a text for people, made printable."""
    if not isinstance(value, str):
        raise BadFrame("a text was expected")
    return printable(value[:TEXT])


def short(value: object) -> str:
    """Return a short text for people, made printable."""
    return words(value)[:SHORT]


def one_line(value: object) -> str:
    """Return a text that means what it is: it is refused, and not made printable."""
    if not isinstance(value, str) or len(value) > 4096 or printable(value) != value:
        raise BadFrame("a line was expected")
    return value


def like(form: re.Pattern[str], what: str) -> Callable[[object], str]:
    """Return a check: a text of this form."""

    def check(value: object) -> str:
        if not isinstance(value, str) or len(value) > 4096 or not form.match(value):
            raise BadFrame(f"{what} was expected")
        return value

    return check


def one_of(*choices: AnyText) -> Callable[[object], AnyText]:
    def check(value: object) -> AnyText:
        for choice in choices:
            if value == choice:
                return choice
        raise BadFrame(f"one of {', '.join(choices)} was expected")

    return check


def coded(codes: type[AnyCode]) -> Callable[[object], AnyCode]:
    """Return a check: the text of one of these codes, which becomes that code."""

    def check(value: object) -> AnyCode:
        found = known(codes, value)
        if found is None:
            raise BadFrame(f"one of {', '.join(codes)} was expected")
        return found

    return check


def whole(least: int, most: int) -> Callable[[object], int]:
    """Return a check: a whole number from `least` to `most`."""

    def check(value: object) -> int:
        if type(value) is not int or not least <= value <= most:
            raise BadFrame(f"a whole number from {least} to {most} was expected")
        return value

    return check


def number(value: object) -> float:
    """Return a finite number; times are seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or abs(value) > 1e12:
        raise BadFrame("a number was expected")
    return float(value)


def moment(value: object) -> float:
    """Return a time since the epoch: the difference of two, and of clocks, is a number() as well."""
    found = number(value)
    if not 0 <= found <= 1e11:
        raise BadFrame("a time was expected")
    return found


def flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise BadFrame("true or false was expected")
    return value


def optional(check: Callable[[object], T]) -> Callable[[object], T | None]:
    return lambda value: None if value is None else check(value)


def either(check: Callable[[object], T], default: T) -> Callable[[object], T]:
    """Return a check that takes a field which is not there for the default."""
    return lambda value: default if value is None else check(value)


def listed(check: Callable[[object], T], most: int = ITEMS) -> Callable[[object], list[T]]:
    def every(value: object) -> list[T]:
        if not isinstance(value, list) or len(value) > most:
            raise BadFrame(f"a list of at most {most} was expected")
        return [check(item) for item in value]

    return every


def mapped(
    name: Callable[[object], str], check: Callable[[object], T], most: int = ITEMS
) -> Callable[[object], dict[str, T]]:
    def every(value: object) -> dict[str, T]:
        if not isinstance(value, dict) or len(value) > most:
            raise BadFrame(f"an object of at most {most} was expected")
        return {name(key): check(content) for key, content in value.items()}

    return every


class Form(Generic[Shape_co]):
    """A check: an object with these fields, which are those of the type that it is declared with (test_protocol.py).

    What else it has is left out, or with `rest` kept as bounded JSON. `late`: fields that need not be there, but are of
    this form if they are.
    """

    def __init__(
        self, fields: Mapping[str, Check], late: Mapping[str, Check] | None = None, rest: bool = False
    ) -> None:
        self.fields, self.late, self.rest = fields, late or {}, rest

    def __call__(self, value: object) -> Shape_co:
        if not isinstance(value, dict):
            raise BadFrame("an object was expected")
        found = {name: field(value.get(name)) for name, field in self.fields.items()}
        found.update({name: field(value[name]) for name, field in self.late.items() if name in value})
        known = self.names if self.rest else value
        rest = {key: content for key, content in value.items() if key not in known}
        return cast(Shape_co, {**plain_fields(rest, DEPTH, words), **found})

    @property
    def names(self) -> set[str]:
        """Return the names of all fields that are checked."""
        return {*self.fields, *self.late}


def shaped(fields: Mapping[str, Check], late: Mapping[str, Check] | None = None) -> Form[T]:
    """Return a check: an object with these fields; what else it has is kept as bounded JSON."""
    return Form(fields, late, rest=True)


def plain(value: object, depth: int = DEPTH, text: Callable[[str], object] = words) -> object:
    """Return any JSON with its texts made printable, as `text` does. BadFrame if it is too deep or too large."""
    if depth <= 0:
        raise BadFrame("its values are nested too deep")
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        return plain_fields(value, depth, text)
    if isinstance(value, list):
        check_size(value)
        return [plain(item, depth - 1, text) for item in value]
    return value if value is None or isinstance(value, bool) else value if type(value) is int else number(value)


def plain_fields(value: Fields, depth: int, text: Callable[[str], object]) -> Fields:
    """Return the fields of any object as plain() does."""
    check_size(value)
    return {words(key): plain(content, depth - 1, text) for key, content in value.items()}


def check_size(values: Collection[object]) -> None:
    if len(values) > ITEMS:
        raise BadFrame(f"more than {ITEMS} values in one place")


def path(value: object) -> str:
    """Return an absolute path, or an empty text where a node has none."""
    if not isinstance(value, str) or len(value) > 4096 or printable(value) != value or (value and value[0] != "/"):
        raise BadFrame("an absolute path was expected")
    return value


def address(value: object) -> str:
    """Return the IP address of one machine."""
    if not isinstance(value, str) or len(value) > 45 or "%" in value:
        raise BadFrame("an IP address was expected")
    found = ipaddress.ip_address(value)
    if found.is_unspecified or found.is_multicast:
        raise BadFrame("the IP address of one machine was expected")
    return str(found)


def network(value: object) -> str:
    if not isinstance(value, str) or len(value) > 50:
        raise BadFrame("a network was expected")
    return str(ipaddress.ip_network(value))


def metric(value: object) -> int | float | str:
    """Return a value that a rank reported: a finite number of any size, or a text. A huge whole number is a text."""
    if isinstance(value, str):
        return words(value)[:500]
    if type(value) is int:
        return value if abs(value) < 1 << 63 else str(value)[:500]
    if not isinstance(value, float) or not math.isfinite(value):
        raise BadFrame("a number or a text was expected")
    return value


def metric_name(value: object) -> str:
    return words(value)[:100]
