"""What a rank notes of its process groups, and when a job of many ranks is told that they never met.

torch is a stand-in here that files groups as torch does; test_never_met.py in tests/integration has the real one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.basics.job_directory import JobDir
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.head.result import ranks_never_met_note
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.ranks.rank_record import group_of
from ansible_collections.torchfleet.cluster.plugins.module_utils._runtime.wire import frames
from ansible_collections.torchfleet.cluster.plugins.plugin_utils._launch import runtime_archive, view

C10D = """
_pg_group_ranks = {}
class Group:
    def __init__(self, used, backend):
        self.used, self.backend = used, backend
    def _get_backend_name(self):
        return self.backend
    def _get_sequence_number_for_group(self):
        return self.used if self.backend == "gloo" else broken
def init(size, used=1, backend="gloo"):
    group = Group(used, backend)
    _pg_group_ranks[group] = {rank: rank for rank in range(size)}
    return group
"""
CHILD = "import time\nwhile time.process_time() < 0.7: pass"
TORCH = "import torch.distributed as dist\n"
TABLE = "from torch.distributed import distributed_c10d as d\n"
SPAWN = "import multiprocessing.popen_spawn_posix\n"
FORK = "import os\nif not os.fork(): os._exit(0)\nos.wait()\n"
RUN = f"import subprocess, sys\nsubprocess.run([sys.executable, '-S', '-c', {CHILD!r}])\n"
RPC = "import torch.rpc as r, sys\nsys.modules['torch.distributed.rpc.api'] = r\nr._ALL_WORKER_NAMES = {1, 2}\n"


def noted(tmp_path: Path, program: str) -> int | None:
    """Return what is known of the groups of a program that ran to its end as rank 0 of a job."""
    for name, data in runtime_archive.sources().items():
        if name.startswith("hook/"):
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(data)
    parts = {"__init__": "", "distributed/__init__": "from .distributed_c10d import *\nimport torch.late\n"}
    for name, text in {**parts, "distributed/distributed_c10d": C10D, "late": "", "rpc": ""}.items():
        (tmp_path / f"torch/{name}.py").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"torch/{name}.py").write_text(text)
    job = JobDir(str(tmp_path / "job"))
    job.create([0])
    start = 'TORCHFLEET_EXIT_NOTE=$$:$0 exec "$@"'
    words = ["sh", "-c", start, job.rank(0, "exit"), sys.executable, "-c", program]
    paths = {**os.environ, "PYTHONPATH": f"{tmp_path}/hook:{tmp_path}"}
    done = subprocess.run(words, env=paths, capture_output=True, text=True, check=False)
    assert not done.stdout and not done.stderr, done.stderr
    return group_of(job, 0)


@pytest.mark.parametrize(
    ("program", "known"),
    [
        (TORCH, 0),
        (TORCH + "dist.init(1)", 1),
        (TORCH + "dist.init(2); dist.init(1)", 2),
        (TORCH + "dist.init(2, used=0)", 0),
        (TORCH + "dist.init(2, used=0); dist.init(1)", 1),
        (TORCH + "dist.init(2, used=0, backend='nccl')", 2),  # which does not count all
        (TORCH + "dist.init(2).used = None; print(end='')", 0),
        (TORCH + TABLE + "d.init(4); d._pg_group_ranks.clear()", 4),
        (TORCH + TABLE + "d.init(4, used=0); d._pg_group_ranks.clear(); d.init(2)", 2),
        (TORCH + TABLE + "del d._pg_group_ranks[d.init(4)]; assert not d._pg_group_ranks", 4),
        (TORCH + TABLE + "d._pg_group_ranks.pop(d.init(4)); assert d._pg_group_ranks.pop(3, None) is None", 4),
        (TORCH + FORK, 0),
        (TORCH + "import os\nif not os.fork(): dist.init(2, used=0); os._exit(0)\nos.wait()", 2),
        (TORCH + RPC, 2),
        (TORCH + FORK + RUN, 0),
        ("", None),
        ("import torch", None),
        (TORCH + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", None),
        (TORCH + "import os; os._exit(0)", None),
        (TORCH + SPAWN, None),
        (TORCH + RUN, None),
        (TORCH + "import sys; sys.modules['horovod'] = sys", None),
    ],
)
def test_what_is_known_of_a_program(tmp_path: Path, program: str, known: int | None) -> None:
    assert noted(tmp_path, program) == known


def test_a_program_with_an_mpi_is_not_judged(tmp_path: Path) -> None:
    """Its ranks may have met by MPI alone, as those of mpi4py do."""
    (tmp_path / "libmpi.so.40").write_bytes(b"\0" * 4096)
    load = "import mmap\nfile = open({!r}, 'rb')\nheld = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)\n"
    load = load.format(str(tmp_path / "libmpi.so.40"))
    assert noted(tmp_path, TORCH + load) is None


@pytest.mark.parametrize("text", ["", "2", "end of it", "\xff", "99999999999999999999", "end " + "9" * 5000])
def test_a_note_that_says_nothing_is_none(tmp_path: Path, text: str) -> None:
    """The program could have written there as well."""
    job = JobDir(str(tmp_path / "job"))
    job.create([0])
    Path(job.rank(0, "group")).write_text(text)
    assert group_of(job, 0) in (None, 0)


def test_a_link_or_pipe_in_place_of_the_note_is_not_read(tmp_path: Path) -> None:
    job = JobDir(str(tmp_path / "job"))
    job.create([0, 1])
    (tmp_path / "far").write_text("2\nend\n")
    os.symlink(tmp_path / "far", job.rank(0, "group"))
    os.mkfifo(job.rank(1, "group"))
    assert [group_of(job, rank) for rank in (0, 1)] == [None, None]


def told(groups: list[int | None], state: str = "succeeded") -> list[str]:
    """Return what is told of a job whose ranks noted these groups."""
    places = [{"rank": rank} for rank in range(len(groups))]
    records = {rank: {} if group is None else {"group": group} for rank, group in enumerate(groups)}
    order = {"world_size": len(groups), "placement": places}
    return [note["text"] for note in ranks_never_met_note(order, state, records)]


def test_ranks_that_never_met_are_told_of() -> None:
    assert told([0, 0]) == ["2 ranks ran, each alone: no process group of 2 was used"]
    assert told([1, 0, 1]) == ["3 ranks ran, each alone: no process group of 3 was used"]
    assert told([2, 2, 2, 2]) == ["4 ranks ran, in groups of 2 at most: no process group of 4 was used"]
    assert told([2, 2]) == told([0, 2]) == told([0, 4]) == []  # by children of one, too
    assert told([0]) == told([None, 0]) == told([None, None]) == []
    assert told([0, 0], "failed") == told([0, 0], "cancelled") == []


def test_the_note_is_in_the_headline_and_checked_where_it_comes_in() -> None:
    note = {"code": "ranks_never_met", "text": "2 ranks ran, each alone"}
    result = {
        **{"job_id": "j", "state": "succeeded", "rc": 0, "seconds": 1.0, "backend": "gloo", "world_size": 2},
        **{"launcher": {"name": "openmpi", "version": "5"}, "placement": [], "ranks": [], "first_failure": None},
        **{"leftovers": {}, "metrics": {}, "notes": [note]},
    }
    taken = frames.checked({"kind": "result", "result": result}, frames.FROM_HEAD)["result"]
    assert view.headline(taken).endswith("openmpi 5; BUT 2 ranks ran, each alone")
    assert view.headline({**taken, "notes": []}).endswith("openmpi 5")
    lies = [[{"code": "UP \x1b", "text": "x"}], [{"code": "a", "text": "x"}], [{**note, "text": 3}], note, [note] * 101]
    for lie in lies:
        with pytest.raises(frames.BadFrame):
            frames.checked({"kind": "result", "result": {**result, "notes": lie}}, frames.FROM_HEAD)
