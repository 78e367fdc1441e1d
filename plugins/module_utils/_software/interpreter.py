# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Facts about the Python with which an environment is made. Another one may run this module, so a program asks it."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

NOTHING = "0.0"  # the version of a program that is no Python 3
# Runs on any Python 3, so that one that is too old differs from one that does not run at all.
PROBE = """
import importlib.util as util, json, os, sys, sysconfig
ensurepip = util.find_spec("ensurepip")
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "real": os.path.realpath(getattr(sys, "_base_executable", sys.executable)),
    "include": sysconfig.get_path("include"),
    "has_venv": util.find_spec("venv") is not None,
    "ensurepip": os.path.dirname(ensurepip.origin or "") if ensurepip else "",
}))
"""
PROBE_SECONDS = 60
SYSTEM_WHEELS = Path("/usr/share/python-wheels")  # Debian's directory for the wheels of ensurepip


class Interpreter(NamedTuple):
    """Facts about an interpreter."""

    version: str = NOTHING  # major and minor
    real: str = ""  # its path, without links
    include: str = ""  # the directory of its headers
    has_venv: bool = False
    ensurepip: str = ""  # the directory of that module, or empty

    @property
    def packages(self) -> Path:
        """The directory of packages, below an environment."""
        return packages_of(self.version)


def packages_of(version: str) -> Path:
    """Return the directory of packages below an environment, for a version such as 3.11."""
    return Path("lib", f"python{version}", "site-packages")


def probe(python: str) -> Interpreter:
    """Return the facts about an interpreter; version NOTHING if it is no Python 3 or does not run here."""
    try:
        answer = subprocess.check_output(
            [python, "-I", "-c", PROBE], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=PROBE_SECONDS
        )
        return Interpreter(**json.loads(answer))
    except (OSError, ValueError, TypeError, subprocess.SubprocessError):
        return Interpreter()


def number(version: str) -> tuple[int, ...]:
    """Return (3, 11, 2) of "3.11.2", to compare versions."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def is_supported(version: str, oldest: str, newest: str) -> bool:
    """Whether a version lies between two others, such as "3.10", or "" for no limit."""
    return not (oldest and number(version) < number(oldest)) and not (newest and number(version) > number(newest))


def bundled_pip(ensurepip: str) -> list[Path]:
    """Return the wheels of pip that come with an interpreter, given the directory of its ensurepip."""
    places = [Path(ensurepip, "_bundled")] if ensurepip else []
    return [wheel for place in [*places, SYSTEM_WHEELS] for wheel in sorted(place.glob("pip-*.whl"))]
