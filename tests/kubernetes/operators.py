"""Stands in for Kubeflow's operators, none of which is in Debian: makes of their jobs in the cluster what they make.

Pods, services, host names, labels, environment, volumes, owners and conditions are those that the operators'
documentation and sources have: MPI operator 0.5 (MPIJob v2beta1), training operator 1.9 (PyTorchJob v1), trainer 2 with
JobSet (TrainJob v1alpha1). Their webhooks, queues, gangs and restarts are not here, a JobSet is no object, and its
Indexed Job is none either: the cluster is older. The Job of an MPIJob's launcher is a real one.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any, NamedTuple

from tests.kubernetes.cluster import POD_IMAGE, TOKEN, Cluster

Object = dict[str, Any]
TRAINING = "training.kubeflow.org"
INDEX = "batch.kubernetes.io/job-completion-index"
PLACE = "namespaces/default"
PAUSE_SECONDS = 0.3
# Names and values of the own fields of MPIJob v2beta1 (CustomResourceDefinition of kubeflow/mpi-operator 0.5 to 0.8).
MPIJOB: dict[str, object] = {
    "slotsPerWorker": int,
    "runLauncherAsWorker": bool,
    "sshAuthMountPath": str,
    "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
    "launcherCreationPolicy": ("AtStartup", "WaitForWorkersReady"),
    "runPolicy": {
        "cleanPodPolicy": ("None", "Running", "All"),
        "ttlSecondsAfterFinished": int,
        "activeDeadlineSeconds": int,
        "backoffLimit": int,
        "suspend": bool,
    },
    "mpiReplicaSpecs": {
        role: {"replicas": int, "restartPolicy": ("Never", "OnFailure"), "template": dict}
        for role in ("Launcher", "Worker")
    },
}
ANYTHING: Object = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
PLAIN: Mapping[object, Object] = {
    int: {"type": "integer"}, bool: {"type": "boolean"}, str: {"type": "string"}, dict: ANYTHING,
}  # fmt: skip


class Api:
    """The cluster's API, as an administrator."""

    def __init__(self, cluster: Cluster) -> None:
        found = re.search(r'server: "([^"]+)"', cluster.kubeconfig.read_text())
        assert found
        self.server, self.context = found.group(1), ssl._create_unverified_context()

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Object:
        """Return the answer. HTTPError."""
        request = urllib.request.Request(
            f"{self.server}/{path}", method=method, data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {TOKEN}", "Content-Type": kind},
        )  # fmt: skip
        with urllib.request.urlopen(request, context=self.context, timeout=30) as answer:
            found: Object = json.load(answer)
        return found

    def create(self, thing: Object) -> None:
        """Create an object unless it is there. HTTPError."""
        group = "api/v1" if thing["apiVersion"] == "v1" else f"apis/{thing['apiVersion']}"
        try:
            self.call("POST", f"{group}/{PLACE}/{thing['kind'].lower()}s", thing)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise

    def pods(self, selector: str) -> list[Object]:
        found: list[Object] = self.call("GET", f"api/v1/{PLACE}/pods?labelSelector={selector}")["items"]
        return found


def thing(version: str, kind: str, name: str, labels: Mapping[str, str], **fields: Any) -> Object:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": dict(labels)}, **fields}


def headless(name: str, selector: Mapping[str, str], port: int | None = None, early: bool = False) -> Object:
    ports = {"ports": [{"name": "port", "port": port}]} if port else {}
    spec = {"clusterIP": "None", "selector": dict(selector), "publishNotReadyAddresses": early, **ports}
    return thing("v1", "Service", name, {}, spec=spec)


def pod_from(template: Object, labels: Mapping[str, str], env: Mapping[str, str], **spec: Any) -> Object:
    """Return a template with what an operator adds: labels beside those that are there, variables after them."""
    made = deepcopy(template)
    made.setdefault("metadata", {}).setdefault("labels", {}).update(labels)
    made["spec"].update({"restartPolicy": "Never", **spec})
    container = made["spec"]["containers"][0]
    container.setdefault("env", []).extend({"name": name, "value": value} for name, value in env.items())
    return made


def pod(name: str, template: Object) -> Object:
    return {"apiVersion": "v1", "kind": "Pod", **template, "metadata": {**template["metadata"], "name": name}}


