# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""A node's part of a job that a scheduler starts there: which node of the plan it is, its network, the guard, the wire.

It is the first program of a pod, and srun starts it on each of its nodes (slurm_entry.py). The same guard and rank
wrapper as on any node. There is no head: each node opens its own gate when its ranks are there, and the controller,
which reads what all of them say, ends the job. A pod is asked to end by SIGTERM, as Kubernetes does it.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import signal
import socket
import sys
import time
import zipfile
from typing import Mapping, NamedTuple, Protocol, cast

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir, open_file
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.node_job.node_job import NodeJob
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.stores.job_files import LISTING, TREE
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types import reasons
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.orders import JobOrder, NodeOrder, Order
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import BEAT_SECONDS, ready
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.protocol import Ending, FromGuard

from .framed_log import PART_CHARACTERS, FromNode, lines_of
from .network import network_of, wait_for_name, with_nic
from .place import PodNumber, number_of, without_those_of_pods
from .plain import FORM, lines_for_people
from .pod_lease import DELAY_SECONDS, NAME, PodLease

PYTHON = "@python@"  # in the command lines of an order: the interpreter that runs this
FIRST = "@first@"  # there: the first node, where nobody knows it before
LOOK_SECONDS = 0.1
LINGER_SECONDS = 1.0  # of a pod that has told all: its log is still read then, and goes with it
BLOCK = 96 << 10  # bytes of output in one frame
REFUSED, FAILED = 78, 1  # exit status: nothing was started (EX_CONFIG of sysexits.h); a rank failed


class Program:
    """The folder of the script, as the ConfigMap has it: an archive, and the list of its files."""

    def __init__(self, source: str) -> None:
        self.source = source

    def make_tree(self, job: JobDir) -> None:
        """Lay the folder into the job directory. OSError."""
        os.mkdir(job.at(TREE), 0o700)
        with open(os.path.join(self.source, "listing.json")) as file:
            listing = json.load(file)
        with zipfile.ZipFile(os.path.join(self.source, "program.zip")) as packed:
            for path, _digest, executable in listing:
                os.chmod(packed.extract(path, job.at(TREE)), 0o700 if executable else 0o600)
        job.write(LISTING, listing)


class Lease(Protocol):
    """What ends a node's part when nobody follows it any more. `seconds` of silence that are too many."""

    seconds: float

    def is_over(self) -> bool: ...


class Peers(NamedTuple):
    """The first node of the job by a name or address, and another one, the way to which leads over the job's NIC."""

    first: str
    other: str


