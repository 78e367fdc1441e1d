"""What this machine has for `make gpu`: GPUs, a PyTorch that lies there, an Open MPI with our backend."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ansible_collections.torchfleet.cluster.plugins.module_utils._facts import gpus, versions
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_targets import ask, without_code
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.software.gpu_vendors import (
    VENDORS,
    accelerators,
)

REPO = Path(__file__).parents[2]
HOME = Path("~/.torchfleet").expanduser()
USUAL = ("/opt/conda/bin/python", "/opt/venv/bin/python", "/opt/pytorch/bin/python")
ASK_SECONDS = 120
LOOK = """if True:
    import importlib.util, json, sys, torch, torch.distributed as dist
    kind = next((kind for kind in ("cuda", "xpu") if getattr(torch, kind).is_available()), "")
    device = getattr(torch, kind) if kind else None
    ours = bool(importlib.util.find_spec("torchfleet_backends"))
    print(json.dumps({
        "kind": kind, "count": device.device_count() if device else 0,
        "model": device.get_device_name(0) if device else "",
        "version": torch.__version__, "python": sys.version.split()[0],
        "nccl": dist.is_nccl_available(), "xccl": dist.is_backend_available("xccl"),
        "sklearn": bool(importlib.util.find_spec("sklearn")),
        "ours": ours,
        "shm": bool(ours and importlib.util.find_spec("torchfleet_backends._shm")),
    }))
"""


class Missing(Exception):
    """What `make gpu` needs and this machine does not have, in one line."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """This machine. `kind`: what PyTorch calls its GPUs; `mpirun`: of an Open MPI, empty where our mpi is not there."""

    python: str
    vendor: str
    kind: str
    count: int
    model: str
    torch: str
    backend: str
    sklearn: bool
    mpirun: str = ""
    ansible: str = ""  # ansible-playbook, where setup.yml ran here
    shm: bool = False  # whether backend shm is there

    @property
    def other_kind(self) -> str:
        """Return the kind of GPUs that it does not have."""
        return "xpu" if self.kind == "cuda" else "cuda"


def vendor_here(root: str = "/") -> str:
    """Return whose GPUs a program can open here; empty where there are none."""
    return next((vendor for vendor, count in accelerators(root).items() if count), "")


def look(vendor: str, given: str) -> Machine:
    """Return what there is; `given`: the interpreter to take (GPU_PYTHON), or nothing.

    Raises:
        Missing: no PyTorch here sees the GPUs.
    """
    tried = []
    for python in [given] if given else interpreters():
        found = asked(python)
        if found.get("count"):
            break
        tried.append(f"{python}: {'sees no GPU' if found else 'has no torch'}")
    else:
        told = "; ".join(tried) or "there is no python3"
        raise Missing(f"no PyTorch that sees the GPUs of {VENDORS[vendor].title} ({told}): say make gpu GPU_PYTHON=...")
    kind, mpirun = str(found["kind"]), HOME / "openmpi/bin/mpirun"
    ansible = shutil.which("ansible-playbook", path=f"{REPO / '.venv/bin'}:{os.environ.get('PATH', '')}") or ""
    set_up = any((HOME / name).exists() for name in ("pytorch/bin/python", "openmpi/bin/mpirun"))
    return Machine(
        python,
        vendor,
        kind,
        int(str(found["count"])),
        str(found["model"]),
        f"{found['version']}, Python {found['python']}",
        "xccl" if kind == "xpu" else "nccl" if found["nccl"] else "gloo",
        bool(found["sklearn"]),
        str(mpirun) if found["ours"] and mpirun.exists() else "",
        ansible if set_up else "",
        bool(found["shm"]),
    )


def interpreters() -> Iterator[str]:
    """Yield where a PyTorch may lie: ours, that of the search path, those of images."""
    there = [str(HOME / "pytorch/bin/python"), shutil.which("python3"), *USUAL]
    yield from dict.fromkeys(path for path in there if path and os.access(path, os.X_OK))


def asked(python: str) -> dict[str, object]:
    """Return what an interpreter says of its torch; nothing where there is none."""
    try:
        done = subprocess.run(
            [python, "-c", LOOK], capture_output=True, text=True, timeout=ASK_SECONDS, check=False, cwd=os.sep
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return {}
    return found if isinstance(found, dict) else {}


def facts(machine: Machine) -> list[str]:
    """Return what has to be told of the machine, a line each."""
    return [
        f"{machine.count} of {VENDORS[machine.vendor].title}: {machine.model}",
        f"driver: {versions.driver() or 'unknown'}; library: {versions.driver_library() or 'unknown'}",
        f"kernel: {platform.release()}; {platform.machine()}, {os.cpu_count()} cores",
        f"PyTorch {machine.torch}; NCCL {versions.nccl(machine.python) or 'of PyTorch itself'}",
    ]


def problems(machine: Machine) -> list[str]:
    """Return why jobs cannot work here: what setup.yml and train.yml would refuse."""
    found = [gpus.driver_mismatch(gpus.survey())]
    if machine.backend == "gloo":
        found.append(f"PyTorch {machine.torch} has no NCCL")
    if machine.kind == "cuda":
        targets = ask(machine.python)
        found += [f"PyTorch has no code for {target}" for target in without_code(targets)]
    return [problem for problem in found if problem]
