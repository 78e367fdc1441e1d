# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A program that talks to a cluster is ended with what it started."""

from __future__ import annotations

import os
import select

import pytest

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._scheduled.bounded_program import (
    ERROR_BYTES,
    Exceeded,
    run,
)


@pytest.mark.parametrize(("more", "exceeded"), [("wait", Exceeded.TIME), ("cat /dev/zero", Exceeded.SIZE)])
def test_what_a_killed_program_started_ends_with_it(more: str, exceeded: Exceeded) -> None:
    held, kept = os.pipe()
    # The child has the pipe's end while it lives. Popen closes it in a program, so it is opened again by its path.
    words = ["sh", "-c", f"exec 7>/proc/{os.getpid()}/fd/{kept}; sleep 600 & {more}"]
    done = run(words, b"", 2.0 if exceeded is Exceeded.TIME else 60.0, 1 << 20)
    os.close(kept)
    ended = select.select([held], [], [], 30)[0]
    os.close(held)
    assert done.exceeded is exceeded
    assert ended == [held]


def test_of_endless_errors_the_first_part_is_kept() -> None:
    done = run(["sh", "-c", "head -c 4000000 /dev/zero >&2"], b"", 60.0, 1 << 20)
    assert (done.status, done.exceeded, len(done.stderr)) == (0, Exceeded.NONE, ERROR_BYTES)
