# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a launcher starts instead of ssh: asks the head's supervisor to run the launcher's daemon on a node.

The supervisor has a way to the node already, with a guard at its end that owns whatever is started there.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from typing import Any, Mapping

from .job_directory import JobDir
from .processes import die_with_parent, identity

AGENT_SOCKET = "agent"  # in the job's private temporary directory on the head
MARK = re.compile(r"agent\.([0-9]{1,10})\.[0-9]{1,20}\Z")


def main(job_dir: str, words: list[str]) -> int:
    """Run `words` (options as for ssh, a host, a command) and return the command's exit status."""
    die_with_parent()
    order = JobDir(job_dir).read("order.json")
    while words and words[0].startswith("-"):
        words = words[1:]
    host, command = words[0], " ".join(words[1:])  # as ssh does: the other side's shell reads it
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.path.join(order["private_tmp"], AGENT_SOCKET))
    except OSError:
        return by_hand(order, host, command)
    open(os.path.join(order["private_tmp"], mark(os.getpid())), "w").close()
    connection.sendall(json.dumps({"host": host, "command": command}).encode() + b"\n")
    answer = json.loads(connection.makefile().readline() or '{"rc": 255, "text": "the supervisor is gone"}')
    if answer["text"]:
        sys.stderr.write(answer["text"] + "\n")
    return int(answer["rc"])


def mark(pid: int) -> str:
    """Return the name of the file that says that this process is an agent: with its start, which no later one has."""
    return f"{AGENT_SOCKET}.{pid}.{identity(pid)['started']}"


def agents(private_tmp: str) -> list[int]:
    """Return the pids of the agents of a job: the launcher's, though each dies a moment after it."""
    try:
        names = os.listdir(private_tmp)
    except OSError:
        return []
    pids = [int(found.group(1)) for found in map(MARK.match, names) if found]
    return [pid for pid in pids if mark(pid) in names]


def by_hand(order: Mapping[str, Any], host: str, command: str) -> int:
    """After the job, when somebody pastes command.txt: plain ssh, with what the guard there would have set."""
    peer = next(peer for peer in order["peers"] if host in (peer["name"], peer["address"]))
    search = os.pathsep.join(peer["launcher_search"])
    there = at_home(command, order, peer)
    argv = ["ssh", "-F", order["ssh_config"], peer["name"], f"export PATH={search}:$PATH; {there}"]
    os.execvp(argv[0], argv)


def at_home(command: str, here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return a daemon's command with the launcher's directory and the NIC as they are on the other node.

    Launchers take it for granted that both have the same name everywhere: Open MPI 5.0.11 in spite of --noprefix, Hydra
    with -iface. `here` and `there`: launcher_prefix and nic of the head and of the other node.
    """
    own, other = here["launcher_prefix"], there["launcher_prefix"]
    command = re.sub(re.escape(own) + r"(?=[/;:\s]|$)", lambda _found: other, command)
    if not (here["nic"] and there["nic"]):
        return command
    return re.sub(rf"(?<=--iface ){re.escape(here['nic'])}(?=\s|$)", lambda _found: there["nic"], command)
