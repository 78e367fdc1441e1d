"""Writes what is hard to collect. Argument: what. Rank 0 writes it, the others nothing."""

import os
import signal
import sys
from itertools import repeat

FOREVER = repeat(None)
WHAT = {
    "million": lambda out: out.writelines(b"line %d of a million\n" % number for number in range(1_000_000)),
    "binary": lambda out: out.write(bytes(range(256)) * 4096),
    "long": lambda out: [out.write(b"x" * (1 << 20)) for _ in range(50)],
    "stubborn": lambda out: (signal.signal(signal.SIGTERM, signal.SIG_IGN), [out.write(b"x" * 4096) for _ in FOREVER]),
    "no-newline": lambda out: out.write(b"first\nno newline at the end"),
    "killed": lambda out: (out.write(b"whole\nhalf a li"), out.flush(), os.kill(os.getpid(), signal.SIGKILL)),
}

if os.environ["RANK"] == "0":
    WHAT[sys.argv[1]](sys.stdout.buffer)
    sys.stdout.buffer.flush()
    sys.stderr.write("done\n")
