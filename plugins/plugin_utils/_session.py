# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""One conversation with the head: a process there, its channel, and what the controller asks over it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._channel import Channel
from ansible_collections.torchfleet.cluster.plugins.plugin_utils import _runtime
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._plan import Node
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._request import InputError

Frame = dict[str, Any]
DEFAULT_HOME = "~/.torchfleet"


class HeadLost(Exception):
    """The head stopped answering; what it knows waits there for clean.yml."""


class Session:
    """Starts the supervisor on the head and speaks with it. Closing the session ends what still runs."""

    def __init__(self, head: Node) -> None:
        if not head.local:
            raise InputError(f"connection of {head.name}", "ssh", "the head must have ansible_connection: local so far")
        self.head = head
        self.home = head.home or DEFAULT_HOME
        program, archive = self.program()
        (stdin, outgoing), (incoming, stdout), (self.errors, stderr) = os.pipe(), os.pipe(), os.pipe()
        try:
            self.process = subprocess.Popen(program, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)
        except OSError as error:
            raise InputError(f"ansible_python_interpreter of {head.name}", head.interpreter, str(error)) from None
        finally:
            for descriptor in (stdin, stdout, stderr):
                os.close(descriptor)
        self.channel = Channel(incoming, outgoing)
        self.channel.send_bytes(archive)

    def program(self) -> tuple[list[str], bytes]:
        """Return what to start and what to feed it first: our code, unless this version lies there already."""
        entry = _runtime.entry_path(os.path.abspath(os.path.expanduser(self.home)))
        if os.path.exists(entry):
            return [self.head.interpreter, "-I", "-S", entry, "supervise"], b""
        digest, archive = _runtime.archive()
        bootstrap = ["-c", _runtime.BOOTSTRAP, self.home, digest, str(len(archive))]
        return [self.head.interpreter, "-I", "-S", *bootstrap], archive

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.channel.close()
        self.process.wait()
        os.close(self.errors)

    def ask(self, kind: str, **fields: Any) -> Frame:
        """Send a frame and return the next answer."""
        self.channel.send(kind, **fields)
        return self.answer()

    def answer(self) -> Frame:
        """Return the next frame. HeadLost if there will be none."""
        try:
            return self.channel.receive() or {}
        except EOFError:
            said = os.read(self.errors, 65536).decode(errors="replace").strip().splitlines()
            raise HeadLost(said[-1] if said else "the supervisor ended without a word") from None

    def survey(self, launcher: str, port: int | None) -> Frame:
        """Return the facts of the head, as survey() there finds them. InputError if our code cannot be laid there."""
        request = {"home": self.home, "python": self.head.python, "launcher": launcher, "port": port}
        path = self.head.launcher_path if launcher != "torchrun" else ""
        try:
            return dict(self.ask("survey", request={**request, "launcher_path": path})["facts"])
        except HeadLost as lost:
            raise InputError(f"torchfleet_home of {self.head.name}", self.home, f"cannot be used: {lost}") from None

    def run(self, order: Frame, show: Callable[[Frame], None], reason_to_end: Callable[[], str]) -> Frame:
        """Run a job and return its result; frames in between go to `show`.

        `reason_to_end` is asked several times a second: a text ends the job as cancelled.
        InputError if the job could not be staged.
        """
        self.channel.send("run", order=order)
        told = False
        while True:
            reason = "" if told else reason_to_end()
            if reason:
                told = True
                kind, _tab, detail = reason.partition("\t")
                self.channel.send("end", reason=kind, detail=detail)
            try:
                frame = self.channel.receive(0.2)
            except EOFError:
                raise HeadLost("the supervisor on the head died") from None
            if frame is None:
                continue
            if frame["kind"] == "refused":
                raise InputError("job", order["job_id"], frame["reason"])
            if frame["kind"] == "result":
                return dict(frame["result"])
            show(frame)

    def fetch(self, job_id: str, run_dir: Path) -> None:
        """Bring the files of a job home. OSError if they cannot be written: they stay on the head then."""
        self.channel.send("fetch", home=self.home, job_id=job_id)
        while True:
            frame = self.answer()
            if frame["kind"] == "fetched":
                break
            self.store(frame, run_dir)
        self.channel.send("home")

    @staticmethod
    def store(frame: Frame, run_dir: Path) -> None:
        """Write one block of a file below the run directory."""
        path = run_dir / frame["name"]
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if frame["first"] else os.O_APPEND)
        with open(os.open(path, flags, 0o600), "wb") as file:
            file.write(frame["data"])

    def collect(self, controller: str, dry_run: bool) -> list[Frame]:
        """Return the jobs of this controller that are over and not home: job_id, run_dir, state."""
        return list(self.ask("collect", home=self.home, controller=controller, dry_run=dry_run)["jobs"])
