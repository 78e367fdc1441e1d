# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The program that a launcher starts instead of ssh: the head's supervisor runs the launcher's daemon on a node.

The supervisor is connected to the node already, and the guard there owns whatever is started.
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

SHELL_SOCKET = "shell"  # in the job's private temporary directory on the head
SHELL_FILE = re.compile(r"shell\.([0-9]{1,10})\.[0-9]{1,20}\Z")


def main(job_dir: str, arguments: list[str]) -> int:
    """Run a command on a node and return its exit status. `arguments`: as ssh takes them: options, host, command."""
    die_with_parent()
    order = JobDir(job_dir).read("order.json")
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[1:]
    host, command = arguments[0], " ".join(arguments[1:])  # as ssh does: the other side's shell reads it
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.path.join(order["private_tmp"], SHELL_SOCKET))
    except OSError:
        return run_over_ssh(order, host, command)
    open(os.path.join(order["private_tmp"], shell_file(os.getpid())), "w").close()
    connection.sendall(json.dumps({"host": host, "command": command}).encode() + b"\n")
    answer = json.loads(connection.makefile().readline() or '{"rc": 255, "text": "the supervisor is gone"}')
    if answer["text"]:
        sys.stderr.write(answer["text"] + "\n")
    return int(answer["rc"])


def shell_file(pid: int) -> str:
    """Return the file name that marks a process as a remote shell; its start time tells it from a later one."""
    return f"{SHELL_SOCKET}.{pid}.{identity(pid)['started']}"


def shell_pids(private_tmp: str) -> list[int]:
    """Return the pids of a job's remote shells. They belong to the launcher, though they outlive it by a moment."""
    try:
        names = os.listdir(private_tmp)
    except OSError:
        return []
    pids = [int(found.group(1)) for found in map(SHELL_FILE.match, names) if found]
    return [pid for pid in pids if shell_file(pid) in names]


def run_over_ssh(order: Mapping[str, Any], host: str, command: str) -> int:
    """Run plain ssh, with the PATH that the guard would have set: command.txt was pasted after the job."""
    peer = next(peer for peer in order["peers"] if host in (peer["name"], peer["address"]))
    search = os.pathsep.join(peer["launcher_search"])
    there = localized(command, order, peer)
    argv = ["ssh", "-F", order["ssh_config"], peer["name"], f"export PATH={search}:$PATH; {there}"]
    os.execvp(argv[0], argv)


def localized(command: str, here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return a daemon's command with the launcher's directory and the NIC of the other node.

    Launchers assume that both have the same name on every node: Open MPI 5.0.11 in spite of --noprefix, Hydra
    with -iface. `here` and `there`: launcher_prefix and nic of the head and of the other node.
    """
    own, other = here["launcher_prefix"], there["launcher_prefix"]
    command = re.sub(re.escape(own) + r"(?=[/;:\s]|$)", lambda _found: other, command)
    if not (here["nic"] and there["nic"]):
        return command
    return re.sub(rf"(?<=--iface ){re.escape(here['nic'])}(?=\s|$)", lambda _found: there["nic"], command)
