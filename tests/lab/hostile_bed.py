"""A cluster with a node in wrong hands, and what must be as before whatever that node does."""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import hashlib
import json
import os
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import lifecycle
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Cluster as Nodes
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._inventory.cluster import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.request import parse_request
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch.session import Session
from tests.driver import REPO, command, pids
from tests.lab.cluster import Cluster, Job, supervisors

LIAR = Path(__file__).with_name("hostile_node.py")
PLACE = "/opt/hostile"  # on the node
PYTHON = "/usr/bin/python3"
NODES = ("n1", "n2", "n3")
MOST_BYTES = 300 << 20  # that a controller may take in memory
MOST_SECONDS = 300.0  # generous: a busy machine fails no test
# No torch and no installation: Open MPI of the distribution, and programs that are no Python.
JOBS = {"torchfleet_mpirun": "/usr/bin/mpirun", "torchfleet_python": PYTHON, "ranks_per_node": 1, "show_ranks": "all"}
WATCHED = ("home/fleet", "root", "etc/ssh", "etc/cron.d", "etc/profile.d", "etc/passwd", "tmp")  # of a node
# What an honest job or setup changes on a node, and in the home of who types.
PASSING = (
    *(
        "*/.ansible",
        "*/.ansible/*",
        "*/.torchfleet/jobs",
        "*/.torchfleet/jobs/*",
        "*/.torchfleet/store",
        "*/.torchfleet/store/*",
    ),
    *(
        "*/.torchfleet/lib",
        "*/.torchfleet/lib/*",
        "*/.torchfleet/head.lock",
        "*/.torchfleet/node.lock",
        "*:/tmp/torchfleet-*",
        "*:/tmp/ompi*",
        "*:/tmp/.ansible*",
        "*:/tmp/ansible_*",
    ),
)
Lies = list[dict[str, Any]]
Files = dict[str, str]
READ = dict[Path, tuple[tuple[int, ...], str]]()  # what files were when they were read, and their digests


@dataclasses.dataclass
class Played:
    """A playbook that ended, and what it took."""

    job: Job
    rc: int
    bytes: int

    @property
    def said(self) -> str:
        """Return what was printed, white space folded."""
        return " ".join(self.raw.split())

    @property
    def raw(self) -> str:
        return self.job.log.read_bytes().decode()


