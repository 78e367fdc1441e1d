# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""kubectl: the user's own program, with its contexts and its ways to log in. Lists of words in, JSON in and out.

What it answers is of the cluster, so it is checked here: shape, types and bounds of what is read of pods.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.codes import Code
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.forms import printable
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._input.errors import InputError

from . import bounded_program
from .bounded_program import Exceeded
from .manifest import LABEL
from .pod_kinds import KINDS

SECONDS = 60.0  # of one command; the API answers in one
REQUEST = "--request-timeout=30s"
ANSWER_BYTES = 64 << 20
TEXT = 500  # characters of a message of the cluster
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?\Z")
LOGGED = re.compile(r"[IWEF][0-9]{4} ")  # a line that kubectl logs before it says what is wrong (klog: level, day)
OBJECTS = ("jobs.batch", "pods", "services", "configmaps", "secrets")
CONTAINERS = {kind.container for kind in KINDS.values()}  # the name of ours in a pod
HELP = "kubectl get pods shows whether you can reach it"
NO_VERSION = (0, 0)
HELP_PATCH = "your user needs the verb patch: the controller renews the lease of the pods, which end without it"
NO_LOGS = "you may not read logs of pods (get pods/log), by which ranks are followed; role edit allows it"
HELP_CREATE = "nothing is left of it; for an older version give -e pod_kind=jobs"


class KubeCode(Code):
    """Why kubectl gave no answer that counts."""

    NOT_STARTED = "kubectl_not_started"
    NO_ANSWER = "kubectl_no_answer"
    TOO_LONG = "kubectl_too_long"
    FAILED = "kubectl_failed"
    NO_JSON = "kubectl_no_json"


class KubeError(InputError):
    """kubectl failed, or cannot be started. One line, with the first that it said, and a code."""

    def __init__(self, code: KubeCode, allowed: str, target: str = "kubernetes") -> None:
        super().__init__("target", target, allowed)
        self.code, self.told, self.target = code.value, allowed, target


@dataclass(frozen=True)
class Container:
    """What the cluster says of the container of a pod. `waiting`, `ended`: the reason for it; empty: it is neither."""

    running: bool = False
    waiting: str = ""
    ended: str = ""
    status: int | None = None  # exit status
    message: str = ""


@dataclass(frozen=True)
class Pod:
    """What the cluster says of a pod, checked."""

    name: str
    uid: str  # operators give a pod that they make again the same name
    host: str  # its name in the plan; empty: it is none of them
    phase: str
    node: str
    deleted: bool
    ready: bool | None  # None: not said
    unschedulable: str  # why no node takes it; empty: one did
    reason: str  # of the pod itself: Evicted
    message: str
    container: Container

    @property
    def began(self) -> bool:
        """Whether it has a log."""
        return self.container.running or bool(self.container.ended)


