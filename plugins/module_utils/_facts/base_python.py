# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The interpreter that makes the Python environment of the ranks."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
import sysconfig

from ansible_collections.torchfleet.cluster.plugins.module_utils._software.standalone import newest, usual

from .reading import output_of

ABOUT_PYTHON = (
    "import importlib.util as u, json, sys, sysconfig; "
    "print(json.dumps({'version': '.'.join(map(str, sys.version_info[:3])), 'venv': bool(u.find_spec('venv')), "
    "'headers': sysconfig.get_path('include')}))"
)


def python_facts(path: str, home: str = "") -> dict[str, object]:
    """Return what is known of the interpreter that torch is installed with.

    path, version, venv (can it make environments), headers (are its C headers there), standalone (the version of the
    one below torchfleet's home, which is taken if no path is given).
    """
    standalone = newest(home) if home else ""
    return {**about_python(usual(path, home)), "standalone": standalone}


def about_python(path: str) -> dict[str, object]:
    """Return path, version, venv and headers of an interpreter."""
    if path == sys.executable:  # which need not be started to be asked
        venv, headers = bool(importlib.util.find_spec("venv")), sysconfig.get_path("include")
        return {"path": path, "version": platform.python_version(), "venv": venv, "headers": has_headers(headers)}
    try:
        about = json.loads(output_of([path, "-I", "-c", ABOUT_PYTHON]))
        return {"path": path, **about, "headers": has_headers(about["headers"])}
    except (ValueError, KeyError, TypeError):
        return {"path": path, "version": "", "venv": False, "headers": False}


def has_headers(directory: str) -> bool:
    """Whether a directory has the headers of an interpreter."""
    return os.path.exists(os.path.join(directory, "Python.h"))
