"""DeepSpeed's ZeRO on processors; the first argument is its stage.

The first start compiles DeepSpeed's own shared-memory operations, silently.
"""

import sys

import deepspeed
import torch

config = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": int(sys.argv[1])},
    "steps_per_print": 1000,
}
deepspeed.init_distributed("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
engine, *_rest = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
torch.manual_seed(engine.global_rank)
for _step in range(3):
    loss = engine(torch.randn(4, 8)).square().mean()
    engine.backward(loss)
    engine.step()
print(f"rank {engine.global_rank} of {engine.world_size}, local rank {engine.local_rank}")
with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
    print(f"weights {sum(value.double().sum() for value in engine.module.parameters()):.6f}")
torch.distributed.destroy_process_group()
