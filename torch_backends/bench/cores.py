"""Samples on which cores the threads of processes run: whether two ever share one while another core has none.

Arguments: the processes. Each line of stdin is for how many seconds; a line of JSON answers it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter

PAUSE = 0.001  # seconds between two samples


def running(processes: list[str]) -> Counter[int]:
    """Return how many threads run, or could if they had a core, by the core where they are."""
    found: Counter[int] = Counter()
    for process in processes:
        for thread in os.listdir(f"/proc/{process}/task"):
            try:
                with open(f"/proc/{process}/task/{thread}/stat") as file:
                    fields = file.read().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if fields[0] == "R":
                found[int(fields[36])] += 1
    return found


def main() -> None:
    """Sample."""
    cores = os.sched_getaffinity(0)
    for line in sys.stdin:
        until, samples, shared = time.monotonic() + float(line), 0, 0
        while time.monotonic() < until:
            found = running(sys.argv[1:])
            samples += 1
            shared += max(found.values(), default=0) > 1 and len(found) < len(cores)
            time.sleep(PAUSE)
        print(json.dumps({"samples": samples, "shared": shared}), flush=True)


if __name__ == "__main__":
    main()
