#!/usr/bin/python3
"""The Python of a node in wrong hands: does what it is asked, and tells a lie of it. It runs on lab nodes.

A test lays it on a node as <place>/python3, with lies.json beside it, and names it as the node's interpreter: the one
door through which controller and head come in. It starts the real Python, so that all is as it would be, and changes
what that one answers: frames of the runtime, by their kind, and what Ansible's modules print, by their name.

A lie: `on` (kind of the frame, or name of the module) and what to do with that answer, the first time it comes:
  set      {dotted path: value}, in the answer
  many     {dotted path: [value, count]}: a list of so many of it
  say      this text in place of it (a frame of its own, or what is no frame)
  more     frames sent before it: each an object with `kind`, and `data` for what follows
  flood    this text again and again, without an end, in place of it
  silent   not it, and nothing that comes after it
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import IO, Any

REAL = "/usr/bin/python3"
HERE = os.path.dirname(os.path.abspath(__file__))
CHUNK = 1 << 16
Lie = dict[str, Any]


def put(value: Any, path: str, content: Any) -> None:
    """Set what a dotted path names in nested objects and lists."""
    *above, last = path.split(".")
    for name in above:
        value = value[int(name) if isinstance(value, list) else name]
    value[int(last) if isinstance(value, list) else last] = content


def say(data: bytes) -> None:
    """Write all of it. Who hangs up ends us."""
    while data:
        data = data[os.write(1, data) :]


def text(raw: str) -> bytes:
    """Return the bytes of a text of the table. Surrogates there are bytes that are no UTF-8."""
    return raw.encode("utf-8", "surrogateescape")


def told(lie: Lie, answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer with the lie in it."""
    for path, content in lie.get("set", {}).items():
        put(answer, path, content)
    for path, (content, count) in lie.get("many", {}).items():
        put(answer, path, [content] * count)
    return answer


def framed(frame: dict[str, Any], data: bytes = b"") -> bytes:
    size = {"size": len(data)} if data else {}
    return text(json.dumps({**frame, **size}, ensure_ascii=False) + "\n") + data


def lie_of(lies: list[Lie], kind: str) -> Lie | None:
    """Take the first lie about an answer of this kind out of the table."""
    found = next((lie for lie in lies if lie["on"] == kind), None)
    if found and not found.get("again"):
        lies.remove(found)
    return found


def drain(stream: IO[bytes]) -> None:
    """Read a stream to its end, so that who writes into it is not held up."""
    while stream.read(CHUNK):
        pass


def converse(argv: list[str], lies: list[Lie]) -> int:
    """Be the runtime: pass its frames on, but for those that there is a lie about."""
    real = subprocess.Popen(argv, stdout=subprocess.PIPE)
    assert real.stdout
    for line in iter(real.stdout.readline, b""):
        try:
            frame = json.loads(line)
            data = real.stdout.read(frame.get("size", 0))
        except (ValueError, AttributeError):
            frame, data = {"kind": "greeting"}, b""
        lie = lie_of(lies, frame["kind"])
        if lie is None:
            say(line + data)
            continue
        for other in lie.get("more", []):
            say(framed({name: other[name] for name in other if name != "data"}, text(other.get("data", ""))))
        while "flood" in lie:
            say(text(lie["flood"]) * (1 + CHUNK // len(lie["flood"])))
        if lie.get("silent"):
            drain(real.stdout)
        elif "say" in lie:
            say(text(lie["say"]))
        else:
            frame.pop("size", None)
            say(framed(told(lie, frame), data))
    return real.wait()


def answer(argv: list[str], lies: list[Lie]) -> int:
    """Be a module of Ansible, which comes on stdin: run it and print its answer with the lie in it."""
    module = sys.stdin.buffer.read()
    done = subprocess.run(argv, check=False, input=module, stdout=subprocess.PIPE)
    for lie in lies:
        if text(lie["on"]) in module:
            if "say" in lie:
                say(text(lie["say"]))
                return 0
            begin = done.stdout.index(b"{")
            say(text(json.dumps(told(lie, json.loads(done.stdout[begin:])))))
            return 0
    say(done.stdout)
    return done.returncode


def main() -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    with open(os.path.join(HERE, "lies.json")) as file:
        lies = json.load(file)
    argv = [REAL, *sys.argv[1:]]
    sys.exit(converse(argv, lies) if "-S" in sys.argv[1:4] else answer(argv, lies))  # no module is started with options


if __name__ == "__main__":
    main()
