# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The user data of an instance: who may log in, its one-time host key, and its lease. Pure.

cloud-init reads it at the first boot (https://docs.cloud-init.io, "Cloud config"). Whatever has cloud-init can take
it: this is not of EC2. It is text in three pieces, because all instances share the first and the last one.

Everyone who may read the user data of an instance, on it or in the account, can read the host key in it. So that key is
for the first login only: contact.py has the instance make another one, and forgets it.
"""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._cloud import lease
from ansible_collections.torchfleet.cluster.plugins.module_utils._cloud.lease import LEASE, TIMER

USER = "fleet"
PROGRAM = "/usr/local/sbin/torchfleet-lease"
# Every minute, with no more than the clock and what runs here: a controller that is gone, a closed laptop, a lost
# network change nothing. A machine that was off at the end of its lease ends when it boots.
UNITS = {
    f"/etc/systemd/system/{TIMER}": "[Unit]\nDescription=Look every minute whether this machine's lease is over\n\n"
    "[Timer]\nOnCalendar=minutely\nAccuracySec=1s\n\n[Install]\nWantedBy=timers.target\n",
    # LogLevelMax: three lines a minute about nothing would fill the journal.
    "/etc/systemd/system/torchfleet-lease.service": "[Unit]\nDescription=End this machine if its lease is over\n\n"
    f"[Service]\nType=oneshot\nLogLevelMax=notice\nExecStart=/usr/bin/python3 -I {PROGRAM} check\n",
}


@dataclass(frozen=True)
class UserData:
    """Its two shared pieces. That of an instance goes between them (own_piece())."""

    begin: str
    end: str

    def whole(self, own: str) -> str:
        """Return the user data of the instance with this piece of its own."""
        return self.begin + own + self.end


def user_data(public_key: str) -> UserData:
    """Return what the instances of a cluster have in common."""
    # Packed, for a parameter of CloudFormation has 4096 bytes at most; without a time, to be the same every time.
    program = base64.b64encode(gzip.compress(Path(lease.__file__).read_bytes(), mtime=0)).decode()
    files = [
        {"path": PROGRAM, "permissions": "0644", "encoding": "gz+b64", "content": program},
        *({"path": path, "permissions": "0644", "content": content} for path, content in UNITS.items()),
    ]
    user = {"name": USER, "shell": "/bin/bash", "sudo": "ALL=(ALL) NOPASSWD:ALL", "lock_passwd": True}
    config = {
        "users": [{**user, "ssh_authorized_keys": [public_key]}],
        "ssh_pwauth": False,
        "disable_root": True,
        "locale": False,  # that of the image: setting one fails where the package locales is missing
        "runcmd": [["systemctl", "daemon-reload"], ["systemctl", "enable", "--now", TIMER]],
    }
    end = f", {json.dumps(files)[1:]}, {json.dumps(config)[1:]}\n"
    return UserData('#cloud-config\n{"ssh_keys": {"ed25519_private": "', end)


def own_piece(private: str, public: str, until: datetime, grace_hours: int) -> str:
    """Return the piece of an instance: its one-time host key, and when its lease ends, which is later for a later one.

    It begins between the quotes of the private key, and ends within the list of files to write.
    """
    content = json.dumps({"until": int(until.timestamp()), "grace": grace_hours * 3600})
    file = json.dumps({"path": LEASE, "permissions": "0644", "content": content})
    keys = f'{json.dumps(private)[1:-1]}", "ed25519_public": "{json.dumps(public)[1:-1]}"}}'
    return f'{keys}, "write_files": [{file}'
