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

import json
from dataclasses import dataclass
from datetime import datetime

USER = "fleet"
TIMER = "torchfleet-lease.timer"
# No more than the time decides: a controller that is gone, a closed laptop, a lost network change nothing. Persistent:
# a machine that was off at that time ends when it boots.
UNITS = {
    "/etc/systemd/system/torchfleet-lease.timer": "[Unit]\nDescription=End of this machine's lease\n\n[Timer]\n"
    "OnCalendar={until}\nAccuracySec=1s\nPersistent=true\n\n[Install]\nWantedBy=timers.target\n",
    "/etc/systemd/system/torchfleet-lease.service": "[Unit]\nDescription=The lease of this machine is over: it ends\n\n"
    "[Service]\nType=oneshot\nExecStart=/usr/bin/systemctl poweroff\n",
}


@dataclass(frozen=True)
class UserData:
    """Its three pieces. A key goes between them (host_key())."""

    begin: str
    end: str

    def whole(self, key: str) -> str:
        """Return the user data of the instance with this piece of key."""
        return self.begin + key + self.end


def user_data(public_key: str, until: datetime) -> UserData:
    """Return what the instances of a cluster have in common. `until`: when their lease ends, in UTC."""
    ends = until.strftime("%Y-%m-%d %H:%M:%S UTC")
    files = [
        {"path": path, "permissions": "0644", "content": content.format(until=ends)} for path, content in UNITS.items()
    ]
    user = {"name": USER, "shell": "/bin/bash", "sudo": "ALL=(ALL) NOPASSWD:ALL", "lock_passwd": True}
    config = {
        "users": [{**user, "ssh_authorized_keys": [public_key]}],
        "ssh_pwauth": False,
        "disable_root": True,
        "locale": False,  # that of the image: setting one fails where the package locales is missing
        "write_files": files,
        "runcmd": [["systemctl", "daemon-reload"], ["systemctl", "enable", "--now", TIMER]],
    }
    return UserData('#cloud-config\n{"ssh_keys": {"ed25519_private": "', '"}, ' + json.dumps(config)[1:] + "\n")


def host_key(private: str, public: str) -> str:
    """Return the piece with a host key: what stands between the quotes of both its texts."""
    return f'{json.dumps(private)[1:-1]}", "ed25519_public": "{json.dumps(public)[1:-1]}'
