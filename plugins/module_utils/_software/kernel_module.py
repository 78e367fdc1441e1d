# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The kernel module of an installed GPU driver: it is loaded if it can be, and a reboot that cannot help is refused."""

from __future__ import annotations

import glob
import os
import shutil
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import VENDORS

from .packages import ask, run_once, text_of
from .running_jobs import job_of_anybody, wait_for_end

TOLD = 200  # characters of what a program says


class Driver(NamedTuple):
    """A driver: the role that installs it, its kernel module, its package, and why the machine has to be rebooted."""

    role: str
    module: str
    package: str
    reason: str


def is_taken(module: str, root: str = "/") -> bool:
    """Whether a kernel module, or another one that has its GPUs, is loaded: then only a reboot exchanges it."""
    names = next((row.modules for row in VENDORS.values() if module in row.modules), (module,))
    return any(os.path.isdir(os.path.join(root, "sys/module", name)) for name in names)


def outlook(driver: Driver, may_reboot: bool, root: str = "/") -> str:
    """Return what would be done to have the driver's module loaded, for check mode."""
    reboot = "reboot the machine" if may_reboot else f"ask for a reboot (-e {driver.role}_allow_reboot=true allows it)"
    if is_taken(driver.module, root):
        return f"would {reboot}: {driver.reason}"
    return f"would load module {driver.module}, or {reboot} if modprobe fails: {driver.reason}"


def load(module: str, root: str = "/") -> tuple[bool, str]:
    """Load a kernel module. Return whether it was loaded now, and what modprobe says where that failed."""
    if is_taken(module, root):
        return False, ""
    done = run_once(["modprobe", module])
    return done.status == 0, "" if done.status == 0 else done.reason()[:TOLD]


def useless_reboot(driver: Driver, modprobe: str, root: str = "/") -> str:
    """Return why a reboot does not help: the machine has booted since the driver was installed. Empty if it may."""
    installed, booted = installed_at(driver.package, root), booted_at(root)
    if not installed or not booted or booted < installed:
        return ""
    state = " ".join(ask("dkms", "status").split())[:TOLD] if shutil.which("dkms") else ""
    words = [f"modprobe says {modprobe}"] * bool(modprobe) + [f"dkms status: {state or 'no module'}"]
    return (
        f"{driver.role}: a reboot does not help: the machine has booted since {driver.package} was installed, and "
        f"{driver.reason} all the same ({'; '.join(words)}): see the kernel's log (journalctl -k), build the module "
        "for this kernel (dkms autoinstall), and run this again"
    )


def booted_at(root: str = "/") -> int:
    """Return when the machine booted, in seconds since 1970; 0 if it does not tell."""
    rows = [line.split() for line in text_of(os.path.join(root, "proc/stat")).splitlines()]
    return next((int(row[1]) for row in rows if row[:1] == ["btime"] and row[1:2] and row[1].isdigit()), 0)


def installed_at(package: str, root: str = "/") -> int:
    """Return when a package was installed, in seconds since 1970; 0 if it was not, or nothing tells."""
    lists = [os.path.join(root, "var/lib/dpkg/info", name) for name in (f"{package}.list", f"{package}:*.list")]
    times = [int(os.stat(path).st_mtime) for pattern in lists for path in glob.glob(pattern)]
    if times or not package or not shutil.which("rpm"):
        return max(times, default=0)
    told = ask("rpm", "--query", "--queryformat", "%{INSTALLTIME}\n", package).split()
    return max((int(word) for word in told if word.isdigit()), default=0)


def job_refusal(role: str, suffers: str) -> str:
    """Return why a machine is neither rebooted nor given another driver now: a job runs here. Empty if none does."""
    job, owner = job_of_anybody()
    return f"{role}: {wait_for_end(job, suffers, owner)}" if job else ""
