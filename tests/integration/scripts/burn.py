"""Keeps one core busy for some three seconds of its time, a part of it in a child, and tells what it took."""

import json
import os
import resource
import subprocess
import sys
import time

held = bytearray(64 << 20)
BURN = "import time\nwhile time.process_time() < 1: pass"
while time.process_time() < 2:
    pass
subprocess.run([sys.executable, "-c", BURN], check=True)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
print(json.dumps({"cpu": sum(os.times()[:4]), "peak": peak}))
