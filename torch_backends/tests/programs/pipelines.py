"""Pipeline parallelism: torch.distributed.pipelining, and messages by hand around collectives."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.nn.parallel import DistributedDataParallel

from torch_backends.tests.programs.models import BATCH, Transformer, loss_of, numbers, sentences
from torch_backends.tests.programs.registry import Found, grid, listed, program, rank, sgd, size, state

STEPS = 3


class Stage(nn.Module):
    """Some blocks of a transformer: the first stage has the embedding, the last one the scores."""

    def __init__(self, number: int, of: int) -> None:
        super().__init__()
        torch.manual_seed(7)
        model = Transformer(blocks=of)
        self.first = model.embedding if number == 0 else nn.Identity()
        self.block = model.blocks[number]
        self.last = nn.Sequential(model.norm, model.head) if number == of - 1 else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(self.first(x)))


def staged(kind: type, each: int = 1) -> Found:
    """Train a model, of which every rank has so many stages. Return their states, and the losses on the last rank."""
    of, cpu = each * size(), torch.device("cpu")
    stages = [PipelineStage(Stage(number, of), number, of, cpu) for number in range(rank(), of, size())]
    # Of the interleaved ones the number of parts has to divide by the ranks.
    parts = 2 * BATCH if each == 1 else size() * 2
    schedule = kind(stages[0] if each == 1 else stages, parts, loss_fn=loss_of)
    optimizers, found, means = [sgd(stage.submod) for stage in stages], {}, []
    for step in range(STEPS):
        words, following = (
            torch.cat(each_of) for each_of in zip(*(sentences(step, of_) for of_ in range(6)), strict=True)
        )
        losses: list[torch.Tensor] = []
        schedule.step(
            *([words] if rank() == 0 else []),
            **({"target": following, "losses": losses} if rank() == size() - 1 else {}),
        )
        if losses:
            means.append(torch.stack(losses).mean())
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    for stage in stages:
        found |= state(stage.submod, f"{stage.stage_index} ")
    return found | (listed("losses", means) if means else {})


@program()
def pipeline_gpipe() -> Found:
    return staged(ScheduleGPipe)


@program()
def pipeline_1f1b() -> Found:
    return staged(Schedule1F1B)


@program()
def pipeline_interleaved() -> Found:
    """Two stages on each rank."""
    return staged(ScheduleInterleaved1F1B, each=2)


@program()
def pipeline_without_bubbles() -> Found:
    """The gradients of weights are worked out apart from those of inputs."""
    return staged(ScheduleInterleavedZeroBubble, each=2)


@program()
def pipelines_of_replicas() -> Found:
    """Of four ranks two are a pipeline, and two pipelines have the same weights: DDP's all-reduces between messages."""
    mesh = init_device_mesh("cpu", grid(), mesh_dim_names=("data", "stage"))
    number, of = mesh["stage"].get_local_rank(), mesh["stage"].size()
    replica = DistributedDataParallel(Stage(number, of), process_group=mesh["data"].get_group())
    stage = PipelineStage(replica, number, of, torch.device("cpu"), group=mesh["stage"].get_group())
    schedule, optimizer = Schedule1F1B(stage, BATCH, loss_fn=loss_of), sgd(replica)
    for step in range(STEPS):
        words, following = sentences(step, mesh["data"].get_local_rank())
        given = [words] if number == 0 else []
        schedule.step(*given, **({"target": following, "losses": []} if number == of - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()
    return state(replica)


@program()
def messages_around_collectives() -> Found:
    """Heat in a rod, of which each rank has a part. Its ends are under way while all agree how much has changed."""
    rod, changes = numbers(1, rank(), 1000).cumsum(0), []
    for _step in range(20):
        left, right = torch.zeros(1), torch.zeros(1)
        orders = []
        if rank() > 0:
            orders += [dist.P2POp(dist.irecv, left, rank() - 1), dist.P2POp(dist.isend, rod[:1].clone(), rank() - 1)]
        if rank() < size() - 1:
            orders += [dist.P2POp(dist.isend, rod[-1:].clone(), rank() + 1), dist.P2POp(dist.irecv, right, rank() + 1)]
        works = dist.batch_isend_irecv(orders)
        inner = (rod[:-2] + rod[2:]) / 2
        change = (inner - rod[1:-1]).abs().max().reshape(1)
        dist.all_reduce(change, dist.ReduceOp.MAX)  # before any message is waited for
        changes.append(change[0])
        for work in works:
            work.wait()
        rod = torch.cat([(left + rod[1:2]) / 2, inner, (rod[-2:-1] + right) / 2])
    return {"rod": rod} | listed("changes", changes)


@program(tolerance=0)
def long_messages_around_collectives() -> Found:
    """A pipeline by hand: parts of 4 MB go from rank to rank and back, and all-reduces go between."""
    found, count = {}, 1_000_000
    last, works, kept = size() - 1, [], []
    for part in range(3):
        x = torch.full((count,), float(part + 1))
        if rank() > 0:
            coming = dist.irecv(x, rank() - 1, tag=part)
            dist.all_reduce(torch.ones(3))
            coming.wait()
        else:
            dist.all_reduce(torch.ones(3))
        x = x * 2 + 1
        if rank() < last:
            works.append(dist.isend(x, rank() + 1, tag=part))
        total = x.sum().reshape(1)
        dist.all_reduce(total, dist.ReduceOp.MAX)
        kept.append(x)
        found[f"total {part}"] = total
    for work in works:
        work.wait()
    back = torch.empty(count)
    if rank() < last:
        dist.recv(back, rank() + 1)
    if rank() > 0:
        dist.send(kept[-1], rank() - 1)
    return found | ({"back": back[:10].clone()} if rank() < last else {})
