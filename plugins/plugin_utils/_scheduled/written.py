# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A job in pods as files, for people to submit: its objects for kubectl, and for Run:ai one that Python runs."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from .manifest import Thing
from .pod_archive import archive_of
from .pod_request import PodRequest
from .runai import CommandLine, steps_for


def write(
    pods: PodRequest,
    objects: Sequence[Thing],
    files: Mapping[str, bytes],
    submitted_by: Sequence[CommandLine],
    again: str,
) -> list[str]:
    """Write the files of a job, and return what to type. InputError if one is there, or cannot be written.

    `again`: what takes the job away.
    """
    manifest = Path(pods.manifest).expanduser()
    program = manifest.with_suffix(".pyz")
    of_runai = bool(submitted_by)
    for path in (manifest, *([program] if of_runai else [])):
        if os.path.lexists(path):
            raise InputError("pod_manifest", str(path), "the file exists: name another one")
    things = {"apiVersion": "v1", "kind": "List", "items": [thing.manifest for thing in objects]}
    new_file(manifest, json.dumps(things, indent=1).encode() + b"\n")
    if of_runai:
        new_file(program, archive_of(files))
        return [
            f"{manifest} and {program} are written; nothing was started",
            *steps_for(pods, submitted_by, manifest, program),
        ]
    words = ["kubectl", *options(pods), "create", "-f", str(manifest)]
    told = f"kubectl logs of the pods shows the ranks; {again} takes it away"
    return [f"{manifest} is written; nothing was started", f"  {shlex.join(words)}", f"  {told}"]


def options(pods: PodRequest) -> list[str]:
    """Return the options of kubectl for the context and the namespace."""
    rows = (("--context", pods.context), ("--namespace", pods.namespace))
    return [f"{name}={value}" for name, value in rows if value]


def new_file(path: Path, data: bytes) -> None:
    """Write a file that only its owner reads: it may have secrets. InputError."""
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        raise InputError("pod_manifest", str(path), f"it cannot be written: {error.strerror}") from None
