"""Fail for each reason that the book of causes can be shown, and record what that says: `make causes`.

Usage: reproduce.py [NAME ...]. The records are in tests/unit/recorded/causes, where the fast tests replay them. Needs
Linux, root (mounts of its own, a memory cgroup), and setup.yml with openmpi, mpich and intelmpi. It takes two minutes.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
REPO = HERE.parents[1]
RECORDED = REPO / "tests/unit/recorded/causes"
INSTALLED = Path.home() / ".torchfleet"
PYTHON = INSTALLED / "pytorch/bin/python"
LINES = 60  # of the end that are kept
SECONDS = 120
TOGETHER = ("gloo_peer_gone", "gloo_late", "gloo_sizes", "gloo_barrier", "ddp_other_model")  # of two ranks
MOUNTED = {
    "read_only": "mount -t tmpfs -o ro none /mnt",
    "torch_worker_shm": "mount -t tmpfs -o size=1m none /dev/shm",
}
MPI = ("mpi_abort",)
OPENMPI = INSTALLED / "openmpi/bin/mpirun"
MPICH = INSTALLED / "mpich/bin/mpiexec"
INTEL = INSTALLED / "intelmpi/bin/mpiexec.hydra"
LAUNCHERS = {
    "ompi_root": [OPENMPI, "--np", "1", "true"],
    "ompi_slots": [OPENMPI, "--np", "99", "true"],
    "ompi_program": [OPENMPI, "--np", "1", "/no/such/program"],
    "ompi_option": [OPENMPI, "--np", "1", "--no-such-option", "true"],
    "ompi_directory": ["env", "PRTE_MCA_prte_tmpdir_base=/dev/null", OPENMPI, "--np", "1", "true"],
    "ompi_host": [OPENMPI, "--np", "2", "-H", "node7.invalid:2", "true"],
    "mpich_nic": [MPICH, "-iface", "ens99", "-n", "1", "true"],
    "mpich_program": [MPICH, "-n", "1", "/no/such/program"],
    "mpich_option": [MPICH, "-n", "1", "-no-such", "true"],
    "mpich_host": [MPICH, "-n", "1", "-hosts", "node7.invalid", "-launcher", "ssh", "true"],
    "intel_nic": [INTEL, "-iface", "ens99", "-n", "1", "true"],
    "intel_program": [INTEL, "-n", "1", "/no/such/program"],
    "intel_host": [INTEL, "-n", "1", "-hosts", "node7.invalid", "-bootstrap", "ssh", "true"],
}


def main() -> None:
    """Run what was named, or all that the book names, and write what each said."""
    (RECORDED / "made").mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or made():
        rc, text = run(name)
        header = {"rc": rc if rc >= 0 else 128 - rc, "signal": -rc if rc < 0 else None, "launcher": name in LAUNCHERS}
        (RECORDED / f"made/{name}.txt").write_text(f"{json.dumps(header)}\n{plain(text)}")
        print(f"{name}: status {rc}", flush=True)


def made() -> Iterator[str]:
    """Yield the programs that the book names."""
    for path in sorted((REPO / "plugins/plugin_utils/_causes/entries").glob("*.yml")):
        for names in re.findall(r"^    made: \[?([a-z0-9_, ]+)\]?$", path.read_text(), re.MULTILINE):
            yield from names.split(", ")


def run(name: str) -> tuple[int, str]:
    """Return the status, -n for signal n, of a program that fails, and what it wrote."""
    if name in LAUNCHERS:
        variables = (
            {} if name == "ompi_root" else {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        )
        return output_of([str(word) for word in LAUNCHERS[name]], I_MPI_ROOT=str(INTEL.parents[1]), **variables)
    if name in TOGETHER:
        return together(name)
    if name in MOUNTED:
        return output_of(["unshare", "-m", "sh", "-c", f'{MOUNTED[name]} && exec "$@"', "sh", *program(name)])
    if name in MPI:
        return output_of(program(name), LD_LIBRARY_PATH=str(INSTALLED / "openmpi/lib"))
    return output_of(program(name))


def program(name: str) -> list[str]:
    """Return the words that start a program of ours."""
    of_torch = name.startswith(("torch_", "gloo_", "ddp_", "mpi_"))
    return [str(PYTHON), str(HERE / ("torch_failures.py" if of_torch else "failures.py")), name]


def output_of(argv: list[str], **variables: str) -> tuple[int, str]:
    """Run a program to its end."""
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        timeout=SECONDS, env=environment(**variables), check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def together(name: str) -> tuple[int, str]:
    """Run a program as two ranks; return what the first one says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    other = subprocess.Popen(
        program(name), env=environment(RANK="1", **place), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        return output_of(program(name), RANK="0", **place)
    finally:
        other.kill()
        other.wait()


def environment(**variables: str) -> dict[str, str]:
    """Return the environment of a program: this one, without what belongs to a rank."""
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {**keep, "LC_ALL": "C.UTF-8", "OMP_NUM_THREADS": "1", **variables}


def plain(text: str) -> str:
    """Return the end of an output without the places of this machine."""
    for place, name in ((REPO, "/home/me/torchfleet"), (Path.home(), "/home/me"), (sys.base_prefix, "/usr")):
        text = text.replace(str(place), name)
    text = re.sub(r"/\S*/lib/python3", "/usr/lib/python3", text)
    return "\n".join(text.replace(socket.gethostname(), "n1").splitlines()[-LINES:]) + "\n"


if __name__ == "__main__":
    main()
