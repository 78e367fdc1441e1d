"""A program without PyTorch that reports and prints what could spoil a page, on many ranks; rank 37 fails."""

import os
import random
import sys
import time

rank = int(os.environ["RANK"])
noise = random.Random(rank)
LONG = "a_metric_whose_name_is_as_long_as_names_of_metrics_may_be"
for step in range(30):
    odd = "nan" if step % 11 == rank % 11 else "-inf" if step % 13 == rank % 13 else f"{noise.gauss(1, 0.2):.4f}"
    rate = noise.uniform(0.9, 1.1) * 3e9 * (1 + step)
    print(f"torchfleet: step={step + 1}/30 loss={odd} {LONG}={rate:.0f} tiny={noise.random() * 1e-9:.3e}", flush=True)
    time.sleep(0.2)
print("\x1b[31m<script>alert('rank')</script><img src=x onerror=alert(1)>\x1b[0m", "#" * 3000, flush=True)
print("</pre></code>" + "\u202egnirts desrever\u202c 漢字" * 40, file=sys.stderr, flush=True)
if rank == 37:
    raise ValueError("<b>" + "no_space_in_a_very_long_message" * 40)
time.sleep(2 + rank % 5)
