# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The step into an image, and the environment of a launcher: the same with and without an image."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Mapping, cast

from ..basics.job_directory import JobDir, open_file
from ..processes.processes import JOB_DIR_VARIABLE, JOB_VARIABLE, Process, read
from ..software.engine_commands import KEEPER
from ..software.engines import USED
from ..software.launchers import INHERITED, LAUNCHERS

if TYPE_CHECKING:
    from ..types.orders import Container, Order


def marked_environment(order: Order, job_dir: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what another launcher left in it, with the mark of the job."""
    kept = {name: value for name, value in inherited.items() if not name.startswith(INHERITED)}
    for name in (name for row in LAUNCHERS.values() for name in row.identity):
        kept.pop(name, None)
    kept.update({JOB_VARIABLE: order["job_id"], JOB_DIR_VARIABLE: job_dir})
    return kept


def engine_environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an engine: ch-run does not start without USER, which cron and services lack."""
    if inherited.get("USER"):
        return dict(inherited)
    import pwd

    try:
        name = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        name = str(os.getuid())
    return {**inherited, "USER": name}


def launcher_environment(order: Order, job_dir: str, private_tmp: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a launcher or its daemon. `private_tmp`: the launcher's own directory."""
    kept = {**marked_environment(order, job_dir, inherited), **order["launcher_environment"]}
    kept["TMPDIR"] = private_tmp
    kept["PATH"] = os.pathsep.join([*order["launcher_search"], kept.get("PATH", os.defpath)])
    return kept


def main(job_dir: str, words: list[str]) -> None:
    """Turn this first process of the container into what the guard was to start. Never returns.

    Variables come from order.json: on the engine's command line all users of the node could read them.
    """
    job = JobDir(job_dir)
    order, staging = cast("Order", job.read("order.json")), job.staging()
    if not order or not staging:
        sys.stderr.write(f"torchfleet: {job.path} holds no job: it was cleaned, or never staged on this node\n")
        raise SystemExit(1)
    variables = launcher_environment(order, job.path, staging["private_tmp"], os.environ)
    if not os.access(variables.get("HOME") or "/", os.W_OK):  # PyTorch compiles below it
        variables["HOME"] = own_home(order["home"])
    os.chdir(order["cwd"])
    os.execvpe(words[0], words, variables)


def own_home(home: str) -> str:
    """Return a home directory that nobody else can write to: Python and PyTorch run code from below it. OSError."""
    path = os.path.join(home, USED, "home")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def is_outside(pid: int) -> bool:
    """Whether a process below us sees the files of the node: the engine's own do, those in the image do not."""
    try:
        there, here = os.stat(f"/proc/{pid}/root/"), os.stat("/")
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def monitor_is_gone(job: JobDir) -> bool:
    """Whether the engine's own process above a container is gone. False for an engine that has none."""
    return os.path.exists(job.at(KEEPER)) and monitor_of(job) is None


def monitor_of(job: JobDir) -> Process | None:
    """Return the engine's own process above the container of a job, None if there is none (any more).

    It is known by its command line, which has the path of the file: a later process may have its pid.
    """
    try:
        with open(open_file(job.at(KEEPER))) as file:
            process = read(int(file.read(20) or 0))
        with open(f"/proc/{process.pid if process else 0}/cmdline", "rb") as cmdline:
            words = cmdline.read().split(b"\0")
    except (OSError, ValueError):
        return None
    return process if os.fsencode(job.at(KEEPER)) in words else None


def end_container(container: Container) -> None:
    """End the container of a job here and remove its record, if its engine keeps one."""
    from .containers import end_containers  # late: few jobs have one

    end_containers(container["engine"], [container["name"]])
