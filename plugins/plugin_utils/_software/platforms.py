# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The machines that software can be installed on. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def refusal(role: str, title: str, wheels: Sequence[str], system: str, machine: str) -> str:
    """Return why a role cannot install its software on a machine; empty if it can.

    `title`: the software's name for people. `wheels`: the architectures that there are wheels for, as uname names them;
    empty if none are used. `system`, `machine`: the machine's own, from Ansible's facts.
    """
    if wheels and (system != "Linux" or machine not in wheels):
        there_are = f"only for Linux on {' and '.join(wheels)}"
        return f"{role}: there is no {title} wheel for {system} on {machine}, {there_are}"
    if system != "Linux":
        return f"{role}: {title} runs on Linux only, and this is {system}"
    return ""
