"""Programs that fail, each for one reason: `failures.py NAME`. reproduce.py runs them and records what they say.

Each is a function that is the rank of a job as a user might write it. It takes nothing and does not return. Standard
library only, but for those that import torch themselves.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

NOBODY = 65534
RANK = int(os.environ.get("RANK", "0"))


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


# --- torch in one process -------------------------------------------------------------------------------------------


def torch_no_cuda() -> None:
    import torch

    torch.ones(1).cuda()


def torch_no_nccl() -> None:
    import torch.distributed

    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.distributed.init_process_group("nccl")


def torch_no_backend() -> None:
    import torch.distributed

    os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.distributed.init_process_group("ccl")


def torch_no_environment() -> None:
    import torch.distributed

    torch.distributed.init_process_group("gloo")


def torch_not_initialized() -> None:
    import torch
    import torch.distributed

    torch.distributed.all_reduce(torch.ones(1))


def torch_twice() -> None:
    alone()
    alone()


def torch_shapes() -> None:
    import torch

    torch.nn.Linear(3, 4)(torch.ones(2, 5))


def torch_dtypes() -> None:
    import torch

    torch.nn.Linear(3, 4)(torch.ones(2, 3, dtype=torch.float64))


def torch_memory() -> None:
    import torch

    limit(resource.RLIMIT_AS, 8 << 30)
    torch.ones(1 << 34)


def torch_index() -> None:
    import torch

    torch.nn.Embedding(10, 3)(torch.tensor([10]))


def torch_in_place() -> None:
    import torch

    weight = torch.ones(3, requires_grad=True)
    exponent = weight.exp()
    exponent.add_(1)
    exponent.sum().backward()


def torch_second_backward() -> None:
    import torch

    loss = torch.ones(3, requires_grad=True).exp().sum()
    loss.backward()
    loss.backward()


def torch_torn_checkpoint() -> None:
    import torch

    with tempfile.NamedTemporaryFile() as file:
        torch.save(torch.ones(1000), file.name)
        os.truncate(file.name, 2000)
        torch.load(file.name)


def torch_other_model() -> None:
    import torch

    torch.nn.Linear(3, 4).load_state_dict(torch.nn.Linear(3, 5).state_dict())


def torch_weights_only() -> None:
    import torch

    with tempfile.NamedTemporaryFile() as file:
        torch.save({"where": Path("/data")}, file.name)
        torch.load(file.name)


def torch_worker_killed() -> None:
    import torch.utils.data

    list(torch.utils.data.DataLoader(Kills(), num_workers=1))


def torch_worker_raises() -> None:
    import torch.utils.data

    list(torch.utils.data.DataLoader(Raises(), num_workers=1))


def torch_worker_shm() -> None:
    """Send more through /dev/shm than it holds (needs root, in a mount namespace: reproduce.py makes it)."""
    import torch.utils.data

    list(torch.utils.data.DataLoader(Large(), num_workers=1))


def torch_unused() -> None:
    import torch

    alone()
    model = torch.nn.parallel.DistributedDataParallel(two_heads())
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()


def torch_port() -> None:
    import torch.distributed

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        torch.distributed.TCPStore("127.0.0.1", taken.getsockname()[1], 1, True)


def torch_nobody_joins() -> None:
    import datetime

    import torch.distributed

    torch.distributed.TCPStore("127.0.0.1", 0, 2, True, datetime.timedelta(seconds=1))


def torch_no_store() -> None:
    import datetime

    import torch.distributed

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        torch.distributed.TCPStore("127.0.0.1", free.getsockname()[1], 2, False, datetime.timedelta(seconds=1))


def torch_no_compiler() -> None:
    import torch

    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()
    import torch._inductor.config

    torch._inductor.config.cpp.cxx = ("/no/such/compiler",)
    torch.compile(lambda x: x * 2 + 1)(torch.ones(3))


def gloo_no_nic() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "ens99"
    alone()


# --- MPI in one process, by Open MPI's library ---------------------------------------------------------------------


def mpi() -> tuple[ctypes.CDLL, Callable[[str], object]]:
    """Return Open MPI, and what gives the address of a thing that its header names."""
    library = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    library.MPI_Init(None, None)
    return library, lambda name: ctypes.byref(ctypes.c_char.in_dll(library, f"ompi_mpi_{name}"))


def mpi_abort() -> None:
    library, named = mpi()
    library.MPI_Abort(named("comm_world"), 7)


# --- torch in two processes, which reproduce.py starts with RANK, WORLD_SIZE and a rendezvous -----------------------


def gloo_peer_gone() -> None:
    together()
    if RANK == 1:
        os._exit(3)
    sum_up(1)


def gloo_late() -> None:
    together(seconds=2)
    if RANK == 1:
        time.sleep(6)
    sum_up(1)


def gloo_sizes() -> None:
    together(seconds=5)
    sum_up(2000 if RANK else 1000)


def gloo_barrier() -> None:
    import datetime

    import torch.distributed

    together()
    if RANK == 0:
        torch.distributed.monitored_barrier(timeout=datetime.timedelta(seconds=1))
    time.sleep(5)


def ddp_other_model() -> None:
    import torch

    together(seconds=5)
    layers = [torch.nn.Linear(2, 2) for _ in range(RANK + 1)]
    torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))


class Kills:
    """A data set whose worker is killed, as the kernel does when memory is short."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


class Raises(Kills):
    """A data set with a bad row."""

    def __getitem__(self, index: int) -> int:
        raise ValueError(f"row {index} has no label")


class Large(Kills):
    """A data set with rows of 64 MiB."""

    def __getitem__(self, index: int) -> Any:
        import torch

        return torch.ones(16 << 20)


def two_heads() -> Any:
    """Return a model with a head that takes no part in the loss."""
    import torch

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.used(x)

    return Model()


def alone() -> None:
    """Make a process group of this process."""
    import torch.distributed

    name = tempfile.mktemp()
    torch.distributed.init_process_group("gloo", init_method=f"file://{name}", rank=0, world_size=1)


def together(seconds: float = 20) -> None:
    """Make the process group of both."""
    import datetime

    import torch.distributed

    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))


def sum_up(count: int) -> None:
    """Sum ones over all ranks."""
    import torch
    import torch.distributed

    torch.distributed.all_reduce(torch.ones(count))


if __name__ == "__main__":
    globals()[sys.argv[1]]()
