"""FSDP2 trains a model in shards, and another model takes them up. Of PyTorch itself.

By torch.distributed.checkpoint (DCP) through a directory that all ranks share, if one is given. Without one the whole
state of the model goes to rank 0 and from there to all.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def sharded(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
    return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


directory = sys.argv[1:]
dist.init_process_group("gloo")
model = sharded(0)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
for _step in range(3):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
other = sharded(1)
if directory:
    dcp.save(get_model_state_dict(model), checkpoint_id=directory[0])
    state = get_model_state_dict(other)
    dcp.load(state, checkpoint_id=directory[0])
    set_model_state_dict(other, state)
else:
    whole = StateDictOptions(full_state_dict=True, cpu_offload=True)
    state = get_model_state_dict(model, options=whole)
    assert bool(state) == (dist.get_rank() == 0)
    set_model_state_dict(other, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
pairs = zip(model.parameters(), other.parameters(), strict=True)
same = all(torch.equal(one.full_tensor(), two.full_tensor()) for one, two in pairs)
part = sum(value.to_local().numel() for value in model.parameters())
total = sum(value.numel() for value in model.parameters())
print(f"rank {dist.get_rank()} of {dist.get_world_size()}, local rank {os.environ['LOCAL_RANK']}")
print(f"{part} of {total} weights here; taken up unchanged: {same}")
dist.destroy_process_group()
