# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A write that must not hold up what comes after it: the disk may be full, or hang."""

from __future__ import annotations

import threading
from typing import Callable

SECONDS = 1.0  # that the end of programs waits for a write


def write_in_thread(write: Callable[[], None]) -> None:
    """Write in a thread, and wait SECONDS for it: a full or hanging disk must not block the end of programs.

    Where no thread can be started it is written here: the job has all processes that its user or container may have.
    """

    def try_to() -> None:
        try:
            write()
        except OSError:
            pass

    thread = threading.Thread(target=try_to, daemon=True)
    try:
        thread.start()
    except RuntimeError:
        try_to()
    else:
        thread.join(SECONDS)
