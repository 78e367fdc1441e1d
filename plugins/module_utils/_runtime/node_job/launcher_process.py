# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The process of the launcher, or of its daemon: how the guard starts it, and which processes belong to it."""

from __future__ import annotations

import os
import signal

from ..basics.job_directory import JobDir
from ..basics.open_files import restore_files
from ..containers.inside import engine_environment, is_outside, launcher_environment, marked_environment
from ..processes.job_processes import Snapshot
from ..software.launchers import is_started_elsewhere
from ..types.orders import Order
from .remote_shell import shell_pids


def become_launcher(command: list[str], job: JobDir, order: Order, private_tmp: str) -> None:
    """In the child: a session of its own, output to a file (Open MPI 5 loses it in pipes), a clean environment.

    `private_tmp`: the launcher's own directory (see Staging). Never returns; OSError if the program cannot be started.
    """
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    output = os.open(job.at("launcher.out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for stream, descriptor in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(descriptor, stream)
    restore_files()
    container = order.get("container")  # that an earlier version did not know
    if container:  # there our step into the image does the rest
        os.chdir("/")
        words = [*container["before"], *command]
        marked = marked_environment(order, job.path, os.environ)
        os.execvpe(words[0], words, engine_environment(marked))
    os.chdir(order["cwd"])
    os.execve(command[0], command, launcher_environment(order, job.path, private_tmp, os.environ))


def launcher_pids(seen: Snapshot, job: JobDir, order: Order, private_tmp: str) -> set[int]:
    """Return the pids of the launcher and of what it started (a shell before a daemon), ranks aside.

    Remote shells are known by their files: they may be about to die after a launcher that is gone.
    """
    wrappers = {record["wrapper_pid"] for record in seen.records}
    if is_started_elsewhere(order):
        below = {process.pid for tree in seen.trees.values() for process in tree.all}
        return {process.pid for process in seen.processes} - wrappers - below
    found = {job.launcher().get("pid", 0), *shell_pids(private_tmp)}
    if order.get("container"):  # what the engine itself runs here
        found |= {process.pid for process in seen.processes if is_outside(process.pid)}
    for process in seen.processes:  # parents before children
        if process.parent in found and process.pid not in wrappers:
            found.add(process.pid)
    return found