class Entry:
    """Runs the job of one node to its end, in a pod. slurm_entry.py has what differs on nodes of Slurm."""

    unit = "pod"
    part_characters = PART_CHARACTERS  # of a frame in one line

    def __init__(self, source: str, home: str, form: str = "") -> None:
        self.source, self.home, self.plain = source, home, form == FORM
        self.host = ""  # its name in the plan
        self.number = 0  # of the next line of the log
        self.signalled = ""
        self.last_beat = time.monotonic()

    def say(self, frame: FromNode) -> None:
        """Write a frame into the log, or what people read of it."""
        framed = lines_of(frame, self.number, self.part_characters)
        lines = lines_for_people(frame, self.host) if self.plain else list(framed)
        self.number += len(lines)
        data = memoryview("".join(line + "\n" for line in lines).encode())
        while data:
            data = data[os.write(1, data) :]

    def on_signal(self, number: int, _frame: object) -> None:
        self.signalled = self.signalled or signal.Signals(number).name

    def run(self) -> int:
        """Return the exit status. NoPlace, OSError, ValueError: nothing was started."""
        signal.signal(signal.SIGTERM, self.on_signal)
        signal.signal(signal.SIGINT, self.on_signal)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        with open(os.path.join(self.source, "order.json")) as file:
            orders = json.load(file)
        hosts = list(orders["nodes"])
        place = number_of(os.environ, socket.gethostname(), hosts)
        kept = without_those_of_pods(os.environ)
        os.environ.clear()
        os.environ.update(kept)
        self.host = hosts[place.number]
        peers = self.peers(orders["job"]["master_addr"], place.number, len(hosts))
        if len(hosts) > 1:
            wait_for_name(peers.other, orders["start_timeout"], lambda: self.signalled)
        order = self.order_of(orders["job"], orders["nodes"][self.host], place, peers if len(hosts) > 1 else None)
        job = NodeJob(order, self.secrets(), shipment=Program(self.source))
        self.follow(job, self.lease_for(order["lease"]))
        report = job.report()
        if not self.plain:
            self.send_output(job.job, order, orders["output_bytes"])
        self.say({"kind": "over", "report": report})
        self.leave()
        rcs = [record.get("rc", FAILED) for record in report["records"].values()]
        return 0 if len(rcs) == len(order["ranks"]) and not any(rcs) else FAILED

    def peers(self, first: str, number: int, count: int) -> Peers:
        """Return the nodes that this one must reach. `first`: as the plan has it; `number` of this node among `count`.

        NoPlace.
        """
        return Peers(first, first)

    def lease_for(self, seconds: float) -> Lease | None:
        """Return the lease of this node; None of one that nobody follows."""
        return None if self.plain else PodLease(f"{self.source}-lease/{NAME}", seconds + DELAY_SECONDS)

    def machine(self) -> str | None:
        """Return what the scheduler calls the machine."""
        return os.environ.get("TORCHFLEET_NODE")

    def leave(self) -> None:
        """Do what is left when all is told."""
        time.sleep(LINGER_SECONDS)

    def order_of(self, job: JobOrder, node: NodeOrder, place: PodNumber, peers: Peers | None) -> Order:
        """Return the order of this node, with what it found here: NIC, interpreter, the first node. OSError.

        `peers`: None of a node that is alone.
        """
        network = network_of(peers.other if peers else "", job["master_port"], self.unit)
        self.say(
            {
                "kind": "here",
                "number": place.number,
                "said": [place.reason, *network.said],
                "nic": network.nic,
                "rdma": list(network.rdma),
                "python": f"{sys.executable} {platform.python_version()}",
                "node": self.machine(),
            }
        )
        order = {**job, **node, "environment": with_nic(node["environment"], network)}
        found = {PYTHON: sys.executable, FIRST: peers.first if peers else "127.0.0.1"}
        return cast("Order", filled(order, found))

    def secrets(self) -> dict[str, str]:
        """Return the secret variables of the ranks, from their files. OSError."""
        folder = self.source + "-secret"
        found = {}
        for name in os.listdir(folder) if os.path.isdir(folder) else []:
            if not name.startswith("."):
                with open(os.path.join(folder, name)) as file:
                    found[name] = file.read()
        return found

    def follow(self, job: NodeJob, lease: Lease | None) -> None:
        """Run the node's job to its end. `lease`: None of a node that nobody follows."""
        job.start()
        while not job.over:
            if job.from_guard in ready([] if job.guard_gone else [job.from_guard], LOOK_SECONDS):
                for message in job.messages():
                    self.on_message(job, message)
            if self.signalled:
                job.end(reasons.signalled(self.signalled, f"{self.unit} {job.order['host']}"))
            if lease and lease.is_over():
                job.end(reasons.silent("controller", lease.seconds))
            job.beat()
            job.check_guard()
            self.show(job)
        self.show(job)

    def on_message(self, job: NodeJob, message: FromGuard) -> None:
        """Handle a message of the guard. No other node is waited for: torch's rendezvous does that."""
        if message["kind"] == "placed":
            job.send({"kind": "all_placed"})
            self.say(message)
        elif message["kind"] == "done":
            job.send({"kind": "all_done"})
            self.say(message)
        elif message["kind"] == "ending":
            self.say(self.ending(job, message))

    def ending(self, job: NodeJob, message: Ending) -> Ending:
        """Return what the controller is told of why the guard ends the job."""
        return message

    def show(self, job: NodeJob) -> None:
        """Tell what ranks wrote, and now and then that this node lives."""
        for frame in job.output.shown():
            self.say(frame)
        if time.monotonic() - self.last_beat > 5 * BEAT_SECONDS:
            self.last_beat = time.monotonic()
            self.say({"kind": "beat"})

    def send_output(self, job: JobDir, order: Order, most: int) -> None:
        """Send the files of the ranks, of large ones the end: each rank has the same part of `most` bytes."""
        each = max(1 << 10, most // max(1, 2 * len(order["ranks"])))
        for rank in order["ranks"]:
            for stream in ("stdout", "stderr"):
                self.send_file(f"ranks/{rank}/{stream}", job.rank(rank, stream), each)
            self.send_file(f"ranks/{rank}/record.json", job.rank(rank, "record.json"), 1 << 16)
        self.send_file(launcher_file(order["host"], order["head"]), job.at("launcher.out"), each)

    def send_file(self, name: str, path: str, most: int) -> None:
        """Send the last bytes of a file, `most` of them."""
        try:
            descriptor = open_file(path)
        except OSError:
            return
        with open(descriptor, "rb") as file:
            cut = max(0, os.fstat(descriptor).st_size - most)
            file.seek(cut)
            left, first = most, True
            while left > 0:
                block = file.read(min(BLOCK, left))
                if not block and not first:
                    break
                content = base64.b64encode(block).decode()
                self.say({"kind": "output", "name": name, "first": first, "content": content, "cut": cut})
                left, first = left - len(block), False
                if not block:
                    break


def launcher_file(host: str, head: str) -> str:
    """Return the name of a launcher's output in the run directory."""
    return "launcher.out" if host == head else f"launcher.{host}.out"


def filled(value: object, found: Mapping[str, str]) -> object:
    """Return an order in which every word that stands for what a node finds is that. `found`: by the word."""
    if isinstance(value, str):
        for word, text in found.items():
            value = value.replace(word, text)
        return value
    if isinstance(value, list):
        return [filled(each, found) for each in value]
    if isinstance(value, dict):
        return {name: filled(each, found) for name, each in value.items()}
    return value
