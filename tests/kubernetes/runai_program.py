"""Stands in for `runai` of versions 2 and 3, which needs a licence: it takes the words that its documentation has.

It makes the PyTorchJob that Run:ai makes, by kubectl. Run:ai's own kinds, its projects, its scheduler and its control
plane are not here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

Fields = dict[str, str]


def fields_of(word: str) -> Fields:
    """Return what stands in name=x,path=y."""
    return dict(part.split("=", 1) for part in word.split(","))


def kubectl(*words: str, given: str = "") -> int:
    return subprocess.run(["kubectl", *words], input=given, text=True, check=False).returncode


def options() -> argparse.ArgumentParser:
    """Return the options of `runai training pytorch` that are used. Others are an error, as in the real program."""
    parser = argparse.ArgumentParser(prog="runai training pytorch", allow_abbrev=False)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("list", "describe", "delete", "submit"):
        each = verbs.add_parser(verb, allow_abbrev=False)
        each.add_argument("-p", "--project")
        if verb != "list":
            each.add_argument("name")
        if verb == "submit":
            each.add_argument("-i", "--image", required=True)
            each.add_argument("--workers", type=int, default=1)
            each.add_argument("--backoff-limit", type=int)
            for name in ("--label", "--existing-pvc", "--configmap-map-volume", "--secret-volume"):
                each.add_argument(name, action="append", default=[])
            for name in ("--large-shm", "--command"):
                each.add_argument(name, action="store_true")
    return parser


def job_of(given: argparse.Namespace, command: list[str]) -> dict[str, Any]:
    """Return the PyTorchJob."""
    rows = [
        *(
            {"configMap": {"name": row["name"]}, "path": row["path"]}
            for row in map(fields_of, given.configmap_map_volume)
        ),
        *({"secret": {"secretName": row["name"]}, "path": row["path"]} for row in map(fields_of, given.secret_volume)),
        *(
            {"persistentVolumeClaim": {"claimName": row["claimname"]}, "path": row["path"]}
            for row in map(fields_of, given.existing_pvc)
        ),
        *([{"emptyDir": {"medium": "Memory"}, "path": "/dev/shm"}] if given.large_shm else []),
    ]
    mounts = [{"name": f"volume-{number}", "mountPath": row.pop("path")} for number, row in enumerate(rows)]
    container = {"name": "pytorch", "image": given.image, "command": command, "volumeMounts": mounts}
    volumes = [{"name": f"volume-{number}", **row} for number, row in enumerate(rows)]
    labels = dict(word.split("=", 1) for word in given.label)
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container], "volumes": volumes}}
    roles = {
        role: {"replicas": count, "template": template} for role, count in (("Master", 1), ("Worker", given.workers))
    }
    meta = {"name": given.name, "labels": {"project": given.project}}
    spec = {"pytorchReplicaSpecs": roles, "runPolicy": {"cleanPodPolicy": "None", "backoffLimit": given.backoff_limit}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": meta, "spec": spec}


def main(words: list[str]) -> int:
    if words[:2] != ["training", "pytorch"]:
        print(f'Error: unknown command "{words[0]}" for "runai"', file=sys.stderr)
        return 1
    before, command = words[2:], list[str]()
    if "--" in before:
        before, command = before[: before.index("--")], before[before.index("--") + 1 :]
    given = options().parse_args(before)
    if given.verb == "list":
        return kubectl("get", "pytorchjobs")
    if given.verb == "submit":
        return kubectl("create", "--filename=-", given=json.dumps(job_of(given, command)))
    if given.verb == "describe":
        return kubectl("get", "pytorchjob", given.name)
    return kubectl("delete", "--wait=false", "pytorchjob", given.name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