class Kubectl:
    """kubectl with a context and a namespace. Every call is bounded in time.

    `resources`: kinds of an operator that the job has objects of. A cluster without the operator refuses their names.
    `container`: the name of ours in the job's pods. `target`: the user's word for what the errors are about.
    """

    def __init__(
        self,
        context: str = "",
        namespace: str = "",
        program: str = "kubectl",
        resources: Sequence[str] = (),
        container: str = "ranks",
        target: str = "kubernetes",
    ) -> None:
        self.program, self.resources, self.container = program, ",".join((*resources, *OBJECTS)), container
        self.target = target
        self.words = [
            program,
            *([f"--context={context}"] if context else []),
            *([f"--namespace={namespace}"] if namespace else []),
        ]

    def error(self, code: KubeCode, allowed: str) -> KubeError:
        """Return an error about the user's target."""
        return KubeError(code, allowed, self.target)

    def run(self, *words: str, given: object = None, seconds: float = SECONDS, advice: str = HELP) -> str:
        """Return what kubectl prints. KubeError. `given`: what it reads, as JSON; `advice`: for a refusal."""
        data = b"" if given is None else json.dumps(given).encode()
        try:
            done = bounded_program.run([*self.words, *words], data, seconds, ANSWER_BYTES)
        except FileNotFoundError:
            raise self.error(KubeCode.NOT_STARTED, f"{self.program} is not on your PATH: install kubectl") from None
        except OSError as error:
            raise self.error(KubeCode.NOT_STARTED, f"{self.program} cannot be started: {error.strerror}") from None
        if done.exceeded == Exceeded.TIME:
            raise self.error(KubeCode.NO_ANSWER, f"kubectl {words[0]} gave no answer in {seconds:.0f} s")
        if done.exceeded == Exceeded.SIZE:
            much = f"kubectl {words[0]} printed more than {ANSWER_BYTES >> 20} MiB, and was ended"
            raise self.error(
                KubeCode.TOO_LONG, f"{much}: give another namespace (-e pod_namespace=NAME), or clean this one"
            )
        if done.status:
            raise self.error(KubeCode.FAILED, f"kubectl {words[0]}: {first_line(done.stderr)}; {advice}")
        return done.stdout.decode("utf-8", "replace")

    def json(self, *words: str, given: object = None, advice: str = HELP) -> dict[str, object]:
        """Return the object that kubectl prints. KubeError."""
        text = self.run(*words, "--output=json", REQUEST, given=given, advice=advice)
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            raise self.error(KubeCode.NO_JSON, f"kubectl {words[0]} printed no JSON") from None
        return found if isinstance(found, dict) else {}

    def create(self, manifest: Mapping[str, object]) -> dict[str, object]:
        """Create an object; return it as the cluster has it. KubeError, also for a field that its version lacks."""
        return self.json("create", "--filename=-", "--validate=true", given=manifest, advice=HELP_CREATE)

    def begin(self) -> None:
        """Start the job: nothing to do here, for its objects start it. KubeError."""

    def patch(self, kind: str, names: Sequence[str], changes: Mapping[str, object]) -> None:
        """Change fields of objects of a kind; None takes one away. KubeError."""
        words = ("--type=merge", f"--patch={json.dumps(changes)}", "--output=name")
        self.run("patch", kind, *names, *words, REQUEST, advice=HELP_PATCH)

    def pods(self, name: str, hosts: Sequence[str]) -> list[Pod]:
        """Return the pods of a job. KubeError."""
        found = self.json("get", "pods", f"--selector={LABEL}={name}")
        items = found.get("items")
        return [pod for item in items if (pod := pod_of(item, hosts))] if isinstance(items, list) else []

    def version(self) -> tuple[int, int]:
        """Return the major and minor version of the cluster; NO_VERSION if it says none. KubeError."""
        said = table_in(self.json("version"), "serverVersion")
        found = [re.match(r"[0-9]{1,4}", text_in(said, name)) for name in ("major", "minor")]  # clouds say 27+
        major, minor = (int(number[0]) if number else 0 for number in found)
        return major, minor

    def refuse_without_logs(self) -> None:
        """KubeError for a user who may not read the logs of pods. Whether the API answers has been seen before."""
        try:
            self.run("auth", "can-i", "get", "pods", "--subresource=log", REQUEST)
        except KubeError as error:
            if error.code != KubeCode.FAILED:
                raise
            raise self.error(KubeCode.FAILED, NO_LOGS) from None

    def follow_log(self, pod: str) -> subprocess.Popen[bytes]:
        """Begin to read the log of our container in a pod, from its start to its end. Others may add containers."""
        words = [*self.words, "logs", "--follow", f"--container={self.container}", pod]
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def delete(self, selector: str, wait: bool, seconds: float = SECONDS) -> list[str]:
        """Delete what a selector finds: jobs first, so that they make no new pods. Return the names. KubeError."""
        how = [f"--wait={str(wait).lower()}", "--ignore-not-found", "--output=name"]
        timeout = [f"--timeout={seconds:.0f}s"] if wait else []
        text = self.run("delete", self.resources, f"--selector={selector}", *how, *timeout, seconds=seconds + SECONDS)
        return [printable(line)[:TEXT] for line in text.splitlines()]

    def left(self, selector: str) -> list[str]:
        """Return the names of what is there. KubeError."""
        text = self.run("get", self.resources, f"--selector={selector}", "--output=name", REQUEST)
        return [printable(line)[:TEXT] for line in text.splitlines()]

    def have_ended(self, selector: str) -> bool:
        """Whether all pods that a selector finds have ended, as their machines said. KubeError."""
        pods = [pod_of(item, ()) for item in self.rows("pods", selector)]
        return bool(pods) and all(pod and pod.container.ended for pod in pods)

    def rows(self, resources: str, selector: str) -> list[dict[str, object]]:
        """Return the objects of some kinds that a selector finds. KubeError."""
        return self.items("get", resources, f"--selector={selector}")

    def warnings(self) -> list[dict[str, object]]:
        """Return the events of the namespace that are warnings: clusters keep them for an hour. KubeError."""
        return self.items("get", "events", "--field-selector=type=Warning")

    def items(self, *words: str) -> list[dict[str, object]]:
        """Return the objects of a list that kubectl prints. KubeError."""
        items = self.json(*words).get("items")
        return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def first_line(said: bytes) -> str:
    """Return the first line that kubectl said of an error, bounded."""
    lines = [line.strip() for line in said.decode("utf-8", "replace").splitlines()]
    told = next((line for line in lines if line and not LOGGED.match(line)), "")
    return printable(told or next(filter(None, lines), "it failed"))[:TEXT]


