"""What stands in for GPUs and for the repositories of their vendors: packages with the real names, and trees of sysfs.

Usage: python -m tests.lab.gpu_stubs DIRECTORY. DIRECTORY/stubs.tar is to be unpacked in /srv/torchfleet-stubs of a
node; DIRECTORY/versions.yml is a lockfile (torchfleet_versions) with these repositories and their key.
"""

from __future__ import annotations

import json
import platform
import sys
import tarfile
from pathlib import Path
from typing import Any

from tests.lab.stub_repository import make_all

STUBS = "/srv/torchfleet-stubs"
DRIVER, NEXT_DRIVER, NO_DRIVER = "580.95.05", "590.44.01", "580.126.09"
HEADERS = {"name": f"linux-headers-{platform.release()}", "version": "1-1"}
UNIT = "[Service]\nExecStart=/usr/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"
# What the tools print, as far as it is read: a line for each H100, an agent for the processor and each MI300X.
NVIDIA_SMI = (
    "#!/bin/sh\necho 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)'\necho 'GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1)'\n"
)
ROCMINFO = "#!/bin/sh\nprintf '  Name:                    %s\\n' 'AMD EPYC' gfx942 gfx942\n"


def package(name: str, version: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "version": version, **more}


def pinning(name: str, branch: str, packages: str) -> dict[str, Any]:
    """Return the package that makes apt take the versions of a branch, as NVIDIA has one for each."""
    text = f"Package: {packages}\nPin: version {branch}.*\nPin-Priority: 1001\n"
    alone = dict.fromkeys(("provides", "conflicts", "replaces"), name)
    return package(f"{name}-{branch}", "1-1", files={f"/etc/apt/preferences.d/{name}-{branch}": text}, **alone)


def service(name: str, version: str) -> dict[str, Any]:
    return package(name, version, files={f"/lib/systemd/system/{name}.service": UNIT})


def cuda() -> list[dict[str, Any]]:
    """Return NVIDIA's packages. The newest fabric manager of the branch is of a driver that there is not."""
    made = [pinning("nvidia-driver-pinning", branch, "nvidia-* cuda-drivers") for branch in ("580", "590")]
    for version in (f"{DRIVER}-1", f"{NEXT_DRIVER}-1"):
        smi = {"/usr/bin/nvidia-smi": NVIDIA_SMI}
        made.append(package("nvidia-driver", version, files=smi))
        made.append(package("nvidia-open", version, depends=f"nvidia-driver (= {version})"))
        made.append(package("cuda-drivers", version, depends=f"nvidia-driver (= {version})", conflicts="nvidia-open"))
        made.append(service("nvidia-persistenced", version))
    made += [service("nvidia-fabricmanager", f"{version}-1") for version in (DRIVER, NO_DRIVER, NEXT_DRIVER)]
    made += [package(f"cuda-toolkit-{version.replace('.', '-')}", f"{version}.2-1") for version in ("12.6", "13.0")]
    made.append(package("datacenter-gpu-manager-4-cuda13", "1:4.4.1-1", depends="datacenter-gpu-manager-4-core"))
    dcgm = {"/lib/systemd/system/nvidia-dcgm.service": UNIT}
    made.append(package("datacenter-gpu-manager-4-core", "1:4.4.1-1", files=dcgm))
    return made


def amdgpu() -> list[dict[str, Any]]:
    return [package("amdgpu-dkms", "1:6.16.13.31500000-1")]


def rocm() -> list[dict[str, Any]]:
    files = {"/opt/rocm/core-10.0/bin/rocminfo": ROCMINFO}
    return [package("amdrocm10.0-gfx942", "10.0.0-1", files=files)]


def classic() -> list[dict[str, Any]]:
    return [package("rocm", "7.2.4.70204-1", files={"/opt/rocm-7.2.4/bin/rocminfo": ROCMINFO})]


def foreign() -> list[dict[str, Any]]:
    """Return what another installation may have left on a machine."""
    return [package("nvidia-driver", "525.147.05-7"), package("amdgpu-install", "6.4.60400-1")]


def some() -> list[dict[str, Any]]:
    """Return the packages of nobody, for module vendor_packages itself."""
    made = [pinning("some-pinning", "1", "some-driver some-manager"), pinning("some-pinning", "2", "some-*")]
    made += [package("some-driver", version, depends="some-library") for version in ("1.5-1", "2.0-1")]
    made += [package("some-manager", version) for version in ("1:1.5-2", "1.9-1", "2.0-1")]
    return made


