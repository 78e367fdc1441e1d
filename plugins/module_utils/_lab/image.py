# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The images of a lab's nodes: bootstrapped from Debian's packages, so no container registry is needed."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from typing import Mapping

from .host import limits
from .podman import podman, run
from .spec import Options

# The least that boots and lets Ansible in; every image of a release shares it.
BASE = ("openssh-server", "python3", "iproute2", "sudo", "systemd", "systemd-sysv", "dbus", "procps", "ca-certificates")
# By image: `tools` has what makes a node handy, and what roles would install; `bare` has nothing.
PACKAGES: Mapping[str, tuple[str, ...]] = {
    "tools": ("python3-apt", "python3-venv", "iputils-ping", "rsync", "ethtool", "nftables"),
    "bare": (),
}
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*")


def digest(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def base_tag(release: str, mirror: str) -> str:
    return f"localhost/torchfleet-lab-base:{release}-{digest(mirror, *BASE, *LEFT_OUT)}"


def node_tag(release: str, given: Options) -> str:
    """Return the name of the image: it changes with everything the image is made from."""
    texts = []
    for name in ("Containerfile", "init"):
        with open(os.path.join(given["context"], name)) as file:
            texts.append(file.read())
    made_from = digest(base_tag(release, given["mirror"]), *packages(given), *texts)
    return f"localhost/torchfleet-lab:{release}-{made_from}"


def packages(given: Options) -> list[str]:
    """Return the packages that a node has beside the base image."""
    return sorted({*PACKAGES[given["image"]], *given["packages"]})


def exists(tag: str) -> bool:
    return bool(podman("image", "inspect", "--format", "{{.Id}}", tag, check=False))


def build(release: str, given: Options) -> None:
    """Make the image of a node unless it is there."""
    tag = node_tag(release, given)
    if exists(tag):
        return
    words = {"BASE": bootstrap(release, given["mirror"]), "PACKAGES": " ".join(packages(given))}
    arguments = [word for name, text in words.items() for word in ("--build-arg", f"{name}={text}")]
    podman("build", "--tag", tag, *limits(), *arguments, given["context"])


def bootstrap(release: str, mirror: str) -> str:
    """Make the base image of a release unless it is there. Return its name."""
    tag = base_tag(release, mirror)
    if exists(tag):
        return tag
    with tempfile.TemporaryDirectory(prefix="torchfleet-lab-", dir="/var/tmp") as work:
        tarball = os.path.join(work, "root.tar")
        argv = ["mmdebstrap", "--quiet", "--variant=minbase", "--include", ",".join(BASE)]
        argv += ['--aptopt=Acquire::Languages "none"', *(f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT)]
        run(*argv, release, tarball, *([mirror] if mirror else []))
        podman("import", "--quiet", tarball, tag)
    return tag
