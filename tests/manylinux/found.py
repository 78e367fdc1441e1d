"""The wheels that `make wheels` has left, and containers with nothing but a Python."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ansible_collections.torchfleet.cluster.plugins.module_utils._lab import image
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.host import limits
from ansible_collections.torchfleet.cluster.plugins.module_utils._lab.podman import podman
from tests.driver import REPO

HERE = Path(__file__).parent
WHEELS = REPO / "wheels"
PROGRAM, FORKED = HERE / "program.py", HERE / "forked.py"


class Wheel(NamedTuple):
    """A wheel, and what its name says."""

    path: Path
    release: str  # of PyTorch
    python: str  # 3.11
    platforms: list[str]
    machine: str

    @property
    def title(self) -> str:
        """Return what a test of it is called by."""
        return f"torch{self.release}-{self.python}-{self.machine}"


def read(path: Path) -> Wheel:
    """Return what the name of a wheel says (PEP 427)."""
    _name, version, python, _abi, platform = path.stem.split("-")
    kinds = platform.split(".")
    machine = "aarch64" if kinds[0].endswith("_aarch64") else "x86_64"
    return Wheel(path, version.partition("+torch")[2], f"{python[2]}.{python[3:]}", kinds, machine)


def found(machine: str) -> list[Wheel]:
    """Return the wheels for a kind of machine."""
    wheels = [read(path) for path in sorted(WHEELS.glob("torchfleet_backends-*.whl"))]
    return [wheel for wheel in wheels if wheel.machine == machine]


def image_with(python: str) -> str:
    """Return an image of Debian with this Python, made unless it is there."""
    if python == "3.11":
        return image.bootstrap("bookworm", "")
    if python == "3.13":
        return image.bootstrap("trixie", "")
    return made("Containerfile", "python")


def image_with_qemu() -> str:
    """Return an image of Debian with QEMU, and Pythons for aarch64."""
    return made("Containerfile.aarch64", "qemu")


def made(file: str, name: str) -> str:
    """Return the image that a file describes, made unless it is there."""
    newer = image.bootstrap("trixie", "")
    tag = f"localhost/torchfleet-wheels-{name}:{image.digest(newer, (HERE / file).read_text())}"
    if not image.exists(tag):
        given = ["--build-arg", f"NEWER={newer}", *limits(), "--file", str(HERE / file)]
        podman("build", "--quiet", "--network", "host", "--tag", tag, *given, str(HERE))
    return tag


def run(tag: str, seen: list[Path], *argv: str) -> str:
    """Return what a command prints in a new container without a network, which sees some files of this machine.

    Both outputs, with what PyTorch's C++ logs.
    """
    mounts = [word for path in seen for word in ("--volume", f"{path}:{path}:ro")]
    options = ["--rm", "--network", "none", "--env", "TORCH_CPP_LOG_LEVEL=INFO", *limits(), *mounts]
    return podman("run", *options, tag, "sh", "-c", 'exec "$@" 2>&1', "sh", *argv)
