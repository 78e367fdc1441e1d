"""DTensor and tensor parallelism: torch.distributed.tensor, parallelize_module."""

from __future__ import annotations

import itertools

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from torch_backends.tests.programs.models import Transformer, loss_of, sentences, transformer
from torch_backends.tests.programs.registry import (
    Found,
    grid,
    listed,
    program,
    same_everywhere,
    sgd,
    size,
    state,
    whole,
)

STEPS = 3


def line() -> DeviceMesh:
    return init_device_mesh("cpu", (size(),))


@program(tolerance=0)
def redistribute() -> Found:
    """Between all placements, of rows that do not divide by the ranks, or are fewer. Sums of whole ones are exact."""
    kinds: list[Placement] = [Replicate(), Shard(0), Shard(1)]
    sums: list[Placement] = [Partial("sum"), Partial("max"), Partial("min")]  # PyTorch only goes from these
    mesh, found = line(), {}
    for shape in [(7, 5), (2, 3), (12, 4)]:
        numbers = torch.arange(shape[0] * shape[1]).reshape(shape).float()
        own = numbers * (1 + dist.get_rank())
        for before, after in itertools.product(kinds + sums, kinds):
            if isinstance(before, Partial):
                given = DTensor.from_local(own, mesh, [before])
            else:
                given = distribute_tensor(numbers, mesh, [before])
            moved = given.redistribute(mesh, [after])
            name = f"{shape} {before} {after}"
            found[name + " here"] = moved.to_local().clone()
            found[name] = moved.full_tensor()
    return found


@program()
def mathematics() -> Found:
    """Operations on tensors that are divided, and their gradients."""
    mesh = line()
    torch.manual_seed(3)
    left, right = torch.randn(13, 6), torch.randn(6, 9)
    found = {}
    for first, second in itertools.product([Shard(0), Shard(1), Replicate()], repeat=2):
        a = distribute_tensor(left, mesh, [first]).requires_grad_()
        b = distribute_tensor(right, mesh, [second]).requires_grad_()
        product = a @ b
        soft = product.softmax(-1)
        (soft.square().sum() + product.mean()).backward()
        name = f"{first} {second}"
        found |= {f"{name} product": whole(product), f"{name} soft": whole(soft)}
        found |= {f"{name} gradient of a": whole(a.grad), f"{name} gradient of b": whole(b.grad)}
    return found


@program(tolerance=0)
def two_dimensions() -> Found:
    """A mesh of two dimensions: a tensor is divided along one, and a sum is due along the other."""
    mesh, found = init_device_mesh("cpu", grid(), mesh_dim_names=("row", "column")), {}
    own = torch.arange(30.0).reshape(5, 6) * (1 + mesh["row"].get_local_rank())
    given = DTensor.from_local(own, mesh, [Partial(), Shard(1)])
    for after in ([Replicate(), Replicate()], [Shard(0), Shard(0)], [Shard(1), Shard(1)], [Shard(0), Shard(1)]):
        moved = given.redistribute(mesh, after)
        found |= {f"{after} here": moved.to_local().clone(), f"{after}": moved.full_tensor()}
    return found


COLUMNS_AND_ROWS = {
    "attention.query": ColwiseParallel(),
    "attention.key": ColwiseParallel(),
    "attention.value": ColwiseParallel(),
    "attention.output": RowwiseParallel(),
    "feed_forward.up": ColwiseParallel(),
    "feed_forward.down": RowwiseParallel(),
}
SEQUENCES = {
    **COLUMNS_AND_ROWS,
    "norm1": SequenceParallel(),
    "attention": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "attention.output": RowwiseParallel(output_layouts=Shard(1)),
    "norm2": SequenceParallel(),
    "feed_forward": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
    "feed_forward.down": RowwiseParallel(output_layouts=Shard(1)),
}


def divided(mesh: DeviceMesh) -> Transformer:
    model = transformer()
    words = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, words)
    for block in model.blocks:
        parallelize_module(block, mesh, COLUMNS_AND_ROWS)
    return model


@program()
def tensor_parallel() -> Found:
    """The layers of a transformer are divided by columns and rows. All ranks have the same words."""
    model = divided(line())
    optimizer, losses = sgd(model), []
    for step in range(STEPS):
        words, following = sentences(step)
        losses.append(loss_of(model(words), following))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return same_everywhere(state(model) | listed("losses", losses))


@program()
def sequence_parallel() -> Found:
    """The sequence is divided too between the layers that are, and so is the loss."""
    model, mesh = transformer(), line()
    ends = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False),
    }
    parallelize_module(model, mesh, ends)
    for block in model.blocks:
        parallelize_module(block, mesh, SEQUENCES)
    optimizer, losses = sgd(model), []
    for step in range(STEPS):
        words, following = sentences(step)
        with loss_parallel():
            losses.append(loss_of(model(words), following))
            losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return same_everywhere(state(model) | listed("losses", losses))


@program()
def tensor_parallel_and_sharded() -> Found:
    """FSDP2 over one dimension of a mesh, tensor parallelism over the other."""
    mesh = init_device_mesh("cpu", grid(), mesh_dim_names=("data", "tensor"))
    model = divided(mesh["tensor"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    optimizer, losses = sgd(model), []
    for step in range(STEPS):
        words, following = sentences(step, mesh["data"].get_local_rank())
        losses.append(loss_of(model(words), following))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return same_everywhere(state(model)) | listed("losses", losses)
