"""Programs of torch and MPI that fail, each for one reason: `torch_failures.py NAME`. As failures.py."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

RANK = int(os.environ.get("RANK", "0"))


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

    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
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
