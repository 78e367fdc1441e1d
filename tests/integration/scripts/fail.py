"""One rank fails in the given way after a moment, the others sleep. Arguments: rank, how (an exit status or raise)."""

import os
import sys
import time

rank, how = int(sys.argv[1]), sys.argv[2]
print("up", flush=True)
if int(os.environ["RANK"]) == rank:
    time.sleep(0.3)
    if how == "raise":
        raise ValueError("the loss is not a number")
    sys.exit(int(how))
time.sleep(600)
