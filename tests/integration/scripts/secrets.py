"""Says what it was given without saying it, and looks whether others have it."""

import hashlib
import json
import os
import sys
from pathlib import Path


def environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


names = sys.argv[1:]
above, pid = [], os.getppid()
while pid > 1:
    words = environment(pid)
    above.append([name for name in names if os.environ.get(name, "?").encode() in words])
    pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
print(
    json.dumps({"sha": {name: hashlib.sha256(os.environ[name].encode()).hexdigest() for name in names}, "above": above})
)
