"""Programs that fail, each for one reason: `failures.py NAME`. reproduce.py runs them and records what they say.

Each is a function that is the rank of a job as a user might write it. It takes nothing and does not return. Standard
library only; those of torch are in torch_failures.py.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

NOBODY = 65534


def limit(what: int, value: int) -> None:
    """Set a limit of this process."""
    resource.setrlimit(what, (value, value))


# --- Python and the machine -----------------------------------------------------------------------------------------


def missing_module() -> None:
    importlib.import_module("a_package_that_nobody_installed")


def missing_name() -> None:
    exec("from socket import a_name_of_another_version")


def syntax() -> None:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write("print 'of Python 2'\n")
        script.flush()
        os.execv(sys.executable, [sys.executable, script.name])


def arguments() -> None:
    import argparse

    parser = argparse.ArgumentParser("train.py")
    parser.add_argument("--lr")
    parser.parse_args(["--learning-rate", "3"])


def memory() -> None:
    limit(resource.RLIMIT_AS, 1 << 28)
    bytearray(1 << 30)


def killed() -> None:
    """As the kernel does when a machine or a cgroup has no memory left."""
    os.kill(os.getpid(), signal.SIGKILL)


def cgroup_memory() -> None:
    """Take more memory than the cgroup has, version 1 (needs root)."""
    group = Path("/sys/fs/cgroup/memory") / f"torchfleet-causes-{os.getpid()}"
    group.mkdir()
    (group / "memory.limit_in_bytes").write_text(str(64 << 20))
    child = os.fork()
    if child == 0:
        (group / "cgroup.procs").write_text(str(os.getpid()))
        bytearray(os.urandom(1 << 20) * 512)
    status = os.waitpid(child, 0)[1]
    group.rmdir()
    os.kill(os.getpid(), os.WTERMSIG(status))


def segfault() -> None:
    ctypes.string_at(0)


def bus_error() -> None:
    with tempfile.TemporaryFile() as file:
        file.truncate(mmap.PAGESIZE)
        pages = mmap.mmap(file.fileno(), mmap.PAGESIZE)
        file.truncate(0)
        print(pages[0])


def illegal_instruction() -> None:
    page = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(b"\x0f\x0b")  # ud2 of x86
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()


def aborted() -> None:
    os.abort()


def floating_point() -> None:
    os.kill(os.getpid(), signal.SIGFPE)


def terminated() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def cpu_time() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (1, 2))  # at the hard limit it is SIGKILL
    while True:
        pass


def disk_full() -> None:
    with open("/dev/full", "w") as file:
        file.write("a checkpoint")


def file_too_large() -> None:
    limit(resource.RLIMIT_FSIZE, 4096)
    with tempfile.TemporaryFile() as file:
        file.write(bytes(1 << 20))


def open_files() -> None:
    limit(resource.RLIMIT_NOFILE, 32)
    for _ in range(64):
        os.dup(os.open(os.devnull, os.O_RDONLY))


def threads() -> None:
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    limit(resource.RLIMIT_NPROC, 1)
    threading.Thread(target=time.sleep, args=(1,)).start()


def processes() -> None:
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    limit(resource.RLIMIT_NPROC, 1)
    os.fork()


def no_file() -> None:
    open("/data/train/images-0001.tar").close()


def denied() -> None:
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    open("/etc/shadow").close()


def read_only() -> None:
    """Write to a mount that is read-only (needs root, in a mount namespace: reproduce.py makes it)."""
    open("/mnt/checkpoint.pt", "w").close()


def input_output() -> None:
    """Read what the kernel cannot give: the first page of this process."""
    with open("/proc/self/mem", "rb") as memory:
        memory.read(1)


def no_host() -> None:
    socket.create_connection(("node7.invalid", 22))


def refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        socket.create_connection(taken.getsockname())


def unreachable() -> None:
    socket.create_connection(("255.255.255.255", 9))


def address_taken() -> None:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        one.listen()
        other.bind(one.getsockname())


def encoding() -> None:
    sys.stdout.reconfigure(encoding="ascii")  # type: ignore[union-attr]
    print("épochs")


def shared_library() -> None:
    ctypes.CDLL("libcudart.so.99")


def other_architecture() -> None:
    with tempfile.TemporaryDirectory() as place:
        program = Path(place) / "train"
        program.write_bytes(b"\x7fNOT a program of this machine")
        program.chmod(0o755)
        subprocess.run([program], check=True)


def line_ends() -> None:
    with tempfile.TemporaryDirectory() as place:
        script = Path(place) / "train.sh"
        script.write_bytes(b"#!/usr/bin/env bash\r\necho hello\r\n")
        script.chmod(0o755)
        sys.exit(subprocess.run([script], check=False).returncode)


def command_not_found() -> None:
    sys.exit(subprocess.run(["sh", "-c", "nvidia-smy"], check=False).returncode)


def pickling() -> None:
    import multiprocessing

    multiprocessing.set_start_method("spawn")
    multiprocessing.Process(target=lambda: None).start()


def main_guard() -> None:
    code = "import multiprocessing\nmultiprocessing.get_context('spawn').Process(target=print).start()\n"
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(code)
        script.flush()
        sys.exit(subprocess.run([sys.executable, script.name], check=False).returncode or 1)


def recursion() -> None:
    recursion()


if __name__ == "__main__":
    globals()[sys.argv[1]]()
