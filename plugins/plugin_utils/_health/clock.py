# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""How far the clock of a node is ahead of the controller's. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Clock:
    """How far a node's clock is ahead of the controller's, and the uncertainty of that, both in seconds."""

    offset: float
    uncertainty: float


def clock_of(said: str, sent: float, received: float) -> dict[str, float] | None:
    """Return offset and uncertainty of a clock from the output of `date +%s.%N` and our own times around the call.

    `date` ran between `sent` and `received`, so the offset is between `said - received` and `said - sent`.
    A `date` without %N gives no fraction of the second. Return None if the output is not a time.
    """
    match = re.match(r"(\d{1,12})(?:\.(\d{1,12}))?(?!\d)", said, re.ASCII)
    if not match:
        return None
    second, fraction = float(match[1]), float(f"0.{match[2]}") if match[2] else None
    least = second + (fraction or 0.0) - received
    most = second + (1.0 if fraction is None else fraction) - sent
    return {"offset": (least + most) / 2, "uncertainty": (most - least) / 2}