class Bed:
    """Honest nodes, one that lies, and a controller whose home and checkout are watched."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster, self.lab, self.home = cluster, cluster.lab, home
        self.laid, self.roots = 0, dict[str, Path]()
        cluster.environment["HOME"] = str(home)

    # --- attacks -----------------------------------------------------------------------------------------------------

    def liar(self, node: str, lies: Lies) -> str:
        """Lay a Python that tells these lies on a node; return its path there."""
        self.laid += 1
        place = f"{PLACE}/{self.laid}/python3"
        here = self.files(node) / place[1:]
        here.parent.mkdir(parents=True)
        here.write_text(LIAR.read_text())
        here.chmod(0o755)
        self.tell(node, place, lies)
        return place

    def tell(self, node: str, python: str, lies: Lies) -> None:
        """Have a Python that was laid tell other lies from now on."""
        (self.files(node) / python[1:]).with_name("lies.json").write_text(json.dumps(lies))

    def files(self, node: str) -> Path:
        """Return where the files of a node are, seen from this machine. Absolute links there lead elsewhere."""
        if node not in self.roots:
            self.roots[node] = Path(f"/proc/{lifecycle.look(self.lab.name).nodes[node].pid}/root")
        return self.roots[node]

    def start(self, playbook: str, lies: Lies, *words: str, node: str = "n2", **given: Any) -> Job:
        """Start a playbook on the cluster, of which one node tells these lies."""
        hosts = {node: {"ansible_python_interpreter": self.liar(node, lies)}}
        extra = self.cluster.root / f"liar-{self.laid}.json"
        extra.write_text(json.dumps({"all": {"children": {"workers": {"hosts": hosts}}}}))
        return self.cluster.start(playbook, "-i", str(extra), *words, **{**JOBS, **given})

    def end(self, job: Job, seconds: float = MOST_SECONDS) -> Played:
        """Wait for the end of a playbook, which must come in bounded time."""
        deadline = time.monotonic() + seconds
        while True:
            pid, status, usage = os.wait4(job.process.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > deadline:
                job.process.kill()
                raise AssertionError(f"still there after {seconds} s:\n{job.log.read_text()}")
            time.sleep(0.05)
        job.process.returncode = os.waitstatus_to_exitcode(status)
        return Played(job, job.process.returncode, usage.ru_maxrss << 10)

    def play(self, playbook: str, lies: Lies, *words: str, **given: Any) -> Played:
        return self.end(self.start(playbook, lies, *words, **given))

    @contextlib.contextmanager
    def session(self, node: str, lies: Lies) -> Iterator[tuple[Session, Nodes]]:
        """Speak with the head as a playbook does, without one: the conversation is the same and takes a second."""
        liar = self.liar(node, lies)
        nodes = {
            name: Node(name, self.lab.address(name), interpreter=liar if name == node else PYTHON, python=PYTHON)
            for name in NODES
        }
        with Session(nodes["n1"], tuple(self.lab.ssh_argv("n1"))) as session:
            yield session, Nodes(nodes["n1"], tuple(nodes.values()))

    def survey(self, lies: Lies, node: str = "n2") -> dict[str, Any]:
        """Ask all nodes what they are, as before every job."""
        with self.session(node, lies) as (session, nodes):
            return session.survey(nodes, parse_request({"workload": "pi"}))

    # --- what must be as before --------------------------------------------------------------------------------------

    def watched(self) -> Files:
        """Return the digest of every file that no attack may change, by where it is."""
        found = digests(self.home, "controller:")
        tracked = subprocess.run(["git", "ls-files"], cwd=REPO, capture_output=True, text=True, check=True)
        for name in tracked.stdout.splitlines():
            found[f"checkout:{name}"] = digest(REPO / name)
        for node in ("n1", "n3"):
            for place in WATCHED:
                found |= digests(self.files(node) / place, f"{node}:/{place}")
        return found

    def nothing_left(self, job: Job) -> None:
        """No process of a job is left on an honest node, nor one that was started on this machine."""
        job.all_gone("n1", "n3")
        job.wait_until(lambda: not any(supervisors(self.lab, node) for node in ("n1", "n3")))
        job.wait_until(lambda: not started_by(job))


def started_by(job: Job) -> list[str]:
    """Return the command lines of what a playbook left on this machine, but for Ansible's shared connections."""
    mark = str(job.log)
    found = []
    for pid in pids():
        line = " ".join(command(pid))
        try:
            ours = os.getsid(pid) == job.process.pid or mark in line
        except OSError:
            continue
        if ours and line and "[mux]" not in line:
            found.append(line)
    return found


def digests(top: Path, name: str) -> Files:
    """Return the digest of every file below a directory, or of the one file."""
    if not top.is_dir() or top.is_symlink():
        return {name: digest(top)} if os.path.lexists(top) else {}
    found = {}
    for folder, folders, files in os.walk(top):
        for each in [*folders, *files]:
            path = Path(folder, each)
            where = f"{name}/{path.relative_to(top)}"
            if not any(fnmatch.fnmatch(where, form) for form in PASSING):
                found[where] = digest(path)
    return found


def digest(path: Path) -> str:
    """Return kind, mode and content of a file. Times do not count."""
    try:
        found = path.lstat()
        mode = found.st_mode
        if stat.S_ISLNK(mode):
            return f"link to {os.readlink(path)}"
        return f"{mode:o} {content(path, found) if stat.S_ISREG(mode) else ''}"
    except FileNotFoundError:  # a file of a moment
        return "gone"


def content(path: Path, found: os.stat_result) -> str:
    """Return the digest of a file's content, which is read again only if the file changed (inode(7): its ctime)."""
    seen = (found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns)
    if READ.get(path, (None, ""))[0] != seen:
        READ[path] = seen, hashlib.sha256(path.read_bytes()).hexdigest()
    return READ[path][1]


def unprintable(text: str) -> set[str]:
    """Return the characters of a text that a terminal would obey, or that hide what it says."""
    return {letter for letter in text if not letter.isprintable() and letter not in "\n"}
