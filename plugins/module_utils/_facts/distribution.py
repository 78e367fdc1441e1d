# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The commands of each distribution, for messages: one table of packages and commands.

For an unknown distribution a command tries all package managers, or names the package.
"""

from __future__ import annotations

import re
from typing import Mapping

INSTALL = {
    "deb": "apt-get install -y",
    "rpm": "dnf install -y",
    "suse": "zypper --non-interactive install",
    "arch": "pacman -S --noconfirm",
}
# By ID of /etc/os-release, and by what ID_LIKE has of those that are not here.
FAMILIES: Mapping[str, str] = {
    **dict.fromkeys(("debian", "ubuntu", "linuxmint", "raspbian", "pop"), "deb"),
    **dict.fromkeys(("rhel", "centos", "rocky", "almalinux", "ol", "fedora", "amzn"), "rpm"),
    **dict.fromkeys(("opensuse", "opensuse-leap", "opensuse-tumbleweed", "sles", "suse"), "suse"),
    **dict.fromkeys(("arch", "manjaro"), "arch"),
}
# What is wanted, and the packages that have it.
PACKAGES: Mapping[str, Mapping[str, str]] = {
    "python": {"deb": "python3", "rpm": "python3", "suse": "python3", "arch": "python"},
    "compiler": {
        "deb": "g++ libpython3-dev",
        "rpm": "gcc-c++ python3-devel",
        "suse": "gcc-c++ python3-devel",
        "arch": "gcc python",
    },
    "build": {
        "deb": "build-essential perl autoconf automake libtool",
        "rpm": "gcc gcc-c++ make perl autoconf automake libtool",
        "suse": "gcc gcc-c++ make perl autoconf automake libtool",
        "arch": "base-devel perl",
    },
    "ssh_client": {"deb": "openssh-client", "rpm": "openssh-clients", "suse": "openssh-clients", "arch": "openssh"},
    "rdma": {
        "deb": "libibverbs1 ibverbs-providers rdma-core",
        "rpm": "libibverbs rdma-core",
        "suse": "libibverbs1 rdma-core",
        "arch": "rdma-core",
    },
    # verify tests each rail by perftest; ibv_devinfo of the other says what is wrong with a device.
    "rdma_tools": {
        "deb": "perftest ibverbs-utils",
        "rpm": "perftest libibverbs-utils",
        "suse": "perftest libibverbs-utils",
        "arch": "perftest",
    },
    "clock": dict.fromkeys(("deb", "rpm", "suse", "arch"), "chrony"),
    "ssh_server": {"deb": "openssh-server", "rpm": "openssh-server", "suse": "openssh-server", "arch": "openssh"},
}
HOLD = {
    "deb": "apt-mark hold {}",
    "rpm": "dnf versionlock add {}",
    "suse": "zypper addlock {}",
    "arch": "in /etc/pacman.conf: IgnorePkg = {}",
}


def family(os: str) -> str:
    """Return deb, rpm, suse or arch for an ID of /etc/os-release. Empty if it is not known."""
    return FAMILIES.get(os.lower(), "")


def install(what: str, os: str) -> str:
    """Return the command that installs something (a key of PACKAGES), as root."""
    names, known = PACKAGES[what], family(os)
    return " || ".join(f"{INSTALL[each]} {names[each]}" for each in ([known] if known else ("deb", "rpm", "suse")))


def sshd(verb: str, os: str) -> str:
    """Return the command that starts, restarts or reloads the SSH server, as root."""
    service = {"deb": "ssh", "": ""}.get(family(os), "sshd")
    return f"systemctl {verb} {service}" if service else f"systemctl {verb} sshd || systemctl {verb} ssh"


def hold(package: str, os: str) -> str:
    """Return the command that keeps the version of a package."""
    return HOLD.get(family(os), "have your package manager keep the version of {}").format(package)


def here(release: str = "/etc/os-release") -> str:
    """Return the ID of this machine's distribution, or of the known one that it is like. Empty if there is none."""
    try:
        with open(release, encoding="utf-8") as stream:
            fields = dict(re.findall(r'^(ID|ID_LIKE)="?([^"\n]*)"?$', stream.read(), re.MULTILINE))
    except (OSError, ValueError):
        return ""
    like: list[str] = [fields.get("ID", ""), *fields.get("ID_LIKE", "").split()]
    return next((name for name in like if family(name)), fields.get("ID", ""))


def words(os: str) -> dict[str, str]:
    """Return the commands that a mend may contain: install_python ..., start_ssh, restart_ssh, reload_ssh, hold_driver.

    The driver's package is the one that role cuda installs and holds; on older GPUs that is cuda-drivers.
    """
    installs = {f"install_{what}": install(what, os) for what in PACKAGES}
    verbs = {f"{verb}_ssh": sshd(verb, os) for verb in ("start", "restart", "reload")}
    return {**installs, **verbs, "hold_driver": hold("nvidia-open", os) + " (on older GPUs cuda-drivers)"}
