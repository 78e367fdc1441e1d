# Copyright: (c) 2026, The torchfleet authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""What one node has, read without changing anything: the facts a plan is made of."""

from __future__ import annotations

import errno
import glob
import hashlib
import itertools
import os
import pwd
import re
import socket
import stat
import subprocess
import sys
from typing import Iterable, Sequence, cast

from ..basics import job_directory
from ..basics.home import home_path
from ..basics.job_directory import JOB_ID, JobDir, fits
from ..processes import processes
from ..software import program_environment
from ..software.gpu_targets import gpu_targets
from ..software.gpu_vendors import BUILDS, accelerators
from ..software.installed import own_backends
from ..software.launcher_programs import find_launcher, refusal
from ..software.launchers import LAUNCHERS, STARTED_BY_SLURMD
from ..software.slurm_programs import slurm_programs
from ..stores import data_store
from ..stores.data_store import free_bytes
from ..types.records import (
    ContainerFacts,
    Fabric,
    FoundLauncher,
    ImageFacts,
    JobState,
    LeftProcess,
    NodeFacts,
    RunningJob,
    Seat,
)
from ..wire.node_form import ROWS
from ..wire.protocol import SurveyRequest
from .leftovers import leftovers

PORTS = range(20000, 30000)  # below the ephemeral range, where an outgoing connection could take the port first
PLUGINS = {"ccl": "oneccl_bindings_for_pytorch"}  # of torch: the module that brings a backend
TORCH_DEFAULT_PORT = 29500  # leftovers of other tools sit here (pytorch#126510)


def survey(request: SurveyRequest) -> NodeFacts:
    """Return the facts of this node."""
    home = home_path(request["home"])
    container, found = where_ranks_run(request, home)
    return {
        **seat(home),
        "cwd": os.getcwd(),
        "uid": os.getuid(),
        "tmpdir": os.environ.get("TMPDIR", ""),
        **found,
        "container": container,
        "hostname": socket.gethostname().partition(".")[0],
        "machine": os.uname().machine,
        "nics": sorted(os.listdir("/sys/class/net")),
        "slurm": slurm_programs(found["launcher"]["path"]) if request["launcher"] in STARTED_BY_SLURMD else None,
        "free_bytes": free_bytes(home),
        "data": data_store.look(home, request.get("data", "")),
        "script": digest_of(request.get("script", "")),
        "port": free_port(request["port"], request["ports"]),
        "clock_offset": 0.0,
        "lost_address": lost_address(fabric(home)),
        "program": program_environment.look(home, request.get("program", ""), found["python_wanted"], found["torch"]),
        **job_state(home),
    }


def where_ranks_run(request: SurveyRequest, home: str) -> tuple[ContainerFacts | None, ImageFacts]:
    """Return what is known of the image and what is in it; None and what is on this node for ranks in no image."""
    wanted = request.get("container")
    if not wanted:
        return None, image_facts(request, home, os.path.join(home, "pytorch", "bin", "python"))
    from ..containers import containers  # late: few jobs have one

    container, inner = containers.look(wanted, request, home)
    return container, inner or nothing_there(request["python"])


def image_facts(request: SurveyRequest, home: str, usual: str) -> ImageFacts:
    """Return what ranks find here: on this node, or in the image that this process runs in.

    `usual`: the interpreter, unless the request names one.
    """
    python, seen = program_environment.interpreter(request["python"] or usual), accelerators()
    torch = torch_build(python)
    return {
        "interpreter": sys.executable,
        "glibc": has_glibc(),
        "python": python if os.access(python, os.X_OK) else "",
        "python_wanted": python,
        "torch": torch,
        "accelerators": seen,
        "gpu_targets": gpu_targets(python, torch, seen),
        "launcher": launcher(request, home, python),
        "backends": backends(python, request["backend"]),
        "activation": program_environment.activation(python) if request["python"] else None,
    }


def has_glibc() -> bool:
    """Whether the C library here is glibc: others, as Alpine's musl, know no such name (confstr(3))."""
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (OSError, ValueError):
        return False


