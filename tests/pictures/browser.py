"""A headless browser, driven by the Chrome DevTools Protocol over two pipes: JSON messages, each ended by a zero byte.

Needs Chromium or Chrome and the standard library. https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import cast

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
WORDS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
TALKS = ("Page", "Runtime", "Log", "Network")
ANSWER_SECONDS = 120.0  # the machine may be busy
Message = dict[str, object]


class BrowserError(Exception):
    """The browser is not there, does not answer, or refuses what it is asked for."""


@dataclass(frozen=True)
class Screen:
    """What a page is shown on. Sizes are in CSS pixels; `media`: "screen" or "print"."""

    width: int
    height: int
    dark: bool = False
    media: str = "screen"


class Browser:
    """One page of a browser. `events`: what it told since the last page was opened."""

    def __init__(self, pid: int, reader: int, writer: int) -> None:
        self.pid, self.reader, self.writer = pid, reader, writer
        self.number = 0
        self.session = ""
        self.rest = b""
        self.events: list[Message] = []

    def attach(self) -> None:
        """Open an empty page and listen to all that it tells."""
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = str(self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in TALKS:
            self.ask(f"{domain}.enable")

    def show(self, page: Path, screen: Screen) -> None:
        """Load a page on a screen, and wait until it is drawn. `events` are those of this page from now on."""
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=screen.width, height=screen.height, deviceScaleFactor=1, mobile=screen.width < 500,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if screen.dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media=screen.media, features=[scheme])
        self.events = []
        self.ask("Page.navigate", url=page.as_uri())
        self.wait_for("Page.loadEventFired")
        self.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def value(self, expression: str) -> object:
        """Return what an expression of JavaScript comes to in the page, as JSON has it."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"the expression failed: {json.dumps(answer['exceptionDetails'])[:2000]}")
        return cast("Message", answer["result"]).get("value")

    def picture(self, path: Path, height: int | None = None, scale: float = 1.0) -> None:
        """Write what is shown as PNG: the page down to `height` pixels, or all of it."""
        size = self.value("[document.documentElement.clientWidth, document.documentElement.scrollHeight]")
        width, whole = cast("list[float]", size)
        clip = {"x": 0, "y": 0, "width": width, "height": height or whole, "scale": scale}
        answer = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(str(answer["data"])))

    def ask(self, method: str, **given: object) -> Message:
        """Return the answer to a command. BrowserError if it is refused, or none comes."""
        self.number += 1
        message: Message = {"id": self.number, "method": method, "params": given}
        if self.session:
            message["sessionId"] = self.session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.writer, data) :]
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                break
            self.events.append(answer)
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']}")
        return cast("Message", answer["result"])

    def wait_for(self, method: str) -> None:
        """Read until an event came."""
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self.read())

    def read(self) -> Message:
        """Return the next message."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while b"\0" not in self.rest:
            if not select.select([self.reader], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise BrowserError(f"no answer within {ANSWER_SECONDS:g} s")
            data = os.read(self.reader, 1 << 20)
            if not data:
                raise BrowserError("the browser ended")
            self.rest += data
        first, _zero, self.rest = self.rest.partition(b"\0")
        return cast("Message", json.loads(first))


def high(descriptor: int) -> int:
    """Return the same file under a number that is not among those that the browser is given."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start a browser with a profile of its own, and end it."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise BrowserError(f"no browser is here: install one of {', '.join(NAMES)}")
    theirs, writer = map(high, os.pipe())
    reader, to_us = map(high, os.pipe())
    with tempfile.TemporaryDirectory(prefix="torchfleet-browser-") as profile:
        moves = [(os.POSIX_SPAWN_DUP2, theirs, 3), (os.POSIX_SPAWN_DUP2, to_us, 4)]
        silent = [(os.POSIX_SPAWN_OPEN, place, os.devnull, os.O_RDWR, 0) for place in (0, 1, 2)]
        argv = [program, *WORDS, f"--user-data-dir={profile}", "about:blank"]
        pid = os.posix_spawn(program, argv, os.environ, file_actions=[*silent, *moves], setpgroup=0)
        os.close(theirs)
        os.close(to_us)
        try:
            found = Browser(pid, reader, writer)
            found.attach()
            yield found
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # its own group: setpgroup=0
            os.waitpid(pid, 0)
            os.close(reader)
            os.close(writer)
