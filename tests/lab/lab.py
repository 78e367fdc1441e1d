"""Drives a lab as a user does, and looks into its nodes. For every test that needs real nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import faults, lifecycle
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.spec import FaultOptions
from tests.driver import REPO, pids, proc

BIN = Path(sys.executable).parent
ENVIRONMENT = {
    **os.environ,
    "PATH": f"{BIN}:{os.environ['PATH']}",
    "LC_ALL": "C.UTF-8",
    "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"),
}
# Before a bare mpirun: that of Open MPI 5 sometimes stays for ever after its last rank on another node (prrte#1839),
# whatever its options: 10 of 100 on busy cores.
PATIENCE, OUT_OF_PATIENCE = "timeout -k 5 30", 124


class Lab:
    """One lab of a test's own. `variables` are those of the role, without `lab_`."""

    def __init__(self, name: str, directory: Path, **variables: Any) -> None:
        self.name, self.directory, self.variables = name, directory, variables
        self.inits: dict[str, tuple[int, str]] = {}  # by node: its first process, and that one's namespace
        self.addresses: dict[str, dict[str, str]] = {}  # by node and NIC
        self.disturbed = False  # since it was mended

    @property
    def inventory(self) -> Path:
        return self.directory / "hosts.yml"

    # --- as a user does ----------------------------------------------------------------------------------------------

    def play(self, state: str = "present", *words: str, **variables: Any) -> subprocess.CompletedProcess[str]:
        """Run playbooks/lab.yml to its end, whatever that is."""
        self.addresses, self.disturbed = {}, self.disturbed or state not in ("present", "absent")
        given = {**self.variables, "name": self.name, "directory": str(self.directory), "state": state, **variables}
        extra = json.dumps({f"lab_{name}": value for name, value in given.items()})
        return ansible("ansible-playbook", "playbooks/lab.yml", "-e", extra, *words)

    def up(self, **variables: Any) -> subprocess.CompletedProcess[str]:
        """Make the lab run. Other variables than the first ones stay."""
        self.variables.update(variables)
        done = self.play()
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def down(self) -> None:
        """Remove it."""
        done = self.play("absent")
        assert done.returncode == 0, done.stdout + done.stderr

    # --- what befalls nodes: the module's own functions, without the second that a playbook takes --------------------

    def disturb(self, state: str, node: str, nic: str = "", rate: str = "") -> bool:
        self.disturbed = True
        given = FaultOptions(name=self.name, state=state, node=node, nic=nic, rate=rate)
        return bool(faults.disturb(given, check=False)["changed"])

    def cut(self, node: str, nic: str = "") -> bool:
        return self.disturb("cut", node, nic)

    def heal(self, node: str = "all", nic: str = "") -> bool:
        return self.disturb("heal", node, nic)

    def shape(self, node: str, rate: str, nic: str = "") -> bool:
        return self.disturb("shape", node, nic, rate)

    def pause(self, node: str) -> bool:
        return self.disturb("pause", node)

    def resume(self, node: str) -> bool:
        return self.disturb("resume", node)

    def kill(self, node: str) -> bool:
        return self.disturb("kill", node)

    def restart(self, node: str) -> bool:
        return self.disturb("restart", node)

    def reboot(self, *nodes: str) -> None:
        """Shut nodes down in order, as their administrator does, and start them again from their files."""
        names = [f"{self.name}-{node}" for node in nodes]
        subprocess.run(["podman", "stop", "--time", "60", *names], check=True, capture_output=True)
        argv = ["podman", "container", "inspect", "--format", "{{.State.ExitCode}}", *names]
        ended = subprocess.run(argv, check=True, capture_output=True, text=True).stdout.split()
        assert "137" not in ended, f"{nodes} were killed, for they did not end in a minute"
        for node in nodes:
            self.restart(node)
            self.root(node, "systemctl", "is-system-running", "--wait", check=False)  # it may be degraded

    def mend(self) -> None:
        """Make all nodes as good as new, but for their files: links too, if anything was done to the lab."""
        for name, container in lifecycle.look(self.name).nodes.items():
            if container.state == "paused":
                self.resume(name)
            elif container.state != "running":
                self.restart(name)
        self.heal_links()

    def heal_links(self, node: str = "all") -> None:
        """Heal links if anything was done to the lab: to look at each takes eight programs and two of podman."""
        if self.disturbed:
            self.heal(node)
            self.disturbed = False

    # --- what can be seen --------------------------------------------------------------------------------------------

    def states(self) -> dict[str, str]:
        """Return running, paused or exited for every node."""
        return {name: container.state for name, container in lifecycle.look(self.name).nodes.items()}

    def hosts(self) -> dict[str, dict[str, Any]]:
        """Return what the inventory says of each node."""
        groups = yaml.safe_load(self.inventory.read_text())["all"]["children"]
        return {**groups["head"]["hosts"], **groups["workers"]["hosts"]}

    def address(self, node: str, nic: int = 0) -> str:
        """Return the address of a node on its NIC of that number."""
        if node not in self.addresses:
            self.addresses = {name: node.addresses for name, node in lifecycle.look(self.name).nodes.items()}
        return self.addresses[node][f"eth{nic}"]

    def ssh_argv(self, node: str, *argv: str, user: str = "") -> list[str]:
        """Return the command line by which a user gets into a node: strict about its host key, never asking."""
        host = self.hosts()[node]
        options = ["BatchMode=yes", "IdentitiesOnly=yes", "StrictHostKeyChecking=yes", "GlobalKnownHostsFile=/dev/null"]
        options += [f'UserKnownHostsFile="{self.directory}/known_hosts"', "ConnectTimeout=5"]
        port = str(host.get("ansible_port", 22))
        words = ["ssh", "-F", "none", "-i", f"{self.directory}/key", "-p", port]
        words += [word for option in options for word in ("-o", option)]
        return [*words, f"{user or host['ansible_user']}@{host['ansible_host']}", *argv]

    def ssh(self, node: str, *argv: str, user: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command on a node over SSH (a shell there splits it into words)."""
        return subprocess.run(
            self.ssh_argv(node, *argv, user=user),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=check,
            timeout=60,
        )

    def root(self, node: str, *argv: str, check: bool = True, seconds: float = 60) -> str:
        """Run a command as root among the files and in the network of a node, also when SSH does not work."""
        words = ["nsenter", "--target", str(self.init(node)[0]), "--mount", "--uts", "--ipc", "--net", "--pid", *argv]
        return subprocess.run(words, capture_output=True, text=True, check=check, timeout=seconds).stdout

    def read(self, node: str, path: str) -> str:
        """Return the text of a file on a node, nothing if it is not there: no program is started for it."""
        try:
            return Path(f"/proc/{self.init(node)[0]}/root{path}").read_text()
        except OSError:
            return ""

    def network(self, node: str, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program of this machine in the network of a node, which need not have it."""
        words = ["nsenter", "--target", str(self.init(node)[0]), "--net", *argv]
        return subprocess.run(words, capture_output=True, text=True, check=check, timeout=60)

    def pids(self, node: str, mark: str) -> list[int]:
        """Return the processes (by their pid on this machine) of a node that have a text in their environment."""
        space = self.init(node)[1]
        return [pid for pid in pids() if in_space(pid, space, mark.encode())]

    def init(self, node: str) -> tuple[int, str]:
        """Return a node's first process and the name of its pid namespace.

        Podman is asked once for each start of the node: it takes as long as ten looks at /proc.
        """
        pid, space = self.inits.get(node, (0, ""))
        if not space or namespace(pid) != space:
            pid = lifecycle.look(self.name).nodes[node].pid
            self.inits[node] = pid, namespace(pid)
        return self.inits[node]


def namespace(pid: int) -> str:
    """Return the name of a process's pid namespace, an empty text if the process is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def in_space(pid: int, space: str, mark: bytes) -> bool:
    """Whether a process belongs to a node and has a text in its environment."""
    return namespace(pid) == space != "" and mark in proc(pid, "environ")


def ansible(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run one of Ansible's programs in the repository."""
    return subprocess.run(
        [BIN / argv[0], *argv[1:]], cwd=REPO, env=ENVIRONMENT, capture_output=True, text=True, check=False
    )
