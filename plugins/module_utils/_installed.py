# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is installed in Python environments, by the names of files: nothing is run."""

from __future__ import annotations

import glob
import os


def site_packages(python: str) -> str:
    """Return a pattern of the directories in which an interpreter of a virtual environment has its packages."""
    return os.path.join(os.path.dirname(os.path.dirname(python)), "lib", "python3*", "*-packages")


def wheel_version(packages: str, name: str) -> str:
    """Return the version of an installed distribution from the name of its metadata, or an empty string."""
    found = sorted(glob.glob(os.path.join(packages, f"{name}-*.dist-info")))
    return os.path.basename(found[-1])[: -len(".dist-info")].rpartition("-")[2] if found else ""


def own_backends(python: str) -> str:
    """Return the version of our own backends and which they are ("0.1.0 mpi ccl"), an empty text where there are none.

    They lie beside torch's environment (role torch_backends).
    """
    beside = os.path.normpath(os.path.join(os.path.dirname(python), "..", "..", "backends", "bin", "python"))
    packages = site_packages(beside)
    version = wheel_version(packages, "torchfleet_backends")
    parts = {"mpi": ("torchfleet_backends/_*.so", "mpi4py"), "ccl": ("torchfleet_backends/oneccl",)}
    there = {name for name in parts for part in parts[name] if glob.glob(os.path.join(packages, part))}
    return " ".join([version, *(name for name in parts if name in there)]) if version else ""
