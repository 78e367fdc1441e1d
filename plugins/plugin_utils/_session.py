# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One conversation with the head: a process there, its channel, and what the controller asks over it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils import _bootstrap, _frames
from ansible_collections.torchfleet.cluster.plugins.module_utils._link import Link, LinkLost
from ansible_collections.torchfleet.cluster.plugins.plugin_utils import _runtime
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._cluster import Cluster, Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._folder import Folder
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError, Request

Frame = dict[str, Any]
DEFAULT_HOME = "~/.torchfleet"


class HeadLost(Exception):
    """The head stopped answering; what it knows waits there for clean.yml."""


class Session:
    """Starts the supervisor on the head and speaks with it. Closing the session ends what still runs."""

    def __init__(self, head: Node, ssh: tuple[str, ...]) -> None:
        """`ssh`: the words that run a command on a head elsewhere, as Ansible's connection to it would."""
        self.head = head
        self.home = head.home or DEFAULT_HOME
        start = _bootstrap.bootstrap(head.interpreter, self.home, _runtime.digest())
        entry = os.path.join(os.path.abspath(os.path.expanduser(self.home)), _runtime.entry())
        known = head.local and os.path.exists(entry)
        if known:  # saves one start of Python
            start = [head.interpreter, "-I", "-S", entry, "supervise"]
        try:
            program = start if head.local else [*ssh, "exec " + shlex.join(start)]
            self.link = Link(program, accepted=_frames.FROM_HEAD)
        except LinkLost as lost:
            name = f"ansible_python_interpreter of {head.name}" if head.local else f"connection of {head.name}"
            raise InputError(name, head.interpreter if head.local else ssh[0], str(lost)) from None
        if not known:
            self.greet()

    def greet(self) -> None:
        """See our code come up. InputError says why it does not."""
        try:
            self.link.greet(_runtime.archive)
        except LinkLost as lost:
            self.link.close()
            if self.head.local:
                raise self.unusable_home(lost) from None
            check = f"try: ansible {self.head.name} -m ping"
            raise InputError(f"connection of {self.head.name}", self.head.address, f"{lost}; {check}") from None

    def unusable_home(self, lost: LinkLost) -> InputError:
        """Return the error for a home where our code cannot be laid."""
        return InputError(f"torchfleet_home of {self.head.name}", self.home, f"cannot be used: {lost}")

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.link.channel.close()
        self.link.process.wait()
        self.link.listener.join()

    def ask(self, kind: str, **fields: Any) -> Frame:
        """Send a frame and return the next answer. HeadLost if there will be none."""
        try:
            return dict(self.link.ask(kind, **fields))
        except LinkLost as lost:
            raise HeadLost(f"the head {self.head.name} is lost: {lost}") from None

    def survey(self, cluster: Cluster, wish: Request) -> dict[str, Frame]:
        """Return the facts of every node by name, as survey() there finds them, or `unreachable` with the reason.

        InputError if our code cannot be laid on the head.
        """
        others = {node.name: node for node in cluster.workers if node.name != self.head.name}
        ways = [
            {
                "name": node.name,
                "home": node.home or DEFAULT_HOME,
                "interpreter": node.interpreter,
                "request": {**survey_request(node, wish), "launcher_args": []},  # the head's launcher reads them
            }
            for node in others.values()
        ]
        request = {**survey_request(self.head, wish), "port": wish.master_port, "others": ways}
        try:
            answer = self.link.ask("survey", request=request)
        except LinkLost as lost:
            raise self.unusable_home(lost) from None
        if answer["kind"] != "survey" or answer["others"].keys() != others.keys():
            raise HeadLost(f"the head {self.head.name} is not believed: it did not answer what it was asked")
        return {self.head.name: answer["facts"], **answer["others"]}

    def ship(self, folder: Folder, names: list[str]) -> None:
        """Bring a folder to nodes; only what none of them has is sent. InputError if a node cannot take it."""
        here = self.head.name if self.head.name in names else ""
        others = [name for name in names if name != self.head.name]
        wanted = self.ask("folder", home=self.home, files=folder.listing(), here=here, nodes=others).get("wanted", ())
        paths = {digest: path for path, (digest, _executable) in folder.files.items()}
        foreign = [digest for digest in wanted if digest not in paths]
        if foreign:  # the head asks by content, so what is not in the folder cannot even be said
            raise HeadLost(f"the head {self.head.name} is not believed: it asks for {foreign[0][:100]!r}")
        for digest in wanted:
            self.link.channel.send_file(digest, os.path.join(folder.root, paths[digest]))
        answer = self.ask("lay")
        if answer.get("reason", "it did not answer"):
            raise InputError("workload", folder.root, f"cannot be shipped: {answer.get('reason')}")

    def run(self, order: Frame, show: Callable[[Frame], None], reason_to_end: Callable[[], str]) -> Frame:
        """Run a job and return its result; frames in between go to `show`.

        `reason_to_end` is asked several times a second: a text ends the job as cancelled.
        InputError if the job could not be staged.
        """
        channel = self.link.channel
        channel.send("run", order=order)
        told = False
        while True:
            reason = "" if told else reason_to_end()
            if reason:
                told = True
                kind, _tab, detail = reason.partition("\t")
                channel.send("end", reason=kind, detail=detail)
            try:
                frame = channel.receive(0.2)
            except EOFError:
                raise HeadLost(f"the supervisor on the head {self.head.name} died: {self.link.last_words()}") from None
            if frame is None:
                continue
            if frame["kind"] == "refused":
                raise InputError("job", order["job_id"], frame["reason"])
            if frame["kind"] == "result":
                return self.believed(frame["result"], order)
            if frame["kind"] == "started" or (
                frame["kind"] in ("line", "report") and frame["rank"] < len(order["placement"])
            ):
                show(frame)

    def believed(self, result: Frame, order: Frame) -> Frame:
        """Return a result that is one of this job: its id and its ranks on their hosts. HeadLost for another."""
        planned = [(place["rank"], place["host"]) for place in order["placement"]]
        told = [(row["rank"], row["host"]) for row in result["ranks"]]
        seen = [(row["rank"], row["host"]) for row in result["placement"]]
        if result["job_id"] != order["job_id"] or told != planned or seen != planned:
            raise HeadLost(f"the head {self.head.name} is not believed: its result is of another job")
        return result

    def fetch(self, job_id: str, run_dir: Path, placement: Collection[tuple[int, str]], limit: int) -> list[str]:
        """Bring the files of a job home, and return which nodes' could not be had, each with the reason.

        `placement`: ranks of the job and their hosts; `limit`: bytes of all files together. What is more stays on the
        nodes, as all does if it cannot be written here (OSError).
        """
        frame, allowed, left = self.ask("fetch", home=self.home, job_id=job_id), home_names(placement), limit
        while frame["kind"] != "fetched":
            if frame["kind"] != "file" or frame["name"] not in allowed:
                what = str(frame.get("name", frame["kind"]))[:100]
                raise HeadLost(
                    f"the head {self.head.name} is not believed: it sent {what!r}, which is no file of the job"
                )
            left -= len(frame["data"])
            if left >= 0 or frame["name"] == "result.json":
                self.store(frame, run_dir)
            try:
                frame = self.link.answer()
            except LinkLost as lost:
                raise HeadLost(f"the head {self.head.name} is lost: {lost}") from None
        if left < 0:
            return [*frame["missing"], f"all nodes: {-left:,} bytes more than fetch_limit"]
        self.link.channel.send("home")
        return list(frame["missing"])

    @staticmethod
    def store(frame: Mapping[str, Any], run_dir: Path) -> None:
        """Write one block of a file below the run directory. The name has been checked; no link is followed."""
        path = run_dir / frame["name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | (os.O_TRUNC if frame["first"] else os.O_APPEND)
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(frame["data"])

    def collect(self, controller: str, dry_run: bool) -> list[Frame]:
        """Return the jobs of this controller that are over and not home: job_id, run_dir, state."""
        return list(self.ask("collect", home=self.home, controller=controller, dry_run=dry_run).get("jobs", ()))


def home_names(placement: Collection[tuple[int, str]]) -> set[str]:
    """Return the names of all files that a job can have, below its run directory."""
    names = {"launcher.out", "metrics.jsonl", "result.json", *(f"launcher.{host}.out" for _rank, host in placement)}
    return names | {f"ranks/{rank}/{name}" for rank, _host in placement for name in ("stdout", "stderr", "record.json")}


def survey_request(node: Node, wish: Request) -> Frame:
    """Return what a node is to look for."""
    return {
        "home": node.home or DEFAULT_HOME,
        "python": node.python,
        "launcher": wish.launcher,
        "launcher_path": node.launcher_paths.get(wish.launcher, ""),
        "launcher_args": list(wish.options.args),
        "backend": wish.backend or "",
    }
