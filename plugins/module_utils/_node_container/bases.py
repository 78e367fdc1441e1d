# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Images of node containers: made from a base by kind of accelerator, and kept after roles have run in a node."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from typing import Mapping, NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.image import bootstrap
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import PodmanError

from .engine import Engine, EngineFailed


class Base(NamedTuple):
    """An image of others that ours begin with."""

    image: str
    debian: str = ""  # a release that can be made from Debian's packages instead, without a registry


# The drivers are those of the machine, and PyTorch's wheels bring their own libraries: a small base is enough.
BASES: Mapping[str, Base] = {
    "cpu": Base("docker.io/library/debian:bookworm-slim", "bookworm"),
    "cuda": Base("docker.io/nvidia/cuda:13.1.1-base-ubuntu24.04"),
    "rocm": Base("docker.io/rocm/dev-ubuntu-24.04:7.2"),
    "xpu": Base("docker.io/intel/oneapi-runtime:2025.3.1-0-devel-ubuntu24.04"),
}
DEBIAN = "openssh-server openssh-client sudo python3 python3-venv iproute2 procps ca-certificates"
RPM = "openssh-server openssh-clients sudo python3 iproute procps-ng ca-certificates"
# policy-rc.d: sshd must not start while it is installed.
CONTAINERFILE = f"""FROM {{base}}
USER root
RUN if command -v apt-get >/dev/null; then \\
      printf '#!/bin/sh\\nexit 101\\n' >/usr/sbin/policy-rc.d && chmod 755 /usr/sbin/policy-rc.d \\
      && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends {DEBIAN} \\
      && apt-get clean && rm -rf /var/lib/apt/lists/* /usr/sbin/policy-rc.d; \\
    else dnf install -y -q {RPM} && dnf clean all; fi && rm -f /etc/ssh/ssh_host_*
"""


def node_image(base: str) -> str:
    """Return the name of the image of a base that has what every node needs. It changes with what it is made from."""
    text = CONTAINERFILE.format(base=BASES[base].image)
    return f"localhost/torchfleet-node:{base}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def kept_image(base: str, part: str) -> str:
    """Return the name of the image that is made of a node after setup. `part`: launcher or worker."""
    return f"localhost/torchfleet-{part}:{base}"


def make_node_image(engine: Engine, base: str, words: list[str]) -> str:
    """Make the image of a base unless it is here, and return its name. EngineFailed with the engine's last line.

    `words`: options for limits.
    """
    name = node_image(base)
    if engine.image(name):
        return name
    with tempfile.TemporaryDirectory(prefix="torchfleet-node-") as work:
        with open(os.path.join(work, "Containerfile"), "w") as file:
            file.write(CONTAINERFILE.format(base=base_image(engine, base)))
        engine.do("build", "--tag", name, "--file", os.path.join(work, "Containerfile"), *words, work)
    return name


def base_image(engine: Engine, base: str) -> str:
    """Return the image that the node's begins with: the one that is named, or the same from Debian's packages."""
    row = BASES[base]
    own = row.debian and engine.name == "podman" and not engine.rootless and shutil.which("mmdebstrap")
    if engine.image(row.image) or not own:
        return row.image
    try:
        return bootstrap(row.debian, "")
    except (PodmanError, OSError) as error:
        raise EngineFailed(f"node_container_base: {base} could not be made of Debian's packages: {error}") from None
