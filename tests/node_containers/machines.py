"""Two machines with containers: each is this machine's podman in the network of a lab node.

So they have addresses and ports of their own, as two machines have, and reach each other; nothing of them listens
anywhere else.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import host
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.image import base_tag
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import run
from ansible_collections.torchfleet.cluster.plugins.module_utils._node_container.shape import CLUSTER_LABEL
from tests.lab.lab import Lab, ansible

NAMES = ("n1", "n2")
PORTS = {"n1": 2201, "n2": 2202}  # both have one podman, and so one first free port
CERTIFICATES = "/etc/ssl/certs/of-this-machine.crt"  # in the containers
TORCH = "/srv/torch"
SYSTEM_PYTHON = "/usr/bin/python3"


class Machines:
    """The machines, their inventory, and the node containers of one cluster on them."""

    def __init__(self, place: Path) -> None:
        self.place, self.cluster = place, f"nc{os.getpid()}"
        options = {"nodes": 2, "install": True, "image": "bare"}
        self.lab = Lab(f"m{os.getpid()}", place / "lab", **options)
        self.nodes = place / "nodes"  # where the inventory of the containers is written
        self.image = base_tag("bookworm", "")  # that the lab's own images are made from: with host keys in it

    def up(self) -> None:
        """Start the lab, and describe its networks as machines."""
        self.lab.up()
        hosts: dict[str, Any] = {name: self.machine(name) for name in NAMES}
        groups = {"head": {"hosts": {"n1": None}}, "workers": {"hosts": hosts}}
        (self.place / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups}}))

    def machine(self, name: str) -> dict[str, Any]:
        """Return the variables of a machine: Python runs in the network of its lab node."""
        python = self.place / f"python-{name}"
        pid = self.lab.init(name)[0]
        python.write_text(f'#!/bin/sh\nexec nsenter --target {pid} --net {SYSTEM_PYTHON} "$@"\n')
        python.chmod(0o755)
        return {
            "ansible_connection": "local",
            "ansible_host": self.lab.address(name),
            "ansible_python_interpreter": str(python),
            "node_container_port": PORTS[name],
            "slots": 1,
        }

    def down(self) -> None:
        """Remove the lab, and containers that a failed test left."""
        left = podman("ps", "--all", "--quiet", "--filter", f"label={CLUSTER_LABEL}={self.cluster}").split()
        if left:
            podman("rm", "--force", "--volumes", *left)
        self.lab.down()

    def options(self) -> dict[str, Any]:
        """Return the options of the node containers: packages and PyTorch are those of this machine."""
        pip = host.parse_pip_config(run(sys.executable, "-m", "pip", "config", "list"))
        mounts = [*host.directories(pip), f"{site_packages()}:{TORCH}"]
        bundle = self.ca_bundle()
        if bundle:
            pip["cert"] = CERTIFICATES
            mounts.append(f"{bundle}:{CERTIFICATES}")
        config = self.place / "pip.conf"
        config.write_text("[global]\n" + "".join(f"{name} = {value}\n" for name, value in pip.items()))
        given = {"cluster": self.cluster, "directory": str(self.nodes), "image": self.image}
        return {**given, "mounts": [*mounts, f"{config}:/etc/pip.conf"]}

    def ca_bundle(self) -> str:
        """Return the certificates that this machine trusts instead of Debian's, nothing if there are none."""
        names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
        return next((os.environ[name] for name in names if os.environ.get(name)), "")

    def play(self, state: str, *words: str, **changed: Any) -> subprocess.CompletedProcess[str]:
        """Run playbooks/containers.yml to its end, whatever that is."""
        given = {f"node_container_{name}": value for name, value in {**self.options(), **changed}.items()}
        extra = json.dumps({"container_state": state, **given})
        playbook = "playbooks/containers.yml"
        return ansible("ansible-playbook", "-i", str(self.place / "hosts.yml"), playbook, "-e", extra, *words)

    def in_containers(self, playbook: str, *words: str, **given: Any) -> subprocess.CompletedProcess[str]:
        """Run a playbook with the inventory that was written."""
        extra = json.dumps({"runs_dir": str(self.place / "runs"), **given})
        return ansible("ansible-playbook", "-i", str(self.nodes / "hosts.yml"), playbook, "-e", extra, *words)

    def login(self, name: str, command: str) -> str:
        """Run a command in a node container over SSH, and return its output."""
        done = self.ssh(name, command)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def ssh(self, name: str, command: str) -> subprocess.CompletedProcess[str]:
        """Log in to a node container as Ansible does, over a connection of its own."""
        argv = ["ssh", "-F", "none", "-i", f"{self.nodes}/key", "-p", str(PORTS[name])]
        options = ["BatchMode=yes", "StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null"]
        options += [f'UserKnownHostsFile="{self.nodes}/known_hosts"', "ConnectTimeout=5"]
        argv += [word for option in options for word in ("-o", option)]
        return subprocess.run(
            [*argv, f"fleet@{self.lab.address(name)}", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def containers(self) -> Mapping[str, str]:
        """Return the state of each container of the cluster."""
        words = ("ps", "--all", "--filter", f"label={CLUSTER_LABEL}={self.cluster}", "--format", "json")
        return {row["Names"][0]: row["State"] for row in json.loads(podman(*words) or "[]") or []}

    def inside(self, name: str, *argv: str) -> str:
        """Run a command in a node container, and return its output."""
        return podman("exec", f"{self.cluster}-{name}", *argv)


def site_packages() -> Path:
    """Return where `make setup` put PyTorch, for the Python that the containers have."""
    version = "{}.{}".format(*sys.version_info[:2])
    home = Path(os.environ.get("TORCHFLEET_HOME", Path.home() / ".torchfleet"))
    return (home / f"pytorch/lib/python{version}/site-packages").resolve(strict=True)


def podman(*argv: str) -> str:
    """Run podman, and return its output."""
    return subprocess.run(["podman", *argv], capture_output=True, text=True, check=True).stdout
