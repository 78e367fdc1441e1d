"""The API of AWS in this machine, and nodes of a lab as the instances behind it, which really run their user data."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3

from tests.driver import REPO, family
from tests.lab.lab import ENVIRONMENT, Lab

REGION = "eu-central-1"
KEYS = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y", "AWS_DEFAULT_REGION": REGION}
BIN = Path(sys.executable).parent
SEED = "/var/lib/cloud/seed/nocloud"


class Api:
    """moto's server."""

    def __init__(self, port: int, process: subprocess.Popen[bytes]) -> None:
        self.url, self.process = f"http://127.0.0.1:{port}", process

    def client(self, service: str) -> Any:
        return boto3.session.Session().client(
            service, endpoint_url=self.url, region_name=REGION, aws_access_key_id="x", aws_secret_access_key="y"
        )

    def environment(self) -> dict[str, str]:
        mine = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("AWS_")}
        return {**mine, **KEYS, "AWS_ENDPOINT_URL": self.url, "AWS_EC2_METADATA_DISABLED": "true"}

    def running(self) -> list[dict[str, Any]]:
        """Return the instances of clusters that run."""
        wanted = [{"Name": "tag-key", "Values": ["torchfleet"]}, {"Name": "instance-state-name", "Values": ["running"]}]
        found = self.client("ec2").describe_instances(Filters=wanted)["Reservations"]
        return [row for reservation in found for row in reservation["Instances"]]

    def user_data(self, instance: str) -> str:
        words = {"InstanceId": instance, "Attribute": "userData"}
        value = self.client("ec2").describe_instance_attribute(**words)["UserData"]["Value"]
        return base64.b64decode(value).decode()

    def play(self, directory: Path, *words: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        """Run cluster.yml as a user does."""
        given = {"cluster_name": "demo", "cluster_directory": str(directory), **variables}
        argv, env = self.argv(given, *words), self.environment()
        return subprocess.run(argv, cwd=REPO, env=env, capture_output=True, text=True, check=False, timeout=600)

    def argv(self, given: dict[str, Any], *words: str) -> list[str]:
        return [str(BIN / "ansible-playbook"), "cluster.yml", "-e", json.dumps(given), *words]

    def play_until_it_runs(self, directory: Path, **given: Any) -> None:
        """Begin as play() does, and kill the controller as soon as an instance runs, with Ansible's worker.

        That is in a session of its own, and would finish the work.
        """
        argv = self.argv({"cluster_name": "demo", "cluster_directory": str(directory), **given})
        with subprocess.Popen(argv, cwd=REPO, env=self.environment(), start_new_session=True) as process:
            while process.poll() is None and not self.running():
                time.sleep(0.1)
            for pid in family(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def served(log: Path) -> Iterator[Api]:
    """Serve the API on a free port of loopback."""
    with socket.create_server(("127.0.0.1", 0)) as place:
        port = place.getsockname()[1]
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with open(log, "wb") as output, subprocess.Popen(argv, stdout=output, stderr=output, env=os.environ) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/moto-api/", process)
            yield Api(port, process)
        finally:
            process.terminate()


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Return when a server answers."""
    while process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.1)
    raise RuntimeError(f"moto's server ended with {process.returncode}")


class Instances:
    """Nodes of a lab as instances: a node boots with the user data of the instance that has its address."""

    def __init__(self, api: Api, lab: Lab, nodes: list[str]) -> None:
        self.api, self.lab = api, lab
        self.nodes = {lab.address(node): node for node in nodes}
        self.booted: dict[str, str] = {}  # by node: the instance
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.follow, daemon=True)

    def __enter__(self) -> Instances:
        self.thread.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.over.set()
        self.thread.join()

    def follow(self) -> None:
        """Boot a node for each instance that begins to run."""
        while not self.over.wait(0.5):
            for row in self.api.running():
                node = self.nodes.get(row["PrivateIpAddress"], "")
                if node and self.booted.get(node) != row["InstanceId"]:
                    self.booted[node] = row["InstanceId"]
                    boot(self.lab, node, row["InstanceId"], self.api.user_data(row["InstanceId"]))


def boot(lab: Lab, node: str, instance: str, user_data: str) -> None:
    """Boot a node as a new instance that has this user data."""
    root = Path(f"/proc/{lab.init(node)[0]}/root")
    seed = root / SEED.lstrip("/")
    seed.mkdir(parents=True, exist_ok=True)
    (seed / "meta-data").write_text(json.dumps({"instance-id": instance}))
    (seed / "user-data").write_text(user_data)
    # The network of a container is there before its first process, and its name cannot be changed.
    (root / "etc/cloud/cloud.cfg.d/99-lab.cfg").write_text("network: {config: disabled}\npreserve_hostname: true\n")
    lab.restart(node)
