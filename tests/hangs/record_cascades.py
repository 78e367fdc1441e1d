"""Records what real cascades look like: a rank dies, and then the others of it. `python tests/hangs/record_cascades.py`

For each rank: seconds until it had ended, status, signal, and the last line, in tests/hangs/cascades.json.
tests/unit/test_cascades.py plays them on hosts whose clocks differ. It takes five minutes; needs setup.yml.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PYTHON = Path.home() / ".torchfleet/pytorch/bin/python"
RECORDED = HERE / "cascades.json"
RANKS, TIMES = 4, 2
WAYS = ("raises", "exits", "leaves_at_once", "is_killed", "crashes", "aborts", "raises_in_a_thread_and_waits")
KINDS = (*WAYS, "raises-ddp", "is_killed-ddp", "raises-store", "is_killed-store")


def main() -> None:
    """Make each cascade some times, with other ranks that die first."""
    found = []
    for number, kind in enumerate(KINDS * TIMES):
        culprit = 0 if kind.endswith("-store") else number % RANKS
        found.append({"kind": kind, "culprit": culprit, "ranks": cascade(kind, culprit)})
        print(json.dumps(found[-1]), flush=True)
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")


def cascade(kind: str, culprit: int) -> list[dict[str, Any]]:
    """Make one cascade; return what became of each rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    keep = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    place = {**keep, "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    ended: dict[int, float] = {}
    with tempfile.TemporaryDirectory() as root:
        outputs = [(Path(root, f"{rank}.out"), Path(root, f"{rank}.err")) for rank in range(RANKS)]
        processes = [
            subprocess.Popen(
                [str(PYTHON), str(HERE / "dies.py"), kind, str(culprit)],
                env={**place, "RANK": str(rank)},
                stdout=out.open("w"),
                stderr=error.open("w"),
            )
            for rank, (out, error) in enumerate(outputs)
        ]

        def wait_for(rank: int) -> None:
            processes[rank].wait(120)
            ended[rank] = time.time()

        threads = [threading.Thread(target=wait_for, args=(rank,)) for rank in range(RANKS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        died = float(outputs[culprit][0].read_text().split("dies ")[1].split()[0])
        return [row(process.returncode, ended[rank] - died, outputs[rank][1]) for rank, process in enumerate(processes)]


def row(status: int, seconds: float, errors: Path) -> dict[str, Any]:
    """Return what is recorded of a rank."""
    lines = [line for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    number = -status if status < 0 else None
    return {
        "rc": 128 - status if status < 0 else status,
        "signal": number,
        "seconds": round(seconds, 4),
        "line": (lines or [""])[-1][:300],
    }


if __name__ == "__main__":
    main()
