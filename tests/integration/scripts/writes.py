"""Writes into its working directory as programs do that train. Arguments: the exit status of rank 0 (0)."""

import os
import sys
from pathlib import Path

rank = os.environ["RANK"]
Path("out").mkdir(exist_ok=True)
Path("out", f"model-{rank}.pt").write_bytes(rank.encode() * 1_500_000)
Path(f"log-{rank}.txt").write_text("done\n")
Path("config.txt").touch()
if rank == "0":
    Path("out", "latest").symlink_to("model-0.pt")
    sys.exit(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
