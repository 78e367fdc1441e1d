"""A training as a report shows it: loss, speed and step time of each rank, then the end that is asked for.

Argument: `well`, `raise` (rank 1 fails), or `hang` (rank 2 stops, and the others wait for it).
"""

import math
import os
import random
import sys
import time

how, rank = sys.argv[1], int(os.environ["RANK"])
EPOCHS, STEPS = 6, 20
if how == "hang":
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    torch.distributed.all_reduce(torch.zeros(1))
noise = random.Random(rank)


def read_batch() -> None:
    """Read from a place that gives nothing."""
    time.sleep(600)


for done in range(EPOCHS * STEPS):
    epoch, step = divmod(done, STEPS)
    seconds = 0.02 * noise.uniform(0.85, 1.15) * (1.25 if rank == 1 else 1.0)
    time.sleep(seconds)
    loss = 2.2 * math.exp(-done / 45) + 0.12 + noise.uniform(-0.04, 0.04)
    if how == "raise" and done > 70:
        loss = math.nan if rank == 1 and done > 80 else loss * 1.04 ** (done - 70)
    said = f"epoch={epoch + 1}/{EPOCHS} step={step + 1}/{STEPS} loss={loss:.4f}"
    print(f"torchfleet: {said} samples_per_s={64 / seconds:.0f} step_ms={seconds * 1000:.2f}", flush=True)
    if how == "raise" and rank == 1 and done == 90:
        raise ValueError("loss is not a number in epoch 5")
    if how == "hang" and done == 75:
        if rank == 2:
            read_batch()
        torch.distributed.all_reduce(torch.zeros(1))
