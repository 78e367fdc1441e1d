# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Creation, removal and keeping of the node container of a machine. Only containers with our labels are touched."""

from __future__ import annotations

import errno
import inspect
import json
import os
import socket
import time
import uuid
from typing import Callable, Mapping, NamedTuple, Sequence

from . import bases, entry, shape
from .devices import Devices, devices_of, limit_words
from .engine import Container, Engine, EngineFailed, engine_of, engines_of, first_python
from .shape import Wanted

START_SECONDS = 60.0
INSTALL_SECONDS = 600.0  # if packages are installed first
OLDEST_PYTHON = [3, 8]
NOTHING_THERE = 42  # a status that neither Python nor an engine ends with by itself
THERE = f"import os, sys; os.path.exists(os.path.expanduser(sys.argv[1])) or sys.exit({NOTHING_THERE})"
# Run in a node: the path of its Python, and its public host key.
READ = f"import sys; print(sys.executable); print(open('{entry.HOST_KEY}.pub').read())"


class Plan(NamedTuple):
    """What `present` comes to on this machine."""

    engine: Engine
    found: Container | None
    image: str  # its name
    port: int
    lacks: bool  # whether packages are installed at the first start
    devices: Devices
    made_of: str
    words: list[str]  # options for this machine


# --- prepared and present -------------------------------------------------------------------------------------------


def prepared(given: Mapping[str, object], check: bool) -> dict[str, object]:
    """Have the image that a new container needs, and look into it. So no machine starts what another one cannot."""
    wanted = shape.wanted_of(given, os.geteuid())
    engine = engine_of(str(given["engine"]), wanted.host)
    name = str(given["image"]) or bases.node_image(str(given["base"]))
    had = bool(engine.image(name))
    plan = plan_of(given, wanted, engine, check)
    changed = not had and plan.image in ("", name)
    verb = "is there" if not changed else "would be had" if check else "is there now"
    return {"changed": changed, "msg": f"image {name} {verb} on {wanted.host}"}


def present(given: Mapping[str, object], check: bool) -> dict[str, object]:
    """Start the node container. Return changed, msg, diff, and in `node` its port, user and host keys if it runs."""
    wanted = shape.wanted_of(given, os.geteuid())
    engine = engine_of(str(given["engine"]), wanted.host)
    plan = plan_of(given, wanted, engine, check)
    running = plan.found is not None and plan.found.running
    changed = not running
    if changed and not check:
        start(wanted, plan)
    python, keys = read(engine, wanted) if running or not check else ("", [])
    node = {"port": plan.port, "user": wanted.user, "python": python, "host_keys": keys}
    node.update({"engine": engine.name, "image": plan.image})
    verb = "runs" if running else "would start" if check else "started"
    line = f"{wanted.name} {verb} ({engine.name}, {plan.image or 'an image that has to be made'}, port {plan.port})"
    diff = {"before": plan.made_of if running else "", "after": plan.made_of}
    return {"changed": changed, "msg": line, "node": node, "diff": pretty(diff)}


def pretty(diff: Mapping[str, str]) -> dict[str, str]:
    """Return the sides of a diff with a line for each option."""
    return {side: json.dumps(json.loads(text), indent=1) + "\n" if text else "" for side, text in diff.items()}


def plan_of(given: Mapping[str, object], wanted: Wanted, engine: Engine, check: bool) -> Plan:
    """Look at this machine, and refuse what cannot be. In check mode nothing is made or pulled."""
    found = own(engine, wanted)
    refuse_user(wanted, engine)
    refuse_mounts(wanted)
    devices = devices_of(list(wanted.devices), engine.name, wanted.host)
    words = [*limit_words(), *devices.words, *(["--userns", "keep-id"] if engine.rootless else [])]
    label = found.labels.get(shape.SHAPE_LABEL, "{}") if found else "{}"
    image = image_of(given, wanted, engine, check) if given["image"] or not found else shape.image_in(label)
    digest = engine.image(image) if image else ""
    # A running node is not looked into again: it says by itself that it works.
    lacks = bool(digest) and found is None and lacks_packages(engine, image, wanted, bool(given["install"]))
    port = port_of(wanted, found)
    made_of = shape.shape(wanted._replace(image=image), port, digest, devices.words)
    if found is not None:
        refuse_difference(wanted, found, made_of)
    return Plan(engine, found, image, port, lacks, devices, made_of, words)


def own(engine: Engine, wanted: Wanted) -> Container | None:
    """Return our container, None if there is none. Raise EngineFailed if another one has its name."""
    there = engine.container(wanted.name)
    labels = dict(label.split("=", 1) for label in wanted.labels)
    if there is not None and any(there.labels.get(name) != value for name, value in labels.items()):
        raise EngineFailed(
            f"node_container_cluster: container {wanted.name} on {wanted.host} is not a node of this cluster; give "
            "another name"
        )
    return there


