"""Runs workloads one after the other, each rank in a process of its own that need not import PyTorch again.

Takes a JSON list of runs: {"argv": [...], "environment": {...}, "ranks": how many, "notice": after so many steps of the
last rank, 0 never, "own": variables whose values end with the rank}. The last line has the statuses of all ranks,
by run, and the digests of the values in the checkpoints that are named after the list.
"""

import hashlib
import json
import os
import random
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path

del sys.path[0]  # this directory has a secrets.py, which NumPy would take for Python's

import torch  # noqa: E402
import torch._dynamo  # noqa: E402  what DistributedDataParallel would take a second for
import torch.distributed.checkpoint.state_dict  # noqa: E402
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402
from torch.optim.optimizer import register_optimizer_step_post_hook  # noqa: E402

PORTS = range(10000, 20000)  # below those that connections take
steps = 0


def free_port():
    """Return a port that nobody listens on."""
    for port in random.sample(PORTS, len(PORTS)):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError("no free port")


def notice_after(last):
    """Have this process get the notice in its step `last`."""

    def count(*_of_the_optimizer):
        global steps  # noqa: PLW0603
        steps += 1
        if steps == last:
            os.kill(os.getpid(), signal.SIGUSR1)

    register_optimizer_step_post_hook(count)


def become(argv, environment, notice):
    """Turn into the program; end with its exit status."""
    os.environ.update(environment)
    sys.argv = argv
    sys.path.insert(0, os.path.dirname(argv[0]))
    if notice:
        notice_after(notice)
    try:
        runpy.run_path(argv[0], run_name="__main__")
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(end.code or 0)
    except BaseException:
        traceback.print_exc()
    os._exit(99)


def started(argv, environment, ranks, notice, own=()):
    """Start the ranks of a run; return their pids."""
    pids, port = [], str(free_port())
    for rank in range(ranks):
        place = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1"}
        place.update({name: f"{own[name]}{rank}" for name in own})
        pid = os.fork()
        if not pid:
            become(argv, {**environment, **place, "MASTER_PORT": port}, notice if rank == ranks - 1 else 0)
        pids.append(pid)
    return pids


def values(state, name=""):
    """Yield what a state is made of, by name: the bytes of tensors, and the rest as text."""
    if isinstance(state, torch.Tensor):
        yield f"{name} {state.dtype} {tuple(state.shape)} {state.numpy().tobytes().hex()}"
    elif isinstance(state, dict | list | tuple):
        for key in state if isinstance(state, dict) else range(len(state)):
            yield from values(state[key], f"{name}/{key}")
    else:
        yield f"{name} {state!r}"


def digest(path):
    """Return what stands for the values of a checkpoint: of files of torch.save, the bytes may differ for nothing."""
    if path.is_dir():
        numbers = json.loads((path / "manifest.json").read_text())["numbers"]
        flat = path.with_suffix(".flat")
        dcp_to_torch_save(path, flat)
        found = [*values(numbers), *values(torch.load(flat, weights_only=True))]
    else:
        found = values(torch.load(path, weights_only=True))
    return hashlib.sha256("\n".join(found).encode()).hexdigest()


statuses = [
    [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started(**run)] for run in json.loads(sys.argv[1])
]
print(json.dumps([statuses, [digest(Path(path)) for path in sys.argv[2:]]]))
