"""What a framework takes the world for, and by which variables: asked of its own code, as JSON.

The words: the framework, how many nodes and ranks of a node there are, and the names of the variables to watch.
"""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator

Found = tuple[int, int, int | None]  # rank, world size, local rank if the framework knows one
read: set[str] = set()


def watch(names: list[str]) -> None:
    """Note every look at one of these variables. A copy of all of them, in their order, is no look at one."""
    kind = type(os.environ)
    look, walk = kind.__getitem__, kind.__iter__
    copied: deque[str] = deque()  # what a copy asks for next: dict() lists all names first, loops do not

    def walking(environ: os._Environ) -> Iterator[str]:
        copied.clear()
        for name in walk(environ):
            copied.append(name)
            yield name

    def noting(environ: os._Environ, name: str) -> str:
        if copied and copied[0] == name:
            copied.popleft()
        else:
            copied.clear()
            read.update({name} & set(names))
        return look(environ, name)

    kind.__iter__, kind.__getitem__ = walking, noting


def torch(_nodes: int, _ranks: int) -> Found:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size(), dist.get_node_local_rank()


def rpc(nodes: int, ranks: int) -> Found:
    from torch.distributed import rpc

    rank = int(os.environ["RANK"])  # which the program has to say
    read.clear()
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=nodes * ranks)
    found = rpc.get_worker_info().id, len(rpc.api._get_current_rpc_agent().get_worker_infos()), None
    rpc.shutdown()
    return found


def accelerate(_nodes: int, _ranks: int) -> Found:
    from accelerate import Accelerator

    state = Accelerator().state
    return state.process_index, state.num_processes, state.local_process_index


def transformers(_nodes: int, _ranks: int) -> Found:
    from transformers import TrainingArguments

    told = TrainingArguments("trained", report_to="none")
    return told.process_index, told.world_size, told.local_process_index


def lightning(nodes: int, ranks: int) -> Found:
    from lightning.pytorch import Trainer

    trainer = Trainer(accelerator="cpu", strategy="ddp", num_nodes=nodes, devices=ranks, logger=False)
    cluster = trainer.strategy.cluster_environment
    assert cluster.creates_processes_externally and cluster.main_address and cluster.main_port
    assert cluster.node_rank() == cluster.global_rank() // ranks
    return cluster.global_rank(), cluster.world_size(), cluster.local_rank()


def ignite(_nodes: int, _ranks: int) -> Found:
    import ignite.distributed as idist

    idist.initialize("gloo")
    return idist.get_rank(), idist.get_world_size(), idist.get_local_rank()


def deepspeed(_nodes: int, _ranks: int) -> Found:
    import deepspeed

    deepspeed.init_distributed("gloo")
    return deepspeed.comm.get_rank(), deepspeed.comm.get_world_size(), deepspeed.comm.get_local_rank()


def mpi4py(_nodes: int, ranks: int) -> Found:
    from mpi4py import MPI

    near = MPI.COMM_WORLD.Split_type(MPI.COMM_TYPE_SHARED)
    return MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, near.rank


FRAMEWORKS: dict[str, Callable[[int, int], Found]] = {
    found.__name__: found for found in (torch, rpc, accelerate, transformers, lightning, ignite, deepspeed, mpi4py)
}
framework, nodes, ranks, *names = sys.argv[1:]
watch(names)
found = FRAMEWORKS[framework](int(nodes), int(ranks))
print(json.dumps({"found": found, "read": sorted(read)}))
