"""Saves for some seconds on SIGTERM, then leaves. Arguments: the seconds (4)."""

import signal
import sys
import time
from types import FrameType


def save(_number: int, _frame: FrameType | None) -> None:
    print("saving", flush=True)
    time.sleep(float(sys.argv[1]) if len(sys.argv) > 1 else 4)
    print("SAVED", flush=True)
    sys.exit(0)


signal.signal(signal.SIGTERM, save)
print("up", flush=True)
time.sleep(600)