def refuse_user(wanted: Wanted, engine: Engine) -> None:
    """Raise EngineFailed for a uid that podman of a user cannot give: files of mounts would be another user's."""
    if engine.rootless and wanted.uid != os.geteuid():
        raise EngineFailed(
            f"node_container_uid: got {wanted.uid}; podman of user {os.geteuid()} on {wanted.host} makes nodes with "
            "the uid of that user alone: leave it out, or run the playbook with -b"
        )


def refuse_mounts(wanted: Wanted) -> None:
    """Raise EngineFailed for a mount that is not there: docker would make an empty directory of root's."""
    for here, _there, _way in wanted.mounts:
        if not os.path.exists(here):
            raise EngineFailed(f"node_container_mounts: there is no {here} on {wanted.host}; give what is there")


def image_of(given: Mapping[str, object], wanted: Wanted, engine: Engine, check: bool) -> str:
    """Return the name of the image: that of the user, which may be pulled, or ours of a base. In check mode, or ""."""
    if not given["image"]:
        name = bases.node_image(str(given["base"]))
        if engine.image(name):
            return name
        return "" if check else bases.make_node_image(engine, str(given["base"]), limit_words())
    if engine.image(wanted.image) or (check and not wanted.image.startswith("localhost/")):
        return wanted.image
    if wanted.image.startswith("localhost/"):
        built = "playbooks/containers.yml -e container_state=built keeps images of nodes under such names"
        raise EngineFailed(f"node_container_image: there is no {wanted.image} on {wanted.host}; {built}")
    engine.do("pull", wanted.image)
    return wanted.image


def lacks_packages(engine: Engine, image: str, wanted: Wanted, may_install: bool) -> bool:
    """Return whether packages must be installed in the image. Raise EngineFailed if that is not possible or wanted."""
    seen = first_python(engine, image, limit_words(), source())
    python, missing = seen.get("python"), seen.get("missing")
    if not isinstance(python, list) or not all(type(part) is int for part in python) or python < OLDEST_PYTHON:
        shown = ".".join(str(part) for part in python) if isinstance(python, list) else "another one"
        raise EngineFailed(f"node_container_image: {image} has Python {shown}; give an image with Python 3.8 or newer")
    names = ", ".join(str(name) for name in missing) if isinstance(missing, list) else ""
    if names and not may_install:
        raise EngineFailed(f"node_container_image: {image} lacks {names}; say -e node_container_install=true")
    if names and not seen.get("manager"):
        raise EngineFailed(
            f"node_container_image: {image} lacks {names}, and has neither apt-get nor dnf; install them"
        )
    return bool(names)


def source() -> str:
    """Return the text of the first process."""
    return inspect.getsource(entry)


def port_of(wanted: Wanted, found: Container | None) -> int:
    """Return the port: that of the container, the one that was asked for, or the first free one."""
    if found is not None:
        port = shape.port_in(found.labels[shape.SHAPE_LABEL])
        if found.running or wanted.port not in (0, port):
            return port if wanted.port == 0 else wanted.port
        return free(port, wanted)
    if wanted.port:
        return free(wanted.port, wanted)
    last = shape.FIRST_PORT + shape.PORTS
    for port in range(shape.FIRST_PORT, last):
        if not why_taken(port, wanted.listen):
            return port
    raise EngineFailed(
        f"node_container_port: {shape.FIRST_PORT} to {last - 1} are all in use on {wanted.host}; give one"
    )


def free(port: int, wanted: Wanted) -> int:
    """Return the port. Raise EngineFailed if sshd could not have it."""
    why = why_taken(port, wanted.listen)
    if why:
        first = f"the first free one from {shape.FIRST_PORT}"
        raise EngineFailed(f"node_container_port: {port} {why} on {wanted.host}; give another one, or 0 for {first}")
    return port


def why_taken(port: int, listen: Sequence[str]) -> str:
    """Return why nothing can listen on a port here, nothing if it can."""
    for address in listen or ("0.0.0.0", "::"):
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind((address, port))
                probe.listen(1)
        except OSError as error:
            if error.errno == errno.EACCES:
                return "is for root alone"
            if error.errno == errno.EADDRINUSE:
                return "is in use"
            if listen:
                return f"cannot be had at {address} ({error.strerror})"
    return ""


def refuse_difference(wanted: Wanted, found: Container, made_of: str) -> None:
    """Raise EngineFailed if our container was made of something else: what is in it would be lost with it."""
    option = shape.difference(found.labels.get(shape.SHAPE_LABEL, "{}"), made_of)
    if option:
        remove = "ansible-playbook -i INVENTORY playbooks/containers.yml -e container_state=absent"
        raise EngineFailed(
            f"{option}: {wanted.name} on {wanted.host} exists with another value; give that value, or remove it with "
            f"all its files first: {remove}"
        )


