"""A rank of the fault matrix: writes numbered lines for as long as it may, and notes how many it has flushed.

Arguments: what to do when it is told to, and the rank that does it. It ignores SIGTERM, has a child in a session of its
own, and a daemon: forked twice, without the job's environment, its descriptors closed. It is told by files in PLACE:
`go`, do it; `done`, leave with status 0.
"""

import ctypes
import hashlib
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

DEED, CULPRIT = sys.argv[1], int(sys.argv[2])
RANK, JOB = int(os.environ["RANK"]), os.environ["TORCHFLEET_JOB_ID"]
PLACE = Path("/var/tmp/faults") / JOB
PAUSE_SECONDS = 0.05
FLOOD_LINES = 500_000
BINARY_BYTES = 24 << 20
ESCAPE = """import os, sys, time
if os.fork(): os.wait(), os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.closerange(0, 256)
time.sleep(1 << 20)
"""


def start(code: str, **env: str) -> subprocess.Popen[bytes]:
    """Start a child, with the job's name on its command line."""
    return subprocess.Popen([sys.executable, "-c", code, f"faults-of-{JOB}"], env=env or None)


def abort_mpi(library: ctypes.CDLL) -> None:
    """MPI_Abort(MPI_COMM_WORLD, 7), by the handle that Open MPI or MPICH has for it."""
    try:
        world = ctypes.byref(ctypes.c_char.in_dll(library, "ompi_mpi_comm_world"))
    except ValueError:
        world = ctypes.c_int(0x44000000)
    library.MPI_Abort(world, 7)


def mpi() -> ctypes.CDLL:
    """Return the MPI of this job's launcher, initialised."""
    for name in ("libmpi.so.40", "libmpi.so.12"):
        try:
            library = ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        library.MPI_Init(None, None)
        return library
    raise SystemExit("no MPI library")


def fill_shared_memory() -> None:
    """Write a file in /dev/shm that is larger than what is free there, by its mapping."""
    path = f"/dev/shm/{JOB}"
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    os.unlink(path)
    os.ftruncate(file, size := 1 << 30)
    mapped = mmap.mmap(file, size)
    for offset in range(0, size, mmap.PAGESIZE):
        mapped[offset] = 1


def fill_memory() -> None:
    """Take memory that is touched, until somebody minds."""
    taken = []
    while True:
        taken.append(b"x" * (1 << 20))


def fail() -> None:
    raise ValueError("the loss is not a number")


def act() -> None:
    """Do what this rank is there for."""
    deeds = {
        "exit": lambda: sys.exit(7),
        "early": lambda: sys.exit(0),
        "raise": fail,
        "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
        "segfault": lambda: ctypes.string_at(0),
        "abort": lambda: abort_mpi(library),
        "shm": fill_shared_memory,
        "memory": fill_memory,
    }
    deeds[DEED]()


def note(name: str, text: str) -> None:
    """Write what the driver compares, in place: a full disk has room for that."""
    with open(f"{PLACE}/{name}-{RANK}", "r+b", buffering=0) as file:
        file.write(text.encode())


def write_lines() -> None:
    """Write numbered lines; note the number of each that was flushed."""
    number, acted = 0, False
    while not (PLACE / "done").exists():
        flooding = DEED == "flood" and number < FLOOD_LINES
        for _line in range(1000 if flooding else 1):
            number += 1
            sys.stdout.write(f"line {number}\n")
        sys.stdout.flush()
        note("said", f"{number:012d}")
        if not acted and RANK == CULPRIT and (PLACE / "go").exists():
            acted = True
            act()
        time.sleep(0 if flooding else PAUSE_SECONDS)


def write_binary() -> None:
    """Write one line of random bytes that has no end; note what they hash to."""
    data = os.urandom(BINARY_BYTES).replace(b"\n", b"\0")
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
    note("hash", hashlib.sha256(data).hexdigest())
    while not (PLACE / "done").exists():
        time.sleep(PAUSE_SECONDS)


signal.signal(signal.SIGTERM, signal.SIG_IGN)
PLACE.mkdir(parents=True, exist_ok=True)
for of_rank, width in (("said", 12), ("hash", 64)):
    Path(f"{PLACE}/{of_rank}-{RANK}").write_bytes(b"0" * width)
library = mpi() if DEED == "abort" else None
start("import os, time; os.setsid(); time.sleep(1 << 20)")
start(ESCAPE, PATH=os.environ["PATH"]).wait()  # then its daemon alone is left: who counts processes sees no others
write_binary() if DEED == "binary" else write_lines()
