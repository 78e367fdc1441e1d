# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Values in sysfs."""

from __future__ import annotations

import os
import re

PCI = re.compile(r"pci[0-9a-f]{4}:[0-9a-f]{2}$|[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")


def read(path: str, strip: bool = True) -> str:
    """Return the text of a file; empty if it cannot be read, which in sysfs means that there is no value."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return ""
    return text.strip() if strip else text


def number(text: str) -> int | None:
    """Return a decimal number, None if it is none."""
    try:
        return int(text)
    except ValueError:
        return None


def driver(device: str) -> str:
    """Return the driver of a device, by its directory in sysfs; empty if none is bound."""
    link = os.path.join(device, "driver")
    return os.path.basename(os.path.realpath(link)) if os.path.exists(link) else ""


def pci_path(device: str) -> str:
    """Return the way from the host bridge to a device, "pci0000:15/0000:15:01.0/0000:16:00.0"; empty without PCI."""
    return "/".join(part for part in os.path.realpath(device).split(os.sep) if PCI.match(part))
