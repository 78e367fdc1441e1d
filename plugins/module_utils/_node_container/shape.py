# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What a node container is made of, from the options to the words of the engine. Pure; bad input raises ValueError."""

from __future__ import annotations

import json
import re
from typing import Mapping, NamedTuple, Sequence

CLUSTER_LABEL = "torchfleet.node_container"  # its value is the name of the cluster
HOST_LABEL = "torchfleet.node_container.host"
SHAPE_LABEL = "torchfleet.node_container.shape"
BIRTH_LABEL = "torchfleet.node_container.birth"  # another word for every new container
NAME = re.compile(r"[a-z][a-z0-9-]{0,29}\Z")
HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}\Z")
USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}\Z")
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]{0,254}\Z")
SIZE = re.compile(r"[1-9][0-9]{0,11}[kmgt]?\Z", re.IGNORECASE)
ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}\Z")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
DEVICE = re.compile(r"/[\w/.:-]+\Z|[\w.-]+/[\w.-]+=[\w.:-]+\Z")
FIRST_PORT, PORTS = 2222, 200  # where a free port is looked for
USERS_UID = 1000  # of the first user of a machine, and of the user of most images
COMPARED = ("user", "uid", "listen", "shm_size", "mounts", "env", "args")
IMAGE_NAME = "image"  # in a shape, beside its digest
MAY_LACK = ("node_container_directory", "node_container_image")
MOUNT_WAYS = ("ro", "rw")
# Options of `commit`: an image has nothing of its node. A container of it with our labels would be taken for a node.
# One label for each LABEL: podman 4.3 takes several for the value of the first.
CHANGES = (
    *(f'LABEL {label}=""' for label in (CLUSTER_LABEL, HOST_LABEL, SHAPE_LABEL, BIRTH_LABEL)),
    "ENTRYPOINT []",
    'CMD ["/bin/sh"]',
)
COMMIT_WORDS = tuple(word for change in CHANGES for word in ("--change", change))


class Wanted(NamedTuple):
    """The node container that was asked for."""

    cluster: str
    host: str  # the name in the inventory
    image: str
    user: str
    uid: int
    port: int  # 0: the first free one
    listen: tuple[str, ...]  # addresses; none for all
    shm_size: str  # nothing: that of the machine
    devices: tuple[str, ...]
    mounts: tuple[tuple[str, str, str], ...]  # here, there, ro or rw
    env: Mapping[str, str]
    args: tuple[str, ...]
    key: str

    @property
    def name(self) -> str:
        """The name of the container."""
        return f"{self.cluster}-{self.host}"

    @property
    def labels(self) -> tuple[str, str]:
        """By which it is found again."""
        return f"{CLUSTER_LABEL}={self.cluster}", f"{HOST_LABEL}={self.host}"


def wanted_of(given: Mapping[str, object], own_uid: int) -> Wanted:
    """Return the node container of a module's options. `own_uid`: of the user that runs the module."""
    env = given["env"]
    shm_size = text_of(given, "shm_size")
    fits("shm_size", shm_size if shm_size != "host" else "1", SIZE, "a size such as 8g, or host for the machine's own")
    return Wanted(
        cluster=fits("cluster", given["cluster"], NAME, "at most 30 of a-z, 0-9 and -, beginning with a letter"),
        host=fits("host", given["host"], HOST, "a name of letters, digits, '.', '-' and '_'"),
        image=fits("image", given["image"] or "none", IMAGE, "the name of an image, as podman and docker take it"),
        user=fits("user", given["user"], USER, "a user name of a-z, 0-9, - and _ but root"),
        uid=uid_of(given["uid"], own_uid),
        port=within("port", given["port"], 0, 65535),
        listen=tuple(
            fits("listen", each, ADDRESS, "IP addresses, or none for all") for each in listed(given, "listen")
        ),
        shm_size="" if shm_size == "host" else shm_size,
        devices=tuple(device(each) for each in listed(given, "devices")),
        mounts=tuple(mount(each) for each in listed(given, "mounts")),
        env=env_of(env if isinstance(env, Mapping) else {}),
        args=tuple(listed(given, "args")),
        key=text_of(given, "key"),
    )


def text_of(given: Mapping[str, object], name: str) -> str:
    """Return an option that is a text."""
    return str(given[name])


def listed(given: Mapping[str, object], name: str) -> list[str]:
    """Return an option that is a list of texts."""
    found = given[name]
    return [str(each) for each in found] if isinstance(found, (list, tuple)) else []


def fits(name: str, value: object, form: re.Pattern[str], allowed: str) -> str:
    """Return a text of a form."""
    if not form.match(str(value)) or value == "root":
        raise ValueError(f"node_container_{name}: got {str(value)!r}; give {allowed}")
    return str(value)


