"""Says that it is up, then sleeps until it is ended. Options: --ignore-term, --escape (a setsid grandchild)."""

import os
import signal
import subprocess
import sys
import time

if "--ignore-term" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "--escape" in sys.argv:
    # Out of the session, the parent and the environment that the job was started with.
    twice = "if os.fork(): os._exit(0)\nos.setsid()\nif os.fork(): os._exit(0)\n"
    code = f"import os, time\n{twice}print(os.getpid(), flush=True)\nos.close(1)\ntime.sleep(600)"
    found = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE, check=True
    )
    print("escaped", found.stdout.decode().strip(), flush=True)
print("up", flush=True)
time.sleep(600)
