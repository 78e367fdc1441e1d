"""The cluster, and jobs in its pods: what the tests here share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.driver import REPO
from tests.kubernetes.cluster import POD_IMAGE, Cluster

PYTHON = Path.home() / ".torchfleet" / "pytorch" / "bin" / "python"
SECONDS = 1800
PI = ("-e", "workload=pi", "-e", "workload_args=--intervals=1000000")
# Directories of this machine that pods mount by a claim: they stand for a shared file system with PyTorch.
VOLUME = """apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: PersistentVolume
  metadata: {{name: {name}}}
  spec:
    accessModes: [ReadOnlyMany]
    capacity: {{storage: 1Gi}}
    storageClassName: ""
    hostPath: {{path: "{path}"}}
    claimRef: {{namespace: default, name: {name}}}
- apiVersion: v1
  kind: PersistentVolumeClaim
  metadata: {{name: {name}}}
  spec:
    accessModes: [ReadOnlyMany]
    storageClassName: ""
    resources: {{requests: {{storage: 1Gi}}}}
    volumeName: {name}
"""
PROCESSES = """import glob
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        print(open(path).read().replace("\\0", " "))
    except OSError:
        pass
"""
SLEEPS = "import os, time\nprint('rank', os.environ['RANK'], 'sleeps', flush=True)\ntime.sleep(600)\n"


def base_of(python: Path) -> Path:
    """Return the directory of the interpreter that an environment was made of."""
    told = subprocess.run(
        [python, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True, check=True
    )
    return Path(told.stdout.strip())


class Pods:
    """The cluster, and train.yml for it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.torch, base = PYTHON.parent.parent.resolve(), base_of(PYTHON)
        self.mounts = {"torch": self.torch, **({} if base == Path("/usr") else {"python": base})}
        self.cluster = Cluster(place, tuple(self.mounts.values()))

    def up(self) -> None:
        self.cluster.up()
        for name, path in self.mounts.items():
            done = self.cluster.ask("create", "--filename=-", given=VOLUME.format(name=name, path=path))
            assert done.returncode == 0, done.stderr

    @property
    def environment(self) -> dict[str, str]:
        bin_directory = os.path.dirname(self.cluster.kubectl)
        path = f"{self.place / 'bin'}:{bin_directory}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {
            **os.environ,
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "PATH": path,
            "LC_ALL": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
        }

    def words(self, *words: str, playbook: str = "train.yml") -> list[str]:
        return ["ansible-playbook", playbook, "-e", "target=kubernetes", *words]

    def job(self, name: str, script: str = "") -> list[str]:
        """Return what a job of two pods with two ranks each is asked for with."""
        volumes = ",".join(f"{claim}:{path}:ro" for claim, path in self.mounts.items())
        given = {
            "pod_image": POD_IMAGE, "python": f"{self.torch}/bin/python", "pod_volumes": volumes,
            "pods": 2, "ranks_per_node": 2, "job_id": name, "runs_dir": str(self.place / "runs"),
        }  # fmt: skip
        if script:
            folder = self.place / name
            folder.mkdir()
            (folder / "train.py").write_text(script)
            given["workload"] = str(folder / "train.py")
        return ["-e", json.dumps(given)]

    def train(self, name: str, *words: str, script: str = "") -> tuple[int, str]:
        done = subprocess.run(
            self.words(*self.job(name, script), *words), cwd=REPO, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    def clean(self, *words: str) -> tuple[int, str]:
        """Run clean.yml; return what it says without the line ends that Ansible adds."""
        done = subprocess.run(
            self.words(*words, playbook="clean.yml"), cwd=REPO, env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def start(self, name: str, script: str, *more: str) -> subprocess.Popen[str]:
        """Start a job."""
        words = self.words(*self.job(name, script), "-e", "show_ranks=all", *more)
        return subprocess.Popen(
            words, cwd=REPO, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    def begin(self, name: str, script: str, *more: str, word: str = "sleeps") -> subprocess.Popen[str]:
        """Start a job, and return when all its ranks have said a word."""
        process = self.start(name, script, *more)
        seen = ""
        while seen.count(f" {word}") < 4:
            line = process.stdout.readline() if process.stdout else ""
            assert line, seen
            seen += line
        return process

    def pod_of(self, name: str, number: int) -> str:
        """Return the name of a pod of a job."""
        words = ("get", "pods", f"--selector=job-name=tf-{name}-{number}", "--output=name")
        return self.cluster.ask(*words).stdout.strip().removeprefix("pod/")

    def result(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.place / "runs" / name / "result.json").read_text())
        return found

    def left(self) -> str:
        """Return what is in the cluster of any job."""
        kinds = "jobs,pods,services,configmaps,secrets"
        return self.cluster.ask("get", kinds, "--selector=torchfleet.dev/part-of", "--output=name").stdout

    def processes(self, name: str = "") -> list[str]:
        """Return the processes of jobs in the machine, programs of ours and of users; or the ranks of one job."""
        told = self.cluster.shell(f"python3 -c '{PROCESSES}'", check=False).stdout.decode()
        marks = [f"/jobs/{name}/"] if name else ["train.py", "/torchfleet/"]
        return [line for line in told.splitlines() if any(mark in line for mark in marks)]
