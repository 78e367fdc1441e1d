# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The lease of a machine, as root on it: `check` ends the machine when it is over, `renew UNTIL GRACE` lengthens it.

A timer of systemd starts `check` every minute, so that a controller that is gone changes nothing. A job that runs at
the end is waited for, GRACE seconds at most. The file of the lease is read anew each time.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
import subprocess
import sys
import time

LEASE = "/etc/torchfleet-lease.json"
BUSY = "/run/torchfleet-lease.busy"  # its time of change: when a job was last seen here
PROC = "/proc"
TIMER = "torchfleet-lease.timer"
# Held by the supervisor of a job on each of its nodes until the job is over and its files are fetched (JobDir.lock()).
LOCK = re.compile(r"/jobs/[^/]+/lock\Z")
PAUSE = 1800.0  # seconds after a job: time to bring home what it left, or to begin the next one


def has_job() -> bool:
    """Whether a job runs here, of any user and in any container: a process has its lock open."""
    for path in glob.iglob(PROC + "/[0-9]*/fd/[0-9]*"):
        with contextlib.suppress(OSError):
            if LOCK.search(os.readlink(path)):
                return True
    return False


def is_over(now: float) -> bool:
    """Whether the machine is to end. A lease that cannot be read is over: without one it would be billed for ever."""
    try:
        with open(LEASE) as file:
            lease = json.load(file)
        until, grace = int(lease["until"]), int(lease["grace"])
    except (OSError, ValueError, KeyError, TypeError):
        return True
    if now < until - PAUSE:
        return False
    seen = os.stat(BUSY).st_mtime if os.path.exists(BUSY) else 0.0
    if has_job():
        seen = now
        with contextlib.suppress(OSError), open(BUSY, "w"):  # there may be no room
            os.utime(BUSY, (now, now))
    return now >= until + grace or now >= max(until, seen + PAUSE)


def check() -> None:
    """End the machine if its lease is over."""
    if is_over(time.time()):
        subprocess.call(["systemctl", "poweroff"])


def renew(until: str, grace: str) -> dict[str, str]:
    """Write the lease, whole or not at all: seconds since 1970, and seconds. Return what is wrong with its timer."""
    with open(LEASE + ".new", "w") as file:
        json.dump({"until": int(until), "grace": int(grace)}, file)
        file.flush()
        os.fsync(file.fileno())  # a machine that crashed then must not find an empty file
    os.replace(LEASE + ".new", LEASE)
    state = subprocess.run(["systemctl", "is-active", TIMER], stdout=subprocess.PIPE, check=False, text=True)
    return {"error": f"{TIMER} is {state.stdout.strip()}: this machine would never end"} if state.returncode else {}


if __name__ == "__main__":
    if sys.argv[1] == "check":
        check()
    else:
        print(json.dumps(renew(*sys.argv[2:])))
