# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What is installed in Python environments, by the names of files: nothing is run."""

from __future__ import annotations

import glob
import os
from typing import Iterator

from .launchers import LAUNCHERS, MPIS

# The MPIs that each part of backend mpi is for, which is compiled for an ABI.
MPI_PARTS = {
    f"torchfleet_backends/{part}": tuple(name for name in MPIS if LAUNCHERS[name].part == part)
    for part in dict.fromkeys(LAUNCHERS[name].part for name in MPIS)
}
LINK = "torchfleet-linked.pth"  # names the packages of another environment (environment_files.py)
LINK_BYTES = 64 << 10
SHM_PART = "torchfleet_backends/_shm.so"  # what backend shm is compiled to


def site_packages(python: str) -> str:
    """Return a pattern of the directories in which an interpreter of a virtual environment has its packages."""
    return os.path.join(os.path.dirname(os.path.dirname(python)), "lib", "python3*", "*-packages")


def all_packages(python: str) -> Iterator[str]:
    """Yield the directories of an interpreter's packages, its own first, then those it is linked to."""
    own = site_packages(python)
    yield own
    for path in sorted(glob.glob(os.path.join(own, LINK))):
        try:
            with open(path, encoding="utf-8") as file:
                yield from file.read(LINK_BYTES).splitlines()
        except (OSError, ValueError):
            continue


def wheel_version(packages: str, name: str) -> str:
    """Return the version of an installed distribution from the name of its metadata, or an empty string."""
    found = sorted(glob.glob(os.path.join(packages, f"{name}-*.dist-info")))
    return os.path.basename(found[-1])[: -len(".dist-info")].rpartition("-")[2] if found else ""


def own_backends(python: str) -> str:
    """Return the version of our own backends and which they are, an empty text where there are none.

    Of mpi also with which MPIs it works: "0.1.0 mpi mpi:openmpi shm ccl". They lie beside torch's environment (role
    torch_backends).
    """
    backends_python = os.path.normpath(os.path.join(os.path.dirname(python), "..", "..", "backends", "bin", "python"))
    packages = site_packages(backends_python)
    version = wheel_version(packages, "torchfleet_backends")
    found = [part for part in MPI_PARTS if glob.glob(os.path.join(packages, part))]
    mpis = [name for part in found for name in MPI_PARTS[part]]
    mpi = ["mpi", *(f"mpi:{name}" for name in dict.fromkeys(mpis))] if mpis else []
    shm = ["shm"] if glob.glob(os.path.join(packages, SHM_PART)) else []
    ccl = ["ccl"] if glob.glob(os.path.join(packages, "torchfleet_backends", "oneccl")) else []
    return " ".join([version, *mpi, *shm, *ccl]) if version else ""
