# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Removes what a user has of a role: environments, and files below torchfleet's home. Never under a running job."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Iterator, NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import jobs
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes import leftovers
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.queue.job_queue import Queue
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores import data_store

from . import versions
from .environment_files import RECEIPT, locked
from .environment_files import remove as remove_directory
from .running_jobs import job_of_anybody, owner_of, wait_for_end

ASIDE = ("", ".old", ".new")  # an environment, and what an installation of it that was cut off may have left
SHARED = ("nfs", "nfs4", "cifs", "smb3", "lustre", "beegfs", "gpfs", "ceph", "glusterfs", "fuse.glusterfs", "pvfs2")


class Refused(Exception):
    """Nothing was removed. The text is one line."""


class Request(NamedTuple):
    """What to remove of a role. The options of module uninstall, which documents them."""

    role: str
    home: Path
    environments: list[Path]
    files: list[str]
    force: bool
    others_stay: bool


# --- jobs -------------------------------------------------------------------------------------------------------------


def refuse_running(request: Request) -> None:
    """Refused while a job of this home runs, or has results here that nobody fetched; with `force`, for nothing."""
    if request.force:
        return
    known = jobs(str(request.home))
    for job in known:
        if job.running():
            told = wait_for_end(job.job_id, owner=owner_of(job.path))
            raise Refused(f"{told}; -e force=true ends every job here")
    for entry in Queue(str(request.home)).entries():
        raise Refused(
            f"job {entry['job_id']} waits in the queue here: take it out: ansible-playbook playbooks/jobs.yml "
            f"-e do=cancel -e job_id={entry['job_id']}; -e force=true does so"
        )
    if "jobs" not in request.files:
        return
    for job in known:
        if not job.is_fetched():
            raise Refused(
                f"results of job {job.job_id} were not fetched from here: ansible-playbook clean.yml fetches them; "
                "-e force=true removes them"
            )
        kept = leftovers.outputs_of(job)
        if kept["files"]:
            raise Refused(
                f"programs of job {job.job_id} left {kept['files']} files in {kept['path']}: copy what you need; "
                "-e force=true removes them"
            )


def refuse_other_users() -> None:
    """Refused while a job of another user runs on this machine, which may need the packages. Only root sees them."""
    job, owner = job_of_anybody()
    if job:
        told = wait_for_end(job, "may need the packages", owner)
        raise Refused(f"{told}; or keep the packages: -e keep_packages=true")


def end_jobs(home: str) -> None:
    """End all jobs of a home, those that wait first, and what they left. Refused if one cannot be ended."""
    queue = Queue(home)
    for entry in queue.entries():
        queue.take_out(entry["job_id"])
    for job in jobs(home):
        if job.running():
            leftovers.cancel(job)
    leftovers.end_leftovers(home)
    left = [job.job_id for job in jobs(home) if job.running()]
    if left:
        raise Refused(f"{', '.join(left)} cannot be ended")


# --- files ------------------------------------------------------------------------------------------------------------


def is_shared(path: Path) -> bool:
    """Whether a directory lies on a file system that other machines may have too."""
    place, kind = "", ""
    with open("/proc/self/mounts") as mounts:
        for line in mounts:
            _source, target, name = line.split()[:3]
            target = target.replace("\\040", " ")
            if (str(path) + "/").startswith(target.rstrip("/") + "/") and len(target) >= len(place):
                place, kind = target, name
    return kind in SHARED


def environments(request: Request) -> Iterator[Path]:
    """Yield those that we made: a receipt or a lock tells. One that other nodes may share stays with `others_stay`."""
    for path in request.environments:
        ours = (path / RECEIPT).exists() or path.with_name(path.name + ".lock").exists() or versions.is_ours(path)
        ours = ours or (versions.has_any(path) and not os.path.lexists(str(path)))  # none came into use
        is_place = versions.is_ours(path) or not path.is_symlink()
        if ours and is_place and not (request.others_stay and is_shared(path)):
            yield path


def files(request: Request) -> list[Path]:
    """Return the files and directories below the home that are there. Their names may be patterns."""
    return sorted(path for name in request.files for path in request.home.glob(name) if os.path.lexists(str(path)))


def texts(request: Request) -> list[str]:
    """Return the paths that would go."""
    going = [str(path) for path in (*environments(request), *files(request))]
    return [*going, str(request.home)] if empties_home(request) else going


def empties_home(request: Request) -> bool:
    """Whether nothing is left in the home, which then goes too."""
    made = [path.name + suffix for path in environments(request) for suffix in (*ASIDE, ".lock")]
    made += [versions.STORE] if goes_with(request) else []
    try:
        made += [path.name for path in files(request)]
        return all(name in made for name in os.listdir(str(request.home)))
    except OSError:
        return False


def goes_with(request: Request) -> bool:
    """Whether the directory of all versions in the home has only those that would go."""
    going = [path.name for path in environments(request)]
    stores = request.home / versions.STORE
    return stores.is_dir() and all(name in going for name in os.listdir(str(stores)))


def remove(request: Request) -> None:
    """Remove them. OSError, Refused."""
    if request.force:
        end_jobs(str(request.home))
    for path in list(environments(request)):
        with locked(path):
            versions.remove_all(path)
            for suffix in ASIDE:
                remove_directory(path.with_name(path.name + suffix))
        path.with_name(path.name + ".lock").unlink()
        drop_empty(path.parent)
    for path in files(request):
        if path.is_dir() and not path.is_symlink():
            if path.name == data_store.DATA:
                data_store.make_removable(str(path))
            remove_directory(path)
        else:
            path.unlink()
    drop_empty(request.home)


def drop_empty(path: Path) -> None:
    """Remove a directory if it is empty and may be removed."""
    with contextlib.suppress(OSError):
        path.rmdir()
