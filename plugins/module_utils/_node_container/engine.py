# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""podman and docker of a machine, as far as node containers need them. Both take the same words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import Mapping, NamedTuple, Sequence

ENGINES = ("podman", "docker")
NOT_FOUND = 127  # status of `run` for a program that the image does not have
USER_NAMESPACES = ("proc/sys/user/max_user_namespaces", "proc/sys/kernel/unprivileged_userns_clone")


class EngineFailed(Exception):
    """The engine failed or refused; the message is one line."""


class Done(NamedTuple):
    """How a command ended."""

    status: int
    output: str
    said: str  # the last line of its errors, else of its output


class Container(NamedTuple):
    """A container as the engine describes it."""

    id: str
    name: str
    running: bool
    labels: Mapping[str, str]


class Engine:
    """One of the engines."""

    def __init__(self, name: str, rootless: bool) -> None:
        self.name = name
        self.rootless = rootless and name == "podman"  # docker's daemon is root's, whoever asks it

    def try_to(self, *argv: str, text: str = "") -> Done:
        """Run a command of the engine, and return how it ended."""
        done = subprocess.run([self.name, *argv], input=text, capture_output=True, text=True, check=False)
        lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        errors = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        return Done(done.returncode, done.stdout, (errors or lines or ["it said nothing"])[-1])

    def do(self, *argv: str) -> str:
        """Run a command and return its output. Raise EngineFailed with its last line if it fails."""
        done = self.try_to(*argv)
        if done.status:
            raise EngineFailed(f"{self.name} {' '.join(argv[:2])}: {done.said}")
        return done.output

    def image(self, name: str) -> str:
        """Return the digest of an image that is here, nothing if it is not."""
        done = self.try_to("image", "inspect", "--format", "{{.Id}}", name)
        return done.output.strip() if done.status == 0 else ""

    def containers(self, *labels: str) -> list[Container]:
        """Return the containers that have all these labels (`name=value`)."""
        words = [word for label in labels for word in ("--filter", f"label={label}")]
        ids = self.do("ps", "--all", "--quiet", "--no-trunc", *words).split()
        return described(self.do("container", "inspect", *ids)) if ids else []

    def container(self, name: str) -> Container | None:
        """Return the container of a name, None if there is none."""
        done = self.try_to("container", "inspect", name)
        return described(done.output)[0] if done.status == 0 else None

    def remove(self, container: str) -> None:
        """Remove a container and its unnamed volumes, whatever runs in it."""
        self.do("rm", "--force", "--volumes", container)


def described(text: str) -> list[Container]:
    """Return the containers of what `container inspect` printed. Raise EngineFailed for another form."""
    try:
        return [
            Container(
                str(row["Id"]),
                str(row["Name"]).lstrip("/"),
                row["State"]["Running"] is True,
                {str(name): str(value) for name, value in (row["Config"]["Labels"] or {}).items()},
            )
            for row in json.loads(text)
        ]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise EngineFailed(f"container inspect printed something else than containers: {error!r}") from None


def engine_of(wanted: str, node: str) -> Engine:
    """Return the engine that works here. Raise EngineFailed for none, with what to type.

    `wanted`: podman, docker, or auto for the first that is installed. `node`: the name of this machine.
    """
    there = [name for name in ENGINES if shutil.which(name)]
    if wanted != "auto" and wanted not in there:
        raise EngineFailed(f"node_container_engine: {wanted} is not installed on {node}; {installs(wanted)}")
    if not there:
        raise EngineFailed(f"node_container_engine: neither podman nor docker is installed on {node}; {installs()}")
    engine = Engine(there[0] if wanted == "auto" else wanted, os.geteuid() != 0)
    if engine.rootless:
        refuse_without_user_namespaces(node)
    done = engine.try_to("ps", "--quiet")
    if done.status:
        raise EngineFailed(f"node_container_engine: {engine.name} does not work on {node}: {done.said}")
    return engine


def engines_of(wanted: str, node: str) -> list[Engine]:
    """Return the engines that may have a container of ours: the one that is named, or all that work here."""
    if wanted != "auto":
        return [engine_of(wanted, node)]
    there = [Engine(name, os.geteuid() != 0) for name in ENGINES if shutil.which(name)]
    return [engine for engine in there if engine.try_to("ps", "--quiet").status == 0]


def installs(engine: str = "podman") -> str:
    """Return what to type to install an engine."""
    package = {"docker": "docker.io"}.get(engine, engine)
    return f"type: apt-get install -y {package} (Debian, Ubuntu), or dnf install -y {engine}"


def refuse_without_user_namespaces(node: str, root: str = "/") -> None:
    """Raise EngineFailed where the kernel gives users no namespaces of their own, which rootless podman needs."""
    for path in USER_NAMESPACES:
        try:
            with open(os.path.join(root, path)) as file:
                value = file.read().strip()
        except OSError:
            continue
        if value == "0":
            sysctl = path[len("proc/sys/") :].replace("/", ".")
            good = 15000 if "max" in sysctl else 1
            raise EngineFailed(
                f"node_container_engine: user namespaces are off on {node} ({sysctl} is 0), and podman of a user needs "
                f"them; type: sudo sysctl -w {sysctl}={good}, or run the playbook with -b"
            )


def first_python(engine: Engine, image: str, words: Sequence[str], source: str) -> Mapping[str, object]:
    """Return what entry.look() says in an image. Raise EngineFailed for an image without Python.

    `words`: options of `run`; `source`: the text of entry.py.
    """
    run = ("run", "--rm", "--network", "none", "--entrypoint", "python3", *words, image, "-I", "-S", "-c", source)
    done = engine.try_to(*run, "look")
    if done.status == NOT_FOUND:
        raise EngineFailed(f"node_container_image: {image} has no python3; give an image with Python 3.8 or newer")
    try:
        if done.status == 0:
            return dict(json.loads(done.output))
    except ValueError:
        pass
    raise EngineFailed(f"node_container_image: {image} does not run: {done.said}")