def repositories() -> dict[str, dict[str, Any]]:
    flat, dists = {"suite": "/"}, {"component": "main"}
    return {
        "cuda": {**flat, "packages": cuda()},
        "amdgpu": {**dists, "suite": "noble", "packages": amdgpu()},
        "rocm": {**dists, "suite": "stable", "packages": rocm()},
        "classic": {**dists, "suite": "noble", "packages": classic()},
        "distribution": {**flat, "packages": [HEADERS, package("some-library", "1-1"), *foreign()]},
        "some": {**flat, "packages": some()},
        "unsigned": {**flat, "packages": some(), "signed": False},
    }


# --- sysfs ----------------------------------------------------------------------------------------------------------


def root(*devices: tuple[str, str, str], **files: str) -> dict[str, str]:
    """Return the files of a machine with PCI devices (vendor, device, class), and others by their path."""
    tree = dict(files)
    for number, words in enumerate(devices):
        place = f"sys/bus/pci/devices/0000:{number + 1:02x}:00.0"
        tree |= {
            f"{place}/{name}": f"0x{word}\n" for name, word in zip(("vendor", "device", "class"), words, strict=True)
        }
    return tree


H100, V100, NVSWITCH = ("10de", "2330", "030200"), ("10de", "1db6", "030200"), ("10de", "22a3", "068000")
MI300X = ("1002", "74a1", "120000")
SECURE_BOOT = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"


def roots() -> dict[str, dict[str, str]]:
    """Return machines by name."""
    loaded = {"sys/module/nvidia/version": f"{DRIVER}\n", "proc/driver/nvidia/version": f"NVRM version: {DRIVER}\n"}
    old = {**loaded, "sys/module/nvidia/version": "575.57.08\n"}
    secure = {SECURE_BOOT: "\x06\x00\x00\x00\x01"}
    return {
        "h100": root(H100, H100, NVSWITCH, **loaded),
        "h100-new": root(H100, H100),
        "h100-nouveau": root(H100, H100, **{"sys/module/nouveau/refcnt": "1\n"}),
        "h100-old-module": root(H100, H100, **old, **{f"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{DRIVER}": ""}),
        "h100-secure": root(H100, H100, **secure),
        "v100": root(V100),
        "mi300x": root(MI300X, MI300X, **{"sys/module/amdgpu/version": "6.16.13\n", "dev/kfd": ""}),
        "mi300x-new": root(MI300X, MI300X),
        "mi300x-secure": root(MI300X, MI300X, **secure),
        "none": root(**{"os-release": 'ID=alpine\nVERSION_ID="3.20"\n'}),
    }


def write_roots(directory: Path) -> None:
    for name, files in roots().items():
        (directory / name / "sys").mkdir(parents=True)
        for path, text in files.items():
            file = directory / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)


# --- all of it ------------------------------------------------------------------------------------------------------


def locks(fingerprint: str) -> dict[str, Any]:
    """Return what a site with these repositories would lay over versions.yml."""
    keys = {"deb": {"url": f"file://{STUBS}/key.gpg", "fingerprint": fingerprint}}
    at = {name: {"address": f"file:{STUBS}/{name}", "keys": keys} for name in repositories()}
    noble = {"suite": "noble"}
    return {
        "cuda": {"repository": at["cuda"]},
        "rocm": {"repository": at["rocm"], "classic": {**at["classic"], **noble}},
        "amdgpu": {"repository": {**at["amdgpu"], **noble}},
    }


def make_stubs(directory: Path) -> str:
    """Make everything. Return the fingerprint of the key."""
    fingerprint = make_all(directory, repositories())
    other = {"other": {"suite": "stable", "component": "main", "packages": rocm()}}
    make_all(directory / "somebody", other)
    (directory / "somebody/public/other").rename(directory / "public/other")
    write_roots(directory / "public/roots")
    (directory / "versions.yml").write_text(json.dumps(locks(fingerprint)))
    with tarfile.open(directory / "stubs.tar", "w") as tar:
        tar.add(directory / "public", arcname=".")
    return fingerprint


if __name__ == "__main__":
    make_stubs(Path(sys.argv[1]))
