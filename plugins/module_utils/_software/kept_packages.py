# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Packages of a linked environment that no installation may exchange: torch, and the libraries that its build pins."""

from __future__ import annotations

import re
from pathlib import Path

from .environment import Request, canonical, installed
from .environment_files import NotMadeError, run

# What PyTorch publishes beside each build of torch, compiled for that one ("Get Started", pytorch.org). Another build
# is installed without an error, for pip compares no more than the version of torch, and fails when it is imported.
WITH_TORCH = ("torchaudio", "torchvision")
IMPORT = """
import importlib, sys, torch
try:
    importlib.import_module(sys.argv[1])
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""
PIN = re.compile(r"Requires-Dist: *([A-Za-z0-9._-]+) *\(?==")  # in METADATA: of CUDA's libraries, Triton


def kept_versions(request: Request) -> dict[str, str]:
    """Return the version of each package that is kept, by its name. NotMadeError if the environment has another."""
    if not request.kept:
        return {}
    linked = Path(request.linked_environment)
    there = installed(linked, request.interpreter.version)
    names = []
    for pin in request.kept:
        name, _equals, version = pin.partition("==")
        has = there.get(canonical(name)) or "none"
        if has not in (version, version.partition("+")[0]):  # PyPI's torch says 2.13.0+cu130 and is listed as 2.13.0
            raise NotMadeError(f"{linked} should have {pin}, and has {has}: ansible-playbook setup.yml")
        names += [canonical(name), *pinned_by(linked / request.interpreter.packages, name, has)]
    return {name: there[name] for name in names if name in there}


def pinned_by(packages: Path, name: str, version: str) -> list[str]:
    """Return the packages that an installed one needs in one exact version."""
    text = (packages / f"{name}-{version}.dist-info" / "METADATA").read_text(encoding="utf-8", errors="replace")
    return [canonical(pin) for pin in PIN.findall(text)]


def keep_option(request: Request, place: str) -> list[str]:
    """Return the options with which pip exchanges none of them; `place` is a directory for the file that it reads."""
    kept = kept_versions(request)
    if not kept:
        return []
    file = Path(place, "kept.txt")
    file.write_text("".join(f"{name}=={version}\n" for name, version in sorted(kept.items())), encoding="utf-8")
    return ["--constraint", str(file), "--progress-bar", "off", "-v"]  # not --quiet: pip says who asks for what


def refuse_exchanged(request: Request) -> None:
    """NotMadeError if one of them was installed all the same."""
    there = installed(request.place, request.interpreter.version)
    for name, version in kept_versions(request).items():
        if name in there:
            raise NotMadeError(f"{name} {there[name]} would hide {version} of {request.linked_environment}")


def refuse_unfit(request: Request) -> None:
    """NotMadeError if a package that was installed is compiled for another build of torch than the kept one."""
    there = installed(request.place, request.interpreter.version) if request.kept else {}
    python = str(request.place / "bin" / "python")
    for name in WITH_TORCH:
        if name in there:
            torch = ", ".join(request.kept)
            asks = "" if request.torch_packages else f"; name {name} itself among the requirements"
            what = f"{name} {there[name]} cannot be used with {torch}{asks}, or bring its wheel for that build of torch"
            run([python, "-I", "-c", IMPORT, name], what)
