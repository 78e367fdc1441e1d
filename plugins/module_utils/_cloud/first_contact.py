# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a new machine does at the first contact: it waits until it is complete, and changes its host key.

The controller sends this text to `python3 - WORD` over SSH, for nothing is on the machine yet. `offer` makes a new key
and prints it; `take` has sshd use it. Both may be done again after an interruption. One line of JSON is printed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

KEY = "/etc/ssh/ssh_host_ed25519_key"
NEW = KEY + ".new"
TIMER = "torchfleet-lease.timer"
UNITS = ("ssh.service", "sshd.service")  # Debian's and Ubuntu's; everybody else's


def run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a program, and return what came of it."""
    return subprocess.run(
        argv, check=False, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def offer() -> dict[str, str]:
    """Return the new public key, or why there is none. It waits for cloud-init, which restarts sshd when it is done."""
    done = run(["cloud-init", "status", "--wait"])
    if done.returncode == 1:  # 2 means that it recovered from errors
        return {"error": "cloud-init status --wait: " + done.stdout.strip()}
    lease = run(["systemctl", "is-active", TIMER])
    if lease.returncode:
        return {"error": f"the lease does not run: {TIMER} is {lease.stdout.strip()}"}
    if not os.path.exists(NEW + ".pub"):
        if os.path.exists(NEW):
            os.unlink(NEW)
        made = run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", NEW])
        if made.returncode:
            return {"error": "ssh-keygen: " + made.stdout.strip()}
    with open(NEW + ".pub") as file:
        return {"key": file.read().strip()}


def take() -> dict[str, str]:
    """Have sshd use the new key from the next connection on. Nothing to do if it has done so before."""
    if os.path.exists(NEW):
        os.replace(NEW, KEY)
    if os.path.exists(NEW + ".pub"):
        os.replace(NEW + ".pub", KEY + ".pub")
        for unit in UNITS:
            if not run(["systemctl", "is-active", unit]).returncode:
                run(["systemctl", "reload-or-restart", unit])
    return {}


if __name__ == "__main__":
    print(json.dumps({"offer": offer, "take": take}[sys.argv[1]]()))
