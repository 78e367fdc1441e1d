"""FSDP2 over meshes of one and two dimensions, and distributed checkpoints that are written meanwhile."""

from __future__ import annotations

import shutil
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from torch_backends.tests.programs.models import Transformer, loss_of, sentences, transformer
from torch_backends.tests.programs.registry import Found, grid, listed, program, rank, same_everywhere, sgd, size, state

STEPS = 3


def sharded(mesh: DeviceMesh, **more: object) -> Transformer:
    model = transformer()
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **more)
    return fully_shard(model, mesh=mesh, **more)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range = range(STEPS)) -> Found:
    losses = []
    for step in steps:
        words, following = sentences(step, rank())
        losses.append(loss_of(model(words), following))
        losses[-1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return same_everywhere(state(model)) | listed("losses", losses)


@program()
def fully_sharded() -> Found:
    """24 columns and 48 words: none divides by all numbers of ranks, some parameters have fewer rows than ranks."""
    model = sharded(init_device_mesh("cpu", (size(),)))
    return train(model, sgd(model))


@program()
def fully_sharded_and_replicated() -> Found:
    """HSDP: shards along one dimension of a mesh, replicas along the other; and gradients of several batches."""
    found = {}
    for name, shape in [("grid", grid()), ("replicas", (size(), 1))]:
        model = sharded(init_device_mesh("cpu", shape, mesh_dim_names=("replica", "shard")))
        optimizer = sgd(model)
        model.set_requires_gradient_sync(False)
        words, following = sentences(99, rank())
        loss_of(model(words), following).backward()
        model.set_requires_gradient_sync(True)
        found |= {f"{name} {key}": tensor for key, tensor in train(model, optimizer).items()}
    return found


@program(tolerance=2e-2)
def fully_sharded_in_sixteen_bits() -> Found:
    """What is computed and gathered is bfloat16, and gradients are added as such."""
    found = {}
    for dtype in (torch.bfloat16, torch.float32):
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=dtype)
        model = sharded(init_device_mesh("cpu", (size(),)), mp_policy=policy)
        found |= {f"{dtype} {key}": tensor for key, tensor in train(model, sgd(model)).items()}
    return found


@program()
def checkpoint_while_training() -> Found:
    """DCP writes the state of a model and its optimizer in a thread while training goes on. Another model takes it up.

    The thread has a group of its own: collectives of two threads on one group would mix.
    """
    where: list[object] = [tempfile.mkdtemp() if rank() == 0 else None]
    dist.broadcast_object_list(where, src=0)
    model = sharded(init_device_mesh("cpu", (size(),)))
    optimizer, group = sgd(model), dist.new_group()
    found = train(model, optimizer)
    parts, of_optimizer = get_state_dict(model, optimizer)
    saving = dcp.async_save({"model": parts, "optimizer": of_optimizer}, checkpoint_id=where[0], process_group=group)
    found |= {f"later {name}": tensor for name, tensor in train(model, optimizer, range(STEPS, 2 * STEPS)).items()}
    saving.result()
    other = sharded(init_device_mesh("cpu", (1, size()), mesh_dim_names=("replica", "shard")))
    optimizer = sgd(other)
    parts, of_optimizer = get_state_dict(other, optimizer)
    dcp.load({"model": parts, "optimizer": of_optimizer}, checkpoint_id=where[0])
    set_state_dict(other, optimizer, model_state_dict=parts, optim_state_dict=of_optimizer)
    taken_up = state(other)
    assert all(torch.equal(tensor, found[name]) for name, tensor in taken_up.items()), "another state was taken up"
    again = train(other, optimizer, range(STEPS, 2 * STEPS))
    assert all(torch.equal(tensor, found[f"later {name}"]) for name, tensor in again.items()), (
        "training went another way"
    )
    if rank() == 0:  # all have loaded it: they have trained since
        shutil.rmtree(str(where[0]))
    return found