def table_in(value: object, *path: str) -> dict[str, object]:
    """Return the dict at a path below a value; an empty one if there is none."""
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def text_in(value: object, *path: str) -> str:
    """Return the text at a path below a value, bounded; empty if there is none."""
    found = table_in(value, *path[:-1]).get(path[-1])
    return printable(" ".join(found.split()))[:TEXT] if isinstance(found, str) else ""


def rows_in(value: object, *path: str) -> list[dict[str, object]]:
    """Return the dicts in the list at a path below a value."""
    found = table_in(value, *path[:-1]).get(path[-1])
    return [row for row in found[:100] if isinstance(row, dict)] if isinstance(found, list) else []


def pod_of(item: object, hosts: Sequence[str]) -> Pod | None:
    """Return a pod, None for what is none."""
    name = text_in(item, "metadata", "name")
    if not NAME.match(name):
        return None
    conditions = {text_in(row, "type"): row for row in rows_in(item, "status", "conditions")}
    scheduled, ready = conditions.get("PodScheduled", {}), text_in(conditions.get("Ready", {}), "status")
    unschedulable = text_in(scheduled, "message") if text_in(scheduled, "status") == "False" else ""
    states = rows_in(item, "status", "containerStatuses")  # others may add containers of theirs
    states = [row for row in states if text_in(row, "name") in CONTAINERS] or states
    return Pod(
        name=name,
        uid=text_in(item, "metadata", "uid"),
        host=host_of(item, name, hosts),
        phase=text_in(item, "status", "phase"),
        node=text_in(item, "spec", "nodeName"),
        deleted=bool(text_in(item, "metadata", "deletionTimestamp")),
        ready={"True": True, "False": False}.get(ready),
        unschedulable=unschedulable,
        reason=text_in(item, "status", "reason"),
        message=text_in(item, "status", "message"),
        container=container_of(states[0]) if states else Container(),
    )


def host_of(item: object, name: str, hosts: Sequence[str]) -> str:
    """Return the name that a pod has in the plan: the controllers of Jobs add five letters to the names of pods."""
    stem = name.rpartition("-")[0]
    known = [text_in(item, "spec", "hostname"), stem, name]
    return next((host for host in known if host in hosts), "")


def container_of(row: Mapping[str, object]) -> Container:
    """Return the state of a container."""
    state = table_in(row, "state")
    ended, waiting = table_in(state, "terminated"), table_in(state, "waiting")
    status = ended.get("exitCode")
    return Container(
        running=isinstance(state.get("running"), dict),
        waiting=text_in(waiting, "reason"),
        ended=text_in(ended, "reason") or ("ended" if ended else ""),
        status=status if isinstance(status, int) and not isinstance(status, bool) else None,
        message=text_in(ended or waiting, "message"),
    )
