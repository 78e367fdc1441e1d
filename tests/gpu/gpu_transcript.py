"""What is kept of a run of `make gpu`: bounded, and without names and addresses of the machine or its user."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

DIRECTORY = Path(__file__).parents[1] / "transcripts"
LINES, COLUMNS = 40, 160  # of one step
UUID = re.compile(r"\b(?:GPU-)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE)
IPV4 = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b(?!\.\d)")
IPV6 = re.compile(r"\b(?:[0-9a-f]{1,4}:){3,7}[0-9a-f]{0,4}\b|\bfe80::[0-9a-f:]+", re.IGNORECASE)
LEAST_NAME = 3  # letters of a name that is replaced: a shorter one would be found in other words


def names_here(**paths: Path) -> dict[str, str]:
    """Return what has to be replaced on this machine, and by what; `paths` by what stands for them."""
    host = socket.gethostname()
    names = {str(path): word for word, path in paths.items()}
    names |= {str(Path.home()): "~", socket.getfqdn(): "HOST", host: "HOST", host.partition(".")[0]: "HOST"}
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    return names | ({user: "USER"} if user != "root" else {})


def clean(line: str, names: Mapping[str, str]) -> str:
    """Return a line without names, addresses and control characters, and no longer than COLUMNS."""
    for name in sorted(names, key=len, reverse=True):
        if len(name) >= LEAST_NAME and name != "localhost":
            line = re.sub(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", names[name], line)
    for pattern, word in ((UUID, "UUID"), (IPV4, "ADDRESS"), (IPV6, "ADDRESS")):
        line = pattern.sub(word, line)
    line = "".join(letter for letter in line.rstrip() if letter.isprintable())
    return line if len(line) <= COLUMNS else line[: COLUMNS - 3] + "..."


def section(title: str, lines: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return a part of the transcript: its title and what was said, the first and last lines if there are many."""
    half = LINES // 2
    left_out = len(lines) - LINES
    kept = [*lines[:half], f"... {left_out} lines ...", *lines[-half:]] if left_out > 0 else lines
    return [f"# {clean(title, names)}", *(f"> {clean(line, names)}".rstrip() for line in kept), ""]


def path_for(vendor: str, model: str, count: int) -> Path:
    """Return the file of a machine: by its GPUs alone."""
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:40] or "gpu"
    slug = slug.removeprefix(f"{vendor}-")
    return DIRECTORY / f"gpu-{vendor}-{slug}-x{count}.txt"
