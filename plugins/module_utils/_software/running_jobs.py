# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Whether a job runs where something is to be changed, and the sentence that refuses the change until its end."""

from __future__ import annotations

import os
import pwd

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import (
    JOB_ID,
    JobDir,
    jobs,
)
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.processes import processes


def running_job(home: str) -> str:
    """Return a job of a home that runs here, or an empty string."""
    return next((job.job_id for job in jobs(home) if job.running()), "")


def job_of_anybody() -> tuple[str, str]:
    """Return name and owner of a job that runs on this machine, of any user and home; empty if there is none.

    Only root sees those of other users.
    """
    for process, mark in processes.marked():
        owner = owner_of(f"/proc/{process.pid}")
        named = JOB_ID.match(mark.job_id) and os.path.basename(mark.job_dir) == mark.job_id
        if named and owner_of(mark.job_dir) == owner and JobDir(mark.job_dir).running():
            return mark.job_id, owner
    return "", ""


def owner_of(path: str) -> str:
    """Return the name of a file's owner, or the number of one without a name."""
    try:
        uid = os.stat(path).st_uid
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
    except OSError:
        return "?"


def wait_for_end(job: str, suffers: str = "", owner: str = "", where: str = "here") -> str:
    """Return why nothing is changed while a job runs, and what to type.

    `suffers`: what would become of the job, as the end of a clause ("would lose its files"). `where`: "on n1", for a
    reader on another machine.
    """
    of, then = f" of {owner}" if owner else "", f", and {suffers}" if suffers else ""
    end = f"wait for its end, or end it: ansible-playbook clean.yml -e job_id={job}"
    return f"job {job}{of} runs {where}{then}: {end}"