def start(wanted: Wanted, plan: Plan) -> None:
    """Create or start the container, and wait for its sshd. What was made here is removed again if that fails."""
    engine = plan.engine
    if plan.found is not None:
        engine.do("start", plan.found.name)
        wait(engine, wanted, plan.port, START_SECONDS)
        return
    birth = uuid.uuid4().hex
    words = [*plan.words, "--label", f"{shape.BIRTH_LABEL}={birth}"]
    about = {"birth": birth, "user": wanted.user, "uid": wanted.uid, "gids": plan.devices.gids}
    about.update({"port": plan.port, "listen": list(wanted.listen), "key": wanted.key, "env": dict(wanted.env)})
    first = ["-I", "-S", "-c", source(), json.dumps(about)]
    try:
        engine.do(*shape.run_words(wanted, plan.image, words, plan.made_of, first))
        wait(engine, wanted, plan.port, INSTALL_SECONDS if plan.lacks else START_SECONDS)
    except (EngineFailed, OSError):
        made = engine.container(wanted.name)
        if made is not None and made.labels.get(shape.BIRTH_LABEL) == birth:  # else the name is another one's
            engine.remove(made.id)
        raise


def wait(engine: Engine, wanted: Wanted, port: int, seconds: float) -> None:
    """Return as soon as sshd greets. Raise EngineFailed with the node's last line if it ended, or after `seconds`."""
    deadline = time.monotonic() + seconds
    where = (wanted.listen or ("127.0.0.1",))[0]
    while time.monotonic() < deadline:
        if greets(where, port):
            return
        there = engine.container(wanted.name)
        if there is None or not there.running:
            said = engine.look("logs", "--tail", "20", wanted.name).said
            raise EngineFailed(f"{wanted.name} on {wanted.host} ended while it started: {said}")
        time.sleep(0.1)
    raise EngineFailed(f"{wanted.name} on {wanted.host} has no SSH server on {where} port {port} after {seconds:.0f} s")


def greets(address: str, port: int) -> bool:
    """Whether an SSH server answers."""
    try:
        with socket.create_connection((address, port), timeout=1) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def read(engine: Engine, wanted: Wanted) -> tuple[str, list[str]]:
    """Return the node's Python and public host keys (type and base64), read in the container, not over the network."""
    lines = engine.see("exec", wanted.name, "python3", "-I", "-S", "-c", READ).splitlines()
    return lines[0] if lines else "", [" ".join(line.split()[:2]) for line in lines[1:] if line.strip()]


# --- absent and built ----------------------------------------------------------------------------------------------


def absent(given: Mapping[str, object], check: bool) -> dict[str, object]:
    """Remove the node container of this cluster and host, and nothing else."""
    wanted = shape.wanted_of(given, os.geteuid())
    engines, unseen = engines_of(str(given["engine"]), wanted.host)
    mine = [
        (engine, container)
        for engine in engines
        for container in engine.containers(*wanted.labels)
        if container.name == wanted.name  # an image that was made of a node may hand its labels on
    ]
    if not check:
        for engine, container in mine:
            engine.remove(container.id)
    verb = "would remove" if check else "removed"
    told = f"{verb} {wanted.name}" if mine else f"{wanted.name} does not exist on {wanted.host}"
    if unseen and not mine:
        told = f"no {wanted.name} was found on {wanted.host}"
    return {"changed": bool(mine), "msg": "; ".join([told, *unseen])}


def built(given: Mapping[str, object], check: bool) -> dict[str, object]:
    """Keep the files of the running node as an image. Refused if private keys of the SSH mesh would be in it."""
    wanted = shape.wanted_of(given, os.geteuid())
    engine = engine_of(str(given["engine"]), wanted.host)
    there = own(engine, wanted)
    if there is None or not there.running:
        raise EngineFailed(f"{wanted.name} does not run on {wanted.host}; start it: playbooks/containers.yml")
    mesh = os.path.join(str(given["home"]).replace("~", f"~{wanted.user}", 1), "ssh")
    looked = engine.look("exec", wanted.name, "python3", "-I", "-S", "-c", THERE, mesh)
    if looked.status not in (0, NOTHING_THERE):
        raise EngineFailed(f"{wanted.name}: it cannot be told whether keys are in {mesh}: {looked.said}")
    if looked.status == 0:
        raise EngineFailed(
            f"{wanted.name} has keys of the SSH mesh in {mesh}, which belong in no image; keep a node that has none: "
            "setup.yml --tags prerequisites,libraries,mpi,pytorch,torch_backends"
        )
    name = bases.kept_image(str(given["base"]), str(given["part"]))
    if not check:
        engine.do("commit", *shape.COMMIT_WORDS, wanted.name, name)
    verb = "would keep" if check else "kept"
    return {"changed": True, "msg": f"{verb} {wanted.name} as {name} on {wanted.host}", "image": name}


VERBS: Mapping[str, Callable[[Mapping[str, object], bool], dict[str, object]]] = {
    "present": present,
    "prepared": prepared,
    "absent": absent,
    "built": built,
}
