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

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.containers.containers import ask
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.types.reasons import Unseen

ENGINES = ("podman", "docker")
NOT_FOUND = 127  # status of `run` for a program that the image does not have
NOT_ENDED = 125  # status of ask() for an engine that does not start, end, or stop to talk
LOOK_SECONDS = 120.0  # for an engine to answer, or an image to start and to be looked at
USER_NAMESPACES = ("proc/sys/user/max_user_namespaces", "proc/sys/kernel/unprivileged_userns_clone")


class EngineFailed(Exception):
    """The engine failed or refused; the message is one line. `code`: of what could not be looked at."""

    def __init__(self, message: str, code: Unseen | None = None) -> None:
        super().__init__(message)
        self.code = code


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
        done = subprocess.run(
            [self.name, *argv], input=text, capture_output=True, text=True, errors="replace", check=False
        )
        return Done(done.returncode, done.stdout, last_line(done.stderr, done.stdout))

    def look(self, *argv: str) -> Done:
        """Run a command that only looks, and return how it ended.

        It is bounded in time and in what it prints, for it may run a program of an image, and the engine may hang.
        """
        status, output, errors = ask([self.name, *argv], LOOK_SECONDS)
        return Done(status, output, last_line(errors, output))

    def see(self, *argv: str) -> str:
        """Return what a command prints that only looks. Raise EngineFailed with a code if it fails."""
        done = self.look(*argv)
        if done.status:
            raise EngineFailed(f"{self.name} {' '.join(argv[:2])}: {done.said}", Unseen.ENGINE_FAILED)
        return done.output

    def do(self, *argv: str) -> str:
        """Run a command and return its output. Raise EngineFailed with its last line if it fails."""
        done = self.try_to(*argv)
        if done.status:
            raise EngineFailed(f"{self.name} {' '.join(argv[:2])}: {done.said}")
        return done.output

    def image(self, name: str) -> str:
        """Return the digest of an image that is here, nothing if it is not."""
        done = self.look("image", "inspect", "--format", "{{.Id}}", name)
        return done.output.strip() if done.status == 0 else ""

    def containers(self, *labels: str) -> list[Container]:
        """Return the containers that have all these labels (`name=value`)."""
        words = [word for label in labels for word in ("--filter", f"label={label}")]
        ids = self.see("ps", "--all", "--quiet", "--no-trunc", *words).split()
        return described(self.see("container", "inspect", *ids)) if ids else []

    def container(self, name: str) -> Container | None:
        """Return the container of a name, None if there is none."""
        done = self.look("container", "inspect", name)
        return described(done.output)[0] if done.status == 0 else None

    def remove(self, container: str) -> None:
        """Remove a container and its unnamed volumes, whatever runs in it."""
        self.do("rm", "--force", "--volumes", container)


def last_line(errors: str, output: str) -> str:
    """Return the last line of a program's errors, else of its output."""
    lines = [line.strip() for line in output.splitlines() + errors.splitlines() if line.strip()]
    return (lines or ["it said nothing"])[-1][:500]


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
    done = engine.look("ps", "--quiet")
    if done.status:
        said = f"node_container_engine: {engine.name} does not work on {node}: {done.said}"
        raise EngineFailed(said, Unseen.ENGINE_FAILED)
    return engine


def engines_of(wanted: str, node: str) -> tuple[list[Engine], list[str]]:
    """Return the engines that may have a container of ours: the one that is named, or all that work here.

    Also why it is not known what the others here have, a line each. Raise EngineFailed if none works.
    """
    if wanted != "auto":
        return [engine_of(wanted, node)], []
    there = [Engine(name, os.geteuid() != 0) for name in ENGINES if shutil.which(name)]
    looks = [(engine, engine.look("ps", "--quiet")) for engine in there]
    unseen = [f"could not look with {engine.name} ({done.said})" for engine, done in looks if done.status]
    work = [engine for engine, done in looks if done.status == 0]
    if unseen and not work:
        raise EngineFailed(f"node_container_engine: on {node}, {' and '.join(unseen)}", Unseen.ENGINE_FAILED)
    return work, unseen


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
    name = f"torchfleet-look-{os.getpid()}-{os.urandom(4).hex()}"
    run = ("run", "--rm", "--name", name, "--network", "none", "--entrypoint", "python3", *words, image)
    done = engine.look(*run, "-I", "-S", "-c", source, "look")
    if done.status == NOT_ENDED:  # only the program that waits for the container was ended
        engine.look("rm", "--force", name)
    if done.status == NOT_FOUND:
        raise EngineFailed(f"node_container_image: {image} has no python3; give an image with Python 3.8 or newer")
    try:
        seen = json.loads(done.output) if done.status == 0 else None
    except (ValueError, RecursionError):
        seen = None
    if isinstance(seen, dict):
        return seen
    raise EngineFailed(f"node_container_image: {image} does not run: {done.said}")