def nothing_there(python: str) -> ImageFacts:
    """Return the facts of an image that could not be looked at."""
    return {
        "interpreter": "",
        "glibc": True,
        "python": "",
        "python_wanted": python,
        "torch": None,
        "accelerators": {},
        "gpu_targets": {"torch": [], "gpus": []},
        "launcher": {"path": "", "version": "", "wanted": "", "said": "", "refused": ""},
        "backends": [],
        "activation": None,
    }


def digest_of(path: str) -> str:
    """Return the sha256 of a file, empty if there is none that can be read."""
    if not path:
        return ""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
            seen = hashlib.sha256()
            for block in iter(lambda: file.read(1 << 20), b""):
                seen.update(block)
    except OSError:
        return ""
    return seen.hexdigest()


def seat(home: str) -> Seat:
    """Return what a host file takes of this node: home, cores, accelerators and the fabric."""
    return {
        "home": home,
        "cores": len(os.sched_getaffinity(0)),
        "accelerators": accelerators(),
        "fabric": fabric(home),
    }


def ssh_config(home: str) -> str:
    """Return the ssh configuration of the mesh on this node (role ssh_mesh writes it)."""
    return os.path.join(home, "ssh", "config")


def fabric(home: str) -> Fabric | None:
    """Return what role fabric chose for this node, or None if it did not run here. Who takes it checks its fields."""
    found = JobDir(home).read("fabric.json")
    return cast(Fabric, found) if isinstance(found, dict) else None


def lost_address(choice: Fabric | None) -> str:
    """Return an address of what role fabric chose that this node no longer has; empty if it has all."""
    seats: list[object] = [choice, choice.get("daemons")] if choice else []
    for seat in seats:
        address = seat.get("address") if isinstance(seat, dict) else None
        if isinstance(address, str) and not is_here(address):
            return address
    return ""


