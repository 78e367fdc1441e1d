# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Codes, by which programs decide: enums whose values are texts, so that files and messages have the plain text."""

from __future__ import annotations

import enum
from typing import TypeVar


class Code(str, enum.Enum):
    """A code. It equals its text, and is written as it: by json, str(), format() and in f-strings.

    Enums write "Code.NAME" for str(), and from Python 3.11 also into f-strings (docs of enum, notes on format()).
    """

    __str__ = str.__str__


AnyCode = TypeVar("AnyCode", bound=Code)


def known(codes: type[AnyCode], text: object) -> AnyCode | None:
    """Return the code that has this text; None if there is none, as a file or another machine may say anything."""
    try:
        return codes(text) if isinstance(text, str) else None
    except ValueError:
        return None
