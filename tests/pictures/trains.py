"""A small training of all ranks, which reports as a user's does, and comes to the end that is asked for.

Argument: `well`; `slow` (the data of rank 5 come late); `bad` (a sample of rank 5 is no number, and the rank fails by
it); or `hang` (rank 5 waits for data for ever).
"""

import math
import os
import sys
import time

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

HOW, RANK = sys.argv[1], int(os.environ["RANK"])
ODD, EPOCHS, STEPS, BATCH = 5, 6, 50, 16
MOMENT = 210  # the step at which it goes wrong
SECONDS = 0.06  # that the data of a step take


class Samples:
    """Vectors from a slow disk."""

    def __len__(self) -> int:
        return EPOCHS * STEPS * BATCH

    def __getitem__(self, place: int) -> torch.Tensor:
        step = place // BATCH
        late = 1.6 if HOW == "slow" and RANK == ODD else 1.0
        time.sleep(SECONDS / BATCH * late * (0.8 + 0.4 * torch.rand(1).item()))
        if HOW == "hang" and RANK == ODD and step == MOMENT:
            time.sleep(600)
        return torch.full((32,), math.nan) if HOW == "bad" and RANK == ODD and step == MOMENT else torch.randn(32)


torch.manual_seed(RANK)
torch.set_num_threads(1)
torch.distributed.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(32, 32))
target = torch.eye(32).roll(1, 0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
began = time.monotonic()
odd = 0
for done, batch in enumerate(DataLoader(Samples(), batch_size=BATCH)):
    loss = torch.nn.functional.mse_loss(model(batch), batch @ target + 0.3 * torch.randn_like(batch))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    epoch, step = divmod(done, STEPS)
    seconds, began = time.monotonic() - began, time.monotonic()
    said = f"epoch={epoch + 1}/{EPOCHS} step={step + 1}/{STEPS} loss={loss.item():.4f}"
    print(f"torchfleet: {said} samples_per_s={BATCH / seconds:.0f} step_ms={seconds * 1000:.2f}", flush=True)
    odd += not math.isfinite(loss.item())
    if RANK == ODD and odd == 12:
        raise ValueError(f"the loss was no number 12 times, first in epoch {MOMENT // STEPS + 1}")
torch.distributed.destroy_process_group()