def is_here(address: str) -> bool:
    """Whether this node has an address: only then can a socket be bound to it. True for what is no address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address, 0))
        except OSError as error:
            return error.errno != errno.EADDRNOTAVAIL
    return True


def job_state(home: str) -> JobState:
    """Return the ids of known jobs, those that run now, and what jobs that are over left behind."""
    left: list[LeftProcess] = [
        {"pid": process.pid, "job_id": job_id, "command": processes.command_of(process.pid)}
        for process, job_id in leftovers(home)
    ]
    known = job_directory.jobs(home)
    return {"jobs": [job.job_id for job in known], "running": running_jobs(home, known)[:ROWS], "leftovers": left}


def running_jobs(home: str, known: Sequence[JobDir]) -> list[RunningJob]:
    """Return job_id and owner of each job that has ranks on this node now."""
    return list(jobs_here(home, known).values())


def jobs_here(home: str, known: Sequence[JobDir]) -> dict[str, RunningJob]:
    """Return the rows of running_jobs() by the directory of the job.

    Jobs of another home, mostly another user's, are known by the mark of their processes, where this user may read it.
    """
    found = {
        os.path.realpath(job.path): row(job.job_id, job.path) if has_ranks(job) else None
        for job in known
        if job.running()
    }
    for process, mark in processes.marked():
        path = os.path.realpath(mark.job_dir or os.path.join(home, "jobs", mark.job_id))
        if path not in found and JOB_ID.match(mark.job_id) and JobDir(path).running():
            own_home = os.path.dirname(path) == os.path.realpath(os.path.join(home, "jobs"))
            found[path] = row(mark.job_id, f"/proc/{process.pid}", own_home)
    return {path: job for path, job in found.items() if job}


def has_ranks(job: JobDir) -> bool:
    """Whether a job has ranks on this node, and not only its launcher. One that is being staged has.

    One that is over has none, though its lock is held until its files were fetched.
    """
    if job.is_over():
        return False
    order = job.read_order()
    return bool(order["ranks"]) if fits(order, {"ranks": list}) else True


def row(job_id: str, path: str, own_home: bool = True) -> RunningJob:
    """Return the id of a job and who owns it: the user of a path, by name if it has one."""
    try:
        uid = os.stat(path).st_uid
    except OSError:  # it is gone by now
        return {"job_id": job_id, "owner": "?", "own_home": own_home}
    try:
        owner = pwd.getpwuid(uid).pw_name
    except KeyError:
        owner = str(uid)
    return {"job_id": job_id, "owner": owner, "own_home": own_home}


def torch_build(python: str) -> dict[str, str] | None:
    """Return version and BUILDS of the torch that an interpreter has, without importing it (that takes 1 s)."""
    prefix = os.path.dirname(os.path.dirname(python))
    found = sorted(glob.glob(os.path.join(prefix, "lib", "python3*", "*-packages", "torch", "version.py")))
    path = found[0] if found else _ask_for_torch(python)
    if not path:
        return None
    with open(path) as file:
        text = file.read()
    build = {}
    for key, name in (("version", "__version__"), *zip(BUILDS, BUILDS)):
        match = re.search(rf"^{name}\b[^=]*=\s*'([^']*)'", text, re.MULTILINE)
        build[key] = match.group(1) if match else ""
    return build


def launcher(request: SurveyRequest, home: str, python: str) -> FoundLauncher:
    """Return what find_launcher() does, and what the launcher says of launcher_args that it does not take."""
    name = request["launcher"]
    if not LAUNCHERS[name].programs:  # it is a part of torch
        version = (torch_build(python) or {}).get("version", "")
        path = python if version else ""
        found: FoundLauncher = {"path": path, "version": version, "wanted": python, "said": "", "refused": ""}
    else:
        found = find_launcher(name, request["launcher_path"], home)
    return {**found, "refused": refusal(name, found, request["launcher_args"])}


def backends(python: str, wanted: str) -> list[str]:
    """Return the backends that we added to an interpreter's torch, and the wanted one if its torch can start it.

    `wanted` is empty for a backend that torch need not be asked for. Our own are known by their files; importing torch
    to ask takes seconds.
    """
    own = own_backends(python).split()[1:]
    return own if not wanted or wanted in own else [*own, *ask_torch(python, wanted)]


def ask_torch(python: str, backend: str) -> list[str]:
    """Return a backend if an interpreter's torch can start it, by importing that.

    Our own mpi says that it is there only where the job's backend is mpi.
    """
    code = """if True:
        import importlib.util, sys, torch.distributed as dist
        backend, plugin = sys.argv[1:]
        there = dist.is_available() and dist.is_backend_available(backend)
        print(backend if there or plugin and importlib.util.find_spec(plugin) else "")
    """
    argv = [python, "-c", code, backend, PLUGINS.get(backend, "")]
    env = {**os.environ, "TORCHFLEET_BACKEND": backend}
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.split()


def _ask_for_torch(python: str) -> str:
    """Return the path of torch/version.py for an interpreter that is not laid out as a venv, or an empty string."""
    code = "import importlib.util as u; s = u.find_spec('torch'); print(s.origin if s else '')"
    try:
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    origin = done.stdout.strip()
    path = os.path.join(os.path.dirname(origin), "version.py")
    return path if origin and os.path.isfile(path) else ""


def port_is_free(port: int) -> bool:
    """Whether a TCPStore could listen on the port: it takes all interfaces (pytorch#173909).

    Connections of a job that is just over do not keep it from that for a minute: it sets SO_REUSEADDR (socket.cpp).
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def free_port(wanted: int | None, ports: Sequence[int] | None) -> int | None:
    """Return the wanted port if it is free, else a random free one, of `ports` (first and last) if they are given.

    There launchers and MPI take the lower ones first, so the upper half is tried before. None if none is free.
    """
    if wanted and port_is_free(wanted):
        return wanted
    first, last = ports or (PORTS[0], PORTS[-1])
    middle = first + (last - first) // 2 if ports else first
    tries = itertools.chain(from_anywhere(range(middle, last + 1)), from_anywhere(range(first, middle)))
    return next((port for port in tries if port != TORCH_DEFAULT_PORT and port_is_free(port)), None)


def from_anywhere(ports: range) -> Iterable[int]:
    """Return these ports in turn, from a random one on."""
    start = int.from_bytes(os.urandom(4), "big") % max(1, len(ports))
    return itertools.chain(ports[start:], ports[:start])
