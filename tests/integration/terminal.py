"""A terminal for a playbook, as a person has it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import threading
from typing import Any

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire.channel import ready
from tests.driver import REPO
from tests.integration.fleet import Fleet, Started


class Terminal:
    """A terminal with a playbook in it, as a person has it: keys are typed, and what is shown is kept."""

    def __init__(self, fleet: Fleet, *words: str, playbook: str = "train.yml", **given: Any) -> None:
        self.controller, inside = pty.openpty()
        self.text = b""
        self.closed = False
        log = fleet.root / "terminal.log"
        log.touch()
        extra = json.dumps(fleet.variables(job_id="typed", **given))
        command = ["setsid", "--ctty", "ansible-playbook", playbook, "-e", extra, *words]
        process = subprocess.Popen(command, cwd=REPO, stdin=inside, stdout=inside, stderr=inside)
        os.close(inside)
        self.started = Started(process, "typed", log, fleet.runs, fleet)
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        while not self.closed:
            if not ready([self.controller], 0.1):
                continue
            try:
                self.text += os.read(self.controller, 4096)
            except OSError:  # all who had it open are gone
                return

    def type(self, text: str) -> None:
        os.write(self.controller, text.encode())

    def shows(self, text: str) -> None:
        """Wait until a text is on the terminal."""
        try:
            self.started.wait_until(lambda: text.encode() in self.text.replace(b"\r\n", b" "), 30)
        except AssertionError:
            raise AssertionError(f"{text!r} was not shown: {self.text!r}") from None

    def close(self) -> None:
        """Close the window: the kernel sends SIGHUP to those in it."""
        self.closed = True
        self.reader.join()  # as long as it reads, the kernel takes the terminal for open
        os.close(self.controller)