def with_volume(template: Object, name: str, path: str, source: Object) -> Object:
    template["spec"].setdefault("volumes", []).append({"name": name, **source})
    template["spec"]["containers"][0].setdefault("volumeMounts", []).append({"name": name, "mountPath": path})
    return template


def of_mpijob(job: Object, _api: Api) -> list[Object]:
    """Return the service, the host file, the keys, the workers and the launcher's Job of an MPIJob."""
    name, spec = job["metadata"]["name"], job["spec"]
    roles, policy = spec["mpiReplicaSpecs"], spec["runPolicy"]
    own = {f"{TRAINING}/operator-name": "mpi-operator", f"{TRAINING}/job-name": name}
    items = [{"key": "ssh-privatekey", "path": "id_rsa"}, {"key": "ssh-publickey", "path": "authorized_keys"}]
    keys = {"secret": {"secretName": f"{name}-ssh", "defaultMode": 0o600, "items": items}}
    environment = {
        "K_MPI_JOB_ROLE": "launcher", "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true", "OMPI_MCA_orte_set_default_slots": "1",
        **({} if spec.get("runLauncherAsWorker") else {"NVIDIA_VISIBLE_DEVICES": "", "NVIDIA_DRIVER_CAPABILITIES": ""}),
    }  # fmt: skip
    launcher = pod_from(
        roles["Launcher"]["template"], {**own, f"{TRAINING}/job-role": "launcher"}, environment,
        hostname=f"{name}-launcher", subdomain=name,
    )  # fmt: skip
    with_volume(launcher, "ssh-auth", "/root/.ssh", keys)
    with_volume(launcher, "mpi-job-config", "/etc/mpi", {"configMap": {"name": f"{name}-config"}})
    kept = ("backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
    limits = {key: policy[key] for key in kept if key in policy}
    secret = base64.b64encode(b"no key").decode()
    made = [
        headless(name, own, early=bool(spec.get("runLauncherAsWorker"))),
        thing("v1", "ConfigMap", f"{name}-config", {"app": name}, data={"hostfile": ""}),
        thing(
            "v1", "Secret", f"{name}-ssh", {"app": name}, type="kubernetes.io/ssh-auth",
            data={"ssh-privatekey": secret, "ssh-publickey": secret},
        ),
    ]  # fmt: skip
    for number in range(roles.get("Worker", {}).get("replicas", 0)):
        labels = {**own, f"{TRAINING}/job-role": "worker", f"{TRAINING}/replica-index": str(number)}
        host = f"{name}-worker-{number}"
        worker = pod_from(
            roles["Worker"]["template"], labels, {"K_MPI_JOB_ROLE": "worker"}, hostname=host, subdomain=name
        )
        if not worker["spec"]["containers"][0].get("command"):
            worker["spec"]["containers"][0]["command"] = ["/usr/sbin/sshd", "-De"]
        made.append(pod(host, with_volume(worker, "ssh-auth", "/root/.ssh", keys)))
    return [*made, thing("batch/v1", "Job", f"{name}-launcher", {"app": name}, spec={**limits, "template": launcher})]


def end_of_mpijob(job: Object, api: Api) -> str:
    """Return the condition of an MPIJob that is over: that of its launcher's Job; the workers do not count."""
    found = api.call("GET", f"apis/batch/v1/{PLACE}/jobs/{job['metadata']['name']}-launcher")
    kinds = {row["type"] for row in found["status"].get("conditions", []) if row["status"] == "True"}
    return "Succeeded" if "Complete" in kinds else "Failed" if "Failed" in kinds else ""


def of_pytorchjob(job: Object, _api: Api) -> list[Object]:
    """Return the pods of a PyTorchJob, and a service for each. Workers wait for the master's name."""
    name, roles = job["metadata"]["name"], job["spec"]["pytorchReplicaSpecs"]
    count, made = sum(role["replicas"] for role in roles.values()), []
    for number in range(count):
        role, index = ("master", 0) if number == 0 else ("worker", number - 1)
        host, master = f"{name}-{role}-{index}", f"{name}-master-0"
        labels = {
            f"{TRAINING}/operator-name": "pytorchjob-controller", f"{TRAINING}/job-name": name,
            f"{TRAINING}/replica-type": role, f"{TRAINING}/replica-index": str(index),
            **({f"{TRAINING}/job-role": "master"} if number == 0 else {}),
        }  # fmt: skip
        environment = {
            "PYTHONUNBUFFERED": "1", "MASTER_ADDR": master, "MASTER_PORT": "23456", "WORLD_SIZE": str(count),
            "RANK": str(number), "PET_MASTER_ADDR": master, "PET_MASTER_PORT": "23456", "PET_NNODES": str(count),
            "PET_NODE_RANK": str(number), "PET_NPROC_PER_NODE": "auto",
        }  # fmt: skip
        waits = {"name": "init-pytorch", "image": POD_IMAGE, "imagePullPolicy": "IfNotPresent"}
        waits["command"] = ["sh", "-c", f"until getent hosts {master}; do sleep 1; done"]  # type: ignore[assignment]
        first = {} if number == 0 else {"initContainers": [waits]}
        made.append(pod(host, pod_from(roles[role.title()]["template"], labels, environment, **first)))
        made.append(headless(host, labels, 23456))
    return made


def end_of_pytorchjob(job: Object, api: Api) -> str:
    """Return the condition of a PyTorchJob that is over: a pod has failed, or the master has succeeded."""
    found = api.pods(f"{TRAINING}/job-name={job['metadata']['name']}")
    if any(row["status"].get("phase") == "Failed" for row in found):
        return "Failed"
    over = [row["metadata"]["name"] for row in found if row["status"].get("phase") == "Succeeded"]
    return "Succeeded" if f"{job['metadata']['name']}-master-0" in over else ""


def of_trainjob(job: Object, api: Api) -> list[Object]:
    """Return the pods and the service that a JobSet of one Indexed Job has."""
    name, version = job["metadata"]["name"], "trainer.kubeflow.org/v1alpha1"
    runtime = api.call("GET", f"apis/{version}/{PLACE}/trainingruntimes/{job['spec']['runtimeRef']['name']}")
    (node,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    owner = f"{name}-{node['name']}-0"
    of_set = "jobset.sigs.k8s.io"
    made = [headless(name, {f"{of_set}/jobset-name": name}, early=True)]
    for number in range(job["spec"]["trainer"]["numNodes"]):
        labels = {
            f"{of_set}/jobset-name": name, f"{of_set}/replicatedjob-name": node["name"], f"{of_set}/job-index": "0",
            f"{of_set}/restart-attempt": "0", "batch.kubernetes.io/job-name": owner, "job-name": owner,
            INDEX: str(number),
        }  # fmt: skip
        own = pod_from(node["template"]["spec"]["template"], labels, {}, hostname=f"{owner}-{number}", subdomain=name)
        own["metadata"].setdefault("annotations", {})[INDEX] = str(number)
        path = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
        own["spec"]["containers"][0]["env"].append({"name": "JOB_COMPLETION_INDEX", "valueFrom": path})
        letters = hashlib.sha256(f"{job['metadata']['uid']}{number}".encode()).hexdigest()[:5]
        made.append(pod(f"{owner}-{number}-{letters}", own))
    return made


def end_of_trainjob(job: Object, api: Api) -> str:
    """Return the condition of a TrainJob that is over. One failed pod ends the others: backoffLimit is 0."""
    name = job["metadata"]["name"]
    found = api.pods(f"jobset.sigs.k8s.io/jobset-name={name}")
    phases = [row["status"].get("phase") for row in found]
    if "Failed" in phases or len(found) < job["spec"]["trainer"]["numNodes"]:
        for row in found:
            if row["status"].get("phase") not in ("Failed", "Succeeded"):
                api.call("DELETE", f"api/v1/{PLACE}/pods/{row['metadata']['name']}")
        return "Failed"
    return "Complete" if set(phases) == {"Succeeded"} else ""


class Operator(NamedTuple):
    """An operator: its kind, what it makes of a job, and what it says of one that is over (empty: it is not)."""

    group: str
    version: str
    kind: str
    make: Callable[[Object, Api], list[Object]]
    end: Callable[[Object, Api], str]
    spec: Object = ANYTHING
    again: bool = True  # whether it makes a pod again that is gone

    @property
    def plural(self) -> str:
        return f"{self.kind.lower()}s"

    @property
    def path(self) -> str:
        return f"apis/{self.group}/{self.version}/{PLACE}/{self.plural}"


def schema_of(rule: object) -> Object:
    """Return a table of fields as a CustomResourceDefinition has it."""
    if isinstance(rule, dict):
        return {"type": "object", "properties": {name: schema_of(each) for name, each in rule.items()}}
    return {"type": "string", "enum": list(rule)} if isinstance(rule, tuple) else PLAIN[rule]


OPERATORS = (
    Operator("kubeflow.org", "v2beta1", "MPIJob", of_mpijob, end_of_mpijob, schema_of(MPIJOB)),
    Operator("kubeflow.org", "v1", "PyTorchJob", of_pytorchjob, end_of_pytorchjob),
    Operator("trainer.kubeflow.org", "v1alpha1", "TrainJob", of_trainjob, end_of_trainjob, again=False),
)


def definition(group: str, version: str, kind: str, spec: Object) -> Object:
    """Return the CustomResourceDefinition of a kind."""
    names = {"plural": f"{kind.lower()}s", "singular": kind.lower(), "kind": kind}
    schema = {"type": "object", "properties": {"spec": spec, "status": ANYTHING}}
    row = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    own = {"group": group, "scope": "Namespaced", "names": names, "versions": [{**row, "subresources": {"status": {}}}]}
    return thing("apiextensions.k8s.io/v1", "CustomResourceDefinition", f"{names['plural']}.{group}", {}, spec=own)


DEFINITIONS = [
    *(definition(each.group, each.version, each.kind, each.spec) for each in OPERATORS),
    definition("trainer.kubeflow.org", "v1alpha1", "TrainingRuntime", ANYTHING),
]


class Controllers:
    """Looks at all jobs of operators, again and again, until it is stopped."""

    def __init__(self, cluster: Cluster) -> None:
        self.api, self.stopped = Api(cluster), threading.Event()
        self.made: set[str] = set()  # uids of jobs whose objects were created
        self.errors: list[str] = []

    def run(self) -> None:
        while not self.stopped.wait(PAUSE_SECONDS):
            for operator in OPERATORS:
                try:
                    for job in self.api.call("GET", operator.path)["items"]:
                        self.look_at(operator, job)
                except urllib.error.HTTPError as error:
                    if error.code != 404:  # of a job that was deleted meanwhile
                        self.errors.append(f"{operator.kind}: {error}: {error.read()[:1000]!r}")
                except OSError as error:
                    self.errors.append(f"{operator.kind}: {error}")

    def look_at(self, operator: Operator, job: Object) -> None:
        meta = job["metadata"]
        if "deletionTimestamp" in meta or job.get("status", {}).get("conditions"):
            return
        owner = {
            "apiVersion": f"{operator.group}/{operator.version}", "kind": operator.kind, "name": meta["name"],
            "uid": meta["uid"], "controller": True, "blockOwnerDeletion": True,
        }  # fmt: skip
        for each in operator.make(job, self.api) if operator.again or meta["uid"] not in self.made else []:
            each["metadata"]["ownerReferences"] = [owner]
            self.api.create(each)
        self.made.add(meta["uid"])
        end = operator.end(job, self.api)
        if end:
            now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            condition = {"type": end, "status": "True", "reason": end, "message": "", "lastTransitionTime": now}
            body = {"status": {"conditions": [condition], "completionTime": now}}
            self.api.call("PATCH", f"{operator.path}/{meta['name']}/status", body, "application/merge-patch+json")


@contextlib.contextmanager
def running(cluster: Cluster) -> Iterator[Controllers]:
    """Keep the kinds in the cluster, and what stands in for their operators running."""
    names = [each["metadata"]["name"] for each in DEFINITIONS]
    given = json.dumps({"apiVersion": "v1", "kind": "List", "items": DEFINITIONS})
    controllers = Controllers(cluster)
    thread = threading.Thread(target=controllers.run)
    try:
        done = cluster.ask("create", "--filename=-", given=given)
        assert done.returncode == 0, done.stderr
        done = cluster.ask("wait", "--for=condition=Established", "--timeout=60s", *(f"crd/{name}" for name in names))
        assert done.returncode == 0, done.stderr
        thread.start()
        yield controllers
    finally:
        controllers.stopped.set()
        if thread.ident:
            thread.join()
        cluster.ask("delete", "crd", "--ignore-not-found", *names)
    assert controllers.errors == []
