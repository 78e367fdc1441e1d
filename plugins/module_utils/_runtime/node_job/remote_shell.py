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
from typing import TYPE_CHECKING

from ..basics.job_directory import JobDir
from ..processes.processes import die_with_parent, identity

if TYPE_CHECKING:  # a launcher waits for this
    from ..types.orders import LocalNames
    from ..wire.protocol import ShellAnswer, ShellRequest

SHELL_SOCKET = "shell"  # in the job's private temporary directory on the head
SHELL_FILE = re.compile(r"shell\.([0-9]{1,10})\.[0-9]{1,20}\Z")


def main(job_dir: str, arguments: list[str]) -> int:
    """Run a command on a node and return its exit status. `arguments`: as ssh takes them: options, host, command."""
    die_with_parent()
    while arguments and arguments[0].startswith("-"):
        arguments = arguments[1:]
    host, command = arguments[0], " ".join(arguments[1:])  # as ssh does: the other side's shell reads it
    job = JobDir(job_dir)
    staging = job.staging()
    private_tmp = staging["private_tmp"] if staging else os.devnull  # below which nothing is
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(os.path.join(private_tmp, SHELL_SOCKET))
    except OSError:
        run_over_ssh(job, host, command)
        return 255
    open(os.path.join(private_tmp, shell_file(os.getpid())), "w").close()
    request: ShellRequest = {"host": host, "command": command}
    connection.sendall(json.dumps(request).encode() + b"\n")
    line = connection.makefile().readline()
    answer: ShellAnswer = json.loads(line) if line else {"rc": 255, "text": "the supervisor is gone"}
    if answer["text"]:
        sys.stderr.write(answer["text"] + "\n")
    return answer["rc"]


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


def run_over_ssh(job: JobDir, host: str, command: str) -> None:
    """Turn into plain ssh, with the PATH that the guard would have set: command.txt was pasted after the job.

    Return if the job does not know the node.
    """
    from ..nodes.survey import ssh_config  # late: launchers wait for this program

    order = job.order()
    route = next((route for route in job.routes() if host in (route["host"], route["address"])), None)
    if order is None or route is None:
        sys.stderr.write(f"torchfleet: {job.path} knows no node {host}\n")
        return
    search = os.pathsep.join(route["launcher_search"])
    there = localized(command, order, route)
    argv = ["ssh", "-F", ssh_config(order["home"]), route["host"], f"export PATH={search}:$PATH; {there}"]
    os.execvp(argv[0], argv)


def localized(command: str, here: LocalNames, there: LocalNames) -> str:
    """Return a daemon's command with the launcher's directory and the NIC of the other node.

    Launchers assume that both have the same name on every node: Open MPI 5.0.11 in spite of --noprefix, Hydra
    with -iface. `here`: of the head.
    """
    own, other = here["launcher_prefix"], there["launcher_prefix"]
    # Where it is a link to one of several versions, Open MPI's wheel says where that leads.
    names = "|".join(re.escape(name) for name in (own, os.path.realpath(own) if own else own))
    command = re.sub(rf"(?:{names})(?=[/;:\s]|$)", lambda _found: other, command)
    if not (here["nic"] and there["nic"]):
        return command
    return re.sub(rf"(?<=--iface ){re.escape(here['nic'])}(?=\s|$)", lambda _found: there["nic"], command)
