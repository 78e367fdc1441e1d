#!/usr/bin/python
# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
---
module: reap
short_description: End leftover processes of jobs on a node, and remove their files
description:
  - Finds processes by the job id in their environment, never by name, and ends those whose job is over.
    Processes of other users and of running jobs are not touched.
  - Removes the staged files of finished jobs, and shipped files that no job has used for 14 days.
version_added: 0.1.0
author:
  - The torchfleet authors (@torchfleet)
options:
  home:
    description: torchfleet's directory on the node.
    type: path
    default: ~/.torchfleet
  job_id:
    description: A job to end even if it still runs.
    type: str
    default: ''
  drop_outputs:
    description:
      - Remove finished jobs even if their programs left files in the job's own tree (which relative paths refer to).
        Without this option such a job is kept, and its files are listed.
    type: bool
    default: false
extends_documentation_fragment:
  - torchfleet.cluster.attributes
attributes:
  check_mode:
    description: Reports what would be ended and removed, and changes nothing.
seealso:
  - module: torchfleet.cluster.launch
"""

EXAMPLES = r"""
- name: End leftovers
  torchfleet.cluster.reap:

- name: End a job that still runs
  torchfleet.cluster.reap:
    job_id: 20261120-101500-mnist-3f9a2c
"""

RETURN = r"""
ended:
  description: The processes that were ended. C(ended) is the signal that ended the process, or null if none did.
  returned: success
  type: list
  elements: dict
  sample:
    - pid: 4711
      job_id: 20261120-101500-mnist-3f9a2c
      command: python train.py
      ended: SIGTERM
containers:
  description: Names of the containers that were removed because their jobs are over.
  returned: success
  type: list
  elements: str
  version_added: 0.5.0
unseen:
  description:
    - Container engines that jobs used on the node and that did not list their containers, so some of ended jobs may be
      left there. C(code) is C(engine_failed), which fails the task at its end, or C(no_engine) if the engine is not
      installed any more.
  returned: success or failure
  type: list
  elements: dict
  version_added: 0.6.0
  sample:
    - engine: podman
      code: engine_failed
      said: "Error: database is locked"
code:
  description: C(engine_failed), if the task fails because a container engine did not list its containers.
  returned: failure
  type: str
  version_added: 0.6.0
  sample: engine_failed
cancelled:
  description: The job that O(job_id) names, if it was running; in check mode it still is.
  returned: success
  type: list
  elements: str
  version_added: 0.5.0
removed:
  description: Jobs whose staged files were removed.
  returned: success
  type: list
  elements: str
outputs:
  description: Jobs that are kept because their programs left files in their trees.
  returned: success
  type: list
  elements: dict
  sample:
    - job_id: 20261120-101500-mnist-3f9a2c
      path: /home/me/.torchfleet/jobs/20261120-101500-mnist-3f9a2c/src
      files: 3
      bytes: 1048576
store:
  description: Number and bytes of shipped files that were removed because no job had used them lately.
  returned: success
  type: dict
  sample:
    files: 12
    bytes: 34567
runtimes:
  description: Versions of torchfleet's code on the node that were removed because nothing had used them lately.
  returned: success
  type: list
  elements: str
running:
  description: Jobs that are still running and were left alone.
  returned: success
  type: list
  elements: str
waiting:
  description: Jobs that are over and whose files on this node have not been fetched yet.
  returned: success
  type: list
  elements: str
known:
  description: Whether the node knows the job that O(job_id) names, or knew it until this task removed it.
  returned: success
  type: bool
msg:
  description: The result as a sentence.
  returned: success
  type: str
  sample: ended 1 leftover (pid 4711 of 20261120-101500-mnist-3f9a2c, python train.py)
"""

from ansible.module_utils.basic import AnsibleModule

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.home import home_path
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JOB_ID
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.nodes.leftovers import Reaped, reap
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import Unseen


def tell(found: Reaped, dry_run: bool = False) -> str:
    """Return the outcome in one line, or what it would be."""
    verb = "would end" if dry_run else "ended"
    rows = [f"pid {row['pid']} of {row['job_id']}, {row['command']}" for row in found["ended"]]
    parts = [f"{verb} job {job_id}" for job_id in found["cancelled"]]
    parts += [f"{verb} {len(rows)} leftover{'s' * (len(rows) != 1)}" + (f" ({'; '.join(rows)})" if rows else "")]
    boxes = found["containers"]
    parts += [f"{'would remove' if dry_run else 'removed'} container {', '.join(boxes)}"] if boxes else []
    parts += [f"could not look for containers of {row['engine']}: {row['said']}" for row in found["unseen"]]
    jobs = {
        "would remove" if dry_run else "removed": found["removed"],
        "running": found["running"],
        "waiting": found["waiting"],
    }
    parts += [f"{word}: {', '.join(names)}" for word, names in jobs.items() if names]
    kept = [
        f"{row['files']} file{'s' * (row['files'] != 1)}, {row['bytes']:,} bytes in {row['path']}"
        for row in found["outputs"]
    ]
    parts += [f"kept what programs wrote: {'; '.join(kept)} (-e drop_outputs=true takes it away)"] if kept else []
    if found["store"]["files"]:
        parts.append(f"{found['store']['files']} shipped files that no job asked for lately are gone")
    if found["runtimes"]:
        parts.append(f"{len(found['runtimes'])} old versions of torchfleet's code are gone")
    return "; ".join(parts)


def is_changed(found: Reaped) -> bool:
    """Whether anything was ended or removed."""
    what = (found["ended"], found["containers"], found["cancelled"], found["removed"], found["runtimes"])
    return any((*what, found["store"]["files"]))


def main() -> None:
    """Entry of the module."""
    options = {
        "home": {"type": "path", "default": "~/.torchfleet"},
        "job_id": {"type": "str", "default": ""},
        "drop_outputs": {"type": "bool", "default": False},
    }
    module = AnsibleModule(argument_spec=options, supports_check_mode=True)
    job_id = module.params["job_id"]
    if job_id and (not JOB_ID.match(job_id) or ".." in job_id):
        module.fail_json(msg=f"job_id: got {job_id!r}; give the name of a run")
    found = reap(home_path(module.params["home"]), job_id, module.check_mode, module.params["drop_outputs"])
    if job_id in found["running"] and not module.check_mode:
        module.fail_json(msg=f"{job_id} still runs: {tell({**found, 'cancelled': []})}", **found)
    stuck = [row for row in found["ended"] if row["ended"] is None]
    if stuck and not module.check_mode:
        module.fail_json(msg="not even SIGKILL ended: " + tell({**found, "ended": stuck}), **found)
    broken = [row["engine"] for row in found["unseen"] if row["code"] == Unseen.ENGINE_FAILED]
    if broken:
        again = f"when {' and '.join(broken)} works here, run this again"
        module.fail_json(msg=f"{tell(found, module.check_mode)}; {again}", code=Unseen.ENGINE_FAILED.value, **found)
    module.exit_json(
        changed=is_changed(found),
        msg=tell(found, module.check_mode),
        **found,
    )


if __name__ == "__main__":
    main()
