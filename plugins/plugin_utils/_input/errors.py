# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The error for a user's mistake."""

from __future__ import annotations

import json

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import printable


class InputError(ValueError):
    """A mistake in the user's input. The message is one line: what was given, what is allowed, what to type.

    It may quote files and other programs, so it is made printable here: Ansible shows it on the terminal as it is.
    `code`: for programs, where there is one.
    """

    code = ""

    def __init__(self, name: str, given: object, allowed: str) -> None:
        shown = json.dumps(given, default=str) if not isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        super().__init__(printable(" ".join(f"{name}: got {shorten(shown)}; {allowed}".splitlines())))


def shorten(text: str, limit: int = 120) -> str:
    """Return the text, cut at `limit` characters."""
    return text if len(text) <= limit else text[:limit] + "..."