def within(name: str, value: object, least: int, most: int) -> int:
    """Return a whole number in its range."""
    if not re.match(r"\d{1,9}\Z", str(value)) or not least <= int(str(value)) <= most:
        raise ValueError(f"node_container_{name}: got {value!r}; give {least} to {most}")
    return int(str(value))


def uid_of(value: object, own_uid: int) -> int:
    """Return the uid of the node's user. 0 stands for that of the user who runs the module, or 1000 for root."""
    return within("uid", value, 0, 2**31 - 1 if len(str(value)) < 10 else 0) or own_uid or USERS_UID


def device(text: str) -> str:
    """Return a path or a name of CDI, or auto."""
    if text != "auto" and not DEVICE.match(text):
        raise ValueError(
            f"node_container_devices: got {text!r}; give auto, paths such as /dev/kfd, or names of CDI such as "
            "nvidia.com/gpu=0"
        )
    return text


def mount(text: str) -> tuple[str, str, str]:
    """Return the path here, the path there, and ro or rw, of here[:there][:ro|rw]."""
    parts = text.split(":")
    way = parts.pop() if len(parts) > 1 and parts[-1] in MOUNT_WAYS else "ro"
    here, there = parts[0], parts[-1]
    if len(parts) > 2 or not (here.startswith("/") and there.startswith("/")) or "," in text:
        raise ValueError(f"node_container_mounts: got {text!r}; give /path/here, /here:/there or /here:/there:rw")
    return here, there, way


def env_of(given: Mapping[str, object]) -> dict[str, str]:
    """Return variables of logins: texts of one line that sshd can quote."""
    found = {str(name): str(value) for name, value in given.items()}
    for name, value in found.items():
        if not VARIABLE.match(name):
            raise ValueError(f"node_container_env: got the name {name!r}; give letters, digits and _")
        if set(value) & set('"\\\n\r\0'):
            raise ValueError(
                f"node_container_env: {name} has a quote, a backslash or a line end, which sshd does not take"
            )
    return found


def shape(wanted: Wanted, port: int, image: str, device_words: Sequence[str]) -> str:
    """Return what a container is made of, by option, as JSON. It is kept as a label and compared by difference().

    `image`: its digest.
    """
    parts: dict[str, object] = {f"node_container_{name}": getattr(wanted, name) for name in COMPARED}
    parts.update({"node_container_port": port, "node_container_image": image, "node_container_directory": wanted.key})
    parts["node_container_devices, or what the machine has,"] = list(device_words)
    return json.dumps({**parts, IMAGE_NAME: wanted.image})


def difference(was: str, wanted: str) -> str:
    """Return the option in which two shapes differ, or nothing.

    In check mode a key or an image that is not there yet is an empty text, and differs from none.
    """
    old, new = json.loads(was), json.loads(wanted)
    names = [name for name in new if name != IMAGE_NAME and not (name in MAY_LACK and new[name] == "")]
    return next((name for name in names if new[name] != old.get(name)), "")


def port_in(shape_label: str) -> int:
    """Return the port in a shape."""
    return int(json.loads(shape_label)["node_container_port"])


def image_in(shape_label: str) -> str:
    """Return the name of the image in a shape."""
    return str(json.loads(shape_label).get(IMAGE_NAME, ""))


def run_words(wanted: Wanted, image: str, words: Sequence[str], made_of: str, entry: Sequence[str]) -> list[str]:
    """Return the words after `podman` or `docker` that start a node container.

    `words`: options for devices, limits and user namespaces of this machine; `entry`: words of its first process.
    """
    argv = ["run", "--detach", "--name", wanted.name, "--hostname", hostname(wanted.host), "--network", "host"]
    argv += ["--user", "0:0"]  # whatever user the image names: a login is of the node's own user
    argv += ["--shm-size", wanted.shm_size] if wanted.shm_size else ["--ipc", "host"]
    # Ranks on one machine read each other's memory (CMA), and bind themselves to memory: docker's profile forbids both.
    argv += ["--cap-add=SYS_PTRACE", "--cap-add=SYS_NICE", "--security-opt=label=disable", "--pids-limit=-1"]
    for label in (*wanted.labels, f"{SHAPE_LABEL}={made_of}"):
        argv += ["--label", label]
    # What makes this node itself (host key, what role ssh_mesh writes) is in no image that is made of it.
    argv += ["--volume", "/etc/ssh", *words]
    for here, there, way in wanted.mounts:
        argv += ["--volume", f"{here}:{there}:{way}"]
    return [*argv, *wanted.args, "--entrypoint", "python3", image, *entry]


def hostname(host: str) -> str:
    """Return the host name of a node: its name in the inventory, as far as a host name may have that."""
    return re.sub(r"[^A-Za-z0-9.-]", "-", host)[:63].strip(".-")
