"""Counts to 6 in three starts: it saves when it is told that the end is near, and asks to be run again.

With the argument `alone`, rank 1 exits at once and rank 0 saves for a second more.
"""

import os
import signal
import sys
import time
from pathlib import Path

RANK = os.environ["RANK"]
counts = {os.environ[f"{who}_RESTART_COUNT"] for who in ("TORCHFLEET", "TORCHELASTIC")}  # one, for they agree
saved = Path(os.environ["TORCHFLEET_CHECKPOINT_DIR"], f"count-{RANK}")
told: list[int] = []
signal.signal(signal.SIGUSR1, lambda number, _frame: told.append(number))
left = float(os.environ["TORCHFLEET_SECONDS_LEFT"])
print("start", *counts, "saved", saved.exists(), 0 < left <= 300, flush=True)
count = int(saved.read_text()) if saved.exists() else 0
for _ in range(2):
    count += 1
if count >= 6:
    print("count", count)
    sys.exit(0)
while not told:
    time.sleep(0.02)
if RANK == "0" and "alone" in sys.argv:
    time.sleep(1)
saved.write_text(str(count))
sys.exit(75)
