"""Backend shm, which needs no MPI: every check of ranks.py and mishaps.py, and what its own surroundings bring.

Most worlds here have no launcher at all: the ranks are processes that find each other by a file.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from torch_backends.tests import package
from torch_backends.tests.conftest import CHECKS, MISHAP_CHECKS, Came, Run, wrong
from torch_backends.tests.package import PYTHON

ONE_NODE: dict[str, str] = {}
TWO_NODES = {"TORCHFLEET_SHM_NODE_RANKS": "2"}  # as if two ranks were on each node
ALONE_ON_NODES = {"TORCHFLEET_SHM_NODE_RANKS": "1"}
WORLDS = [
    ("torchrun", 2, ONE_NODE),
    ("torchrun", 3, ALONE_ON_NODES),
    ("torchrun", 4, TWO_NODES),
]
OWN_TESTS = {"2.13": 65, "2.14": 65, "2.15": 65}  # of PyTorch, by its minor release: those that run here
# How a rank of a program begins that starts its processes itself.
BEGIN = """
import datetime, os, signal, sys, time
import torch, torch.distributed as dist
rank, size, place = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
def begin(backend="shm", seconds=20):
    timeout = datetime.timedelta(seconds=seconds)
    dist.init_process_group(backend, init_method=f"file://{place}/store", rank=rank, world_size=size, timeout=timeout)
def told(function, *given, **more):
    try:
        function(*given, **more)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
    else:
        print("nothing was raised", flush=True)
"""


def alone(place: Path, code: str, size: int = 2, before: dict[int, list[str]] | None = None) -> list[str]:
    """Return what each rank of a program prints, stderr too, that nothing but Python starts.

    `before`: words before the command, by rank.
    """
    words = [str(PYTHON), "-W", "ignore", "-c", BEGIN + code]
    ranks = [
        subprocess.Popen(
            [*(before or {}).get(rank, []), *words, str(rank), str(size), str(place)],
            env={"HOME": str(Path.home()), "PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        return [each.communicate(timeout=120)[0] for each in ranks]
    finally:
        for each in ranks:
            with contextlib.suppress(ProcessLookupError):
                each.kill()


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("world", WORLDS, ids=["one-node", "alone", "two-nodes"])
def test_every_rank_finds_what_it_should(came: Came, world: tuple[str, int, dict[str, str]], check: str) -> None:
    launcher, ranks, environment = world
    assert wrong(came(launcher, ranks, "shm", tuple(environment.items())), check) == ""


@pytest.mark.parametrize("check", MISHAP_CHECKS)
def test_nothing_hangs_or_lies(mishaps: Callable[[str, str], list[dict[str, str]]], check: str) -> None:
    assert wrong(mishaps("torchrun", "shm"), check) == ""


def test_what_pytorch_tests_of_a_backend(run: Run, tmp_path: Path) -> None:
    """Its own tests of distributed backends. Fewer than under mpi: many are chosen by the names that PyTorch knows."""
    found = importlib.util.find_spec("expecttest")
    assert found and found.origin
    (tmp_path / "expecttest").symlink_to(Path(found.origin).parent)  # PyTorch's tests want it
    done = run("torchrun", 3, Path(__file__).with_name("pytorch_own.py"), tmp_path, "shm", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    wrong = {name: text for found in told for name, text in found.items() if not text.startswith(("ok", "skipped"))}
    assert wrong == {}
    assert [list(found.values()).count("ok") for found in told] == [OWN_TESTS[package.torch_minor()]] * 3


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("backend", ["shm", "cpu:shm", "cpu:shm,cuda:gloo"])
def test_a_program_that_starts_its_processes_itself(tmp_path: Path, backend: str) -> None:
    code = f"begin('{backend}'); ones = torch.ones(5); dist.all_reduce(ones); print(ones.tolist()); dist.barrier()"
    assert alone(tmp_path, code) == ["[2.0, 2.0, 2.0, 2.0, 2.0]\n"] * 2


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("killed", [0, 2])
def test_a_rank_that_dies_is_named_on_all_others(tmp_path: Path, killed: int) -> None:
    """Long before the timeout."""
    code = (
        "begin(seconds=100); dist.barrier()\n"
        f"if rank == {killed}: os.kill(os.getpid(), signal.SIGKILL)\n"
        "start = time.monotonic(); told(dist.all_reduce, torch.ones(3)); assert time.monotonic() - start < 50\n"
        "told(dist.barrier); os._exit(0)"
    )
    found = alone(tmp_path, code, size=3)
    for rank in {0, 1, 2} - {killed}:
        lines = found[rank].splitlines()
        assert f"the process of rank {killed} has ended" in lines[0], found
        assert "an earlier operation of its group failed" in lines[-1], found


@pytest.mark.usefixtures("run")
def test_a_short_tensor_on_one_node_and_a_long_one_on_the_other(tmp_path: Path) -> None:
    """They take different ways, and not all ranks have a neighbour that tells them."""
    code = (
        "os.environ['TORCHFLEET_SHM_NODE_RANKS'] = '2'; begin(seconds=60)\n"
        "told(dist.all_reduce, torch.ones(100 if rank < 2 else 100_000)); os._exit(0)"
    )
    for text in alone(tmp_path, code, size=4):
        assert "do not ask for the same" in text and "of 100 Float" in text and "of 100000 Float" in text, text


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("on_each", [1, 2])
@pytest.mark.parametrize("count", [3, 1_000_000], ids=["short", "long"])
def test_a_rank_that_dies_on_another_node_is_noticed(tmp_path: Path, on_each: int, count: int) -> None:
    """Long before the timeout, by all ranks: their neighbours end the connections."""
    code = (
        f"os.environ['TORCHFLEET_SHM_NODE_RANKS'] = '{on_each}'; begin(seconds=100); dist.barrier()\n"
        "if rank == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"start = time.monotonic(); told(dist.all_reduce, torch.ones({count})); assert time.monotonic() - start < 50\n"
        "os._exit(0)"
    )
    found = alone(tmp_path, code, size=4)
    assert found[3] == ""
    for text in found[:3]:
        assert re.search(r"rank \d failed|process of rank 3 has ended", text), found


LEAVES = "dist.destroy_process_group()\n    while not os.path.exists(f'{place}/end'): time.sleep(0.1)"


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("way", ["os._exit(0)", LEAVES], ids=["ends", "leaves"])
def test_what_a_rank_did_before_it_left_counts(tmp_path: Path, way: str) -> None:
    """What it did not do is noticed long before the timeout."""
    code = (
        "begin(seconds=300); dist.barrier(); ones = torch.ones(3)\n"
        "if rank == 0: time.sleep(1.5)\n"
        f"if rank == 1:\n    dist.broadcast(ones, 1); {way}\n    os._exit(0)\n"
        "ones[:] = 0; dist.broadcast(ones, 1); print(ones.tolist(), flush=True)\n"
        "told(dist.broadcast, ones, 1); open(f'{place}/end', 'w'); os._exit(0)"
    )
    first, second = alone(tmp_path, code)[0].splitlines()
    assert first == "[1.0, 1.0, 1.0]"
    assert re.search("the process of rank 1 has ended$|rank 1 has left the group$", second), second


@pytest.mark.usefixtures("run")
def test_a_store_may_outlive_a_group(tmp_path: Path) -> None:
    """As torchrun's does, and each rank finds what the others said of a group with the same name before."""
    code = (
        "begin()\n"
        "for turn in range(6):\n"
        "    if rank == turn % 2: time.sleep(0.3)\n"
        "    group = dist.new_group([0, 1], use_local_synchronization=True); ones = torch.ones(3)\n"
        "    dist.all_reduce(ones, group=group); print(ones.tolist() == [2] * 3, flush=True)\n"
        "    dist.destroy_process_group(group)\n"
        "dist.barrier()"
    )
    assert alone(tmp_path, code) == ["True\n" * 6] * 2


@pytest.mark.usefixtures("run")
def test_a_forked_child_does_not_write_to_its_parents_gradients(tmp_path: Path) -> None:
    code = (
        "begin(); linear = torch.nn.Linear(2, 2)\n"
        "model = torch.nn.parallel.DistributedDataParallel(linear, gradient_as_bucket_view=True)\n"
        "model(torch.ones(1, 2)).sum().backward(); child = os.fork()\n"
        "if child == 0:\n"
        "    print(linear.bias.grad.tolist(), flush=True); linear.bias.grad.zero_()\n"
        "    print(linear.bias.grad.tolist(), flush=True); os._exit(0)\n"
        "os.waitpid(child, 0); print(linear.bias.grad.tolist(), flush=True); dist.barrier()"
    )
    assert alone(tmp_path, code) == ["[1.0, 1.0]\n[0.0, 0.0]\n[1.0, 1.0]\n"] * 2


@pytest.mark.usefixtures("run")
def test_a_forked_child_is_no_rank(tmp_path: Path) -> None:
    """And its parent goes on."""
    code = (
        "begin(); dist.barrier()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    ones = torch.ones(3); told(dist.all_reduce, ones)\n"
        "    told(dist.send, ones, 1 - rank); told(dist.recv, ones)\n"
        "    told(dist.group.WORLD.monitored_barrier); os._exit(0)\n"
        "os.waitpid(child, 0); ones = torch.ones(1); dist.all_reduce(ones); print(ones.item()); dist.barrier()"
    )
    for text in alone(tmp_path, code):
        assert len(re.findall(r"backend shm: process \d+ was forked from rank \d, and is no rank", text)) == 4, text
        assert text.splitlines()[-1] == "2.0", text


@pytest.mark.usefixtures("run")
def test_a_forked_child_may_have_a_group_of_its_own(tmp_path: Path) -> None:
    """Also while its parent is in an operation, whose thread the child does not have."""
    code = (
        "begin(); dist.barrier(); ones = torch.ones(1)\n"
        "work = dist.all_reduce(ones, async_op=True) if rank == 0 else None\n"
        "time.sleep(0.5)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    dist.destroy_process_group(); threes = torch.full((2,), 3.0)\n"
        "    dist.init_process_group('shm', store=dist.HashStore(), rank=0, world_size=1); dist.all_reduce(threes)\n"
        "    print(threes.tolist(), flush=True); sys.exit()\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "dist.all_reduce(ones) if rank == 1 else work.wait()\n"
        "print(ones.item()); dist.barrier()"
    )
    for text in alone(tmp_path, code):  # PyTorch 2.15 warns of the child's rank
        assert [line for line in text.splitlines() if not line.startswith("[W")] == ["[3.0, 3.0]", "2.0"], text


WITH_SMALL_SHM = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=64k none /dev/shm && exec "$0" "$@"']
OWN_PROCESSES = ["unshare", "--pid", "--fork"]
SUM = (
    "begin(); tensor = torch.ones(3_000_000); dist.all_reduce(tensor); assert bool((tensor == 2).all())\n"
    "shared = dist.group.WORLD._get_backend(torch.device('cpu')).supports_tensor_alloc(torch.device('cpu'))\n"
    "print(shared, [name for name in os.listdir('/dev/shm') if 'torchfleet' in name]); dist.barrier()"
)


@pytest.mark.usefixtures("run")
def test_the_size_of_dev_shm_does_not_matter(tmp_path: Path) -> None:
    """As in a container, where it is 64 MB unless somebody says otherwise; nothing has a name there."""
    assert alone(tmp_path, SUM, before={0: WITH_SMALL_SHM, 1: WITH_SMALL_SHM}) == ["True []\n"] * 2


@pytest.mark.usefixtures("run")
def test_ranks_that_cannot_share_memory_use_gloo(tmp_path: Path) -> None:
    """Each in a pid namespace of its own, as in containers of their own."""
    assert alone(tmp_path, SUM, before={1: OWN_PROCESSES}) == ["False []\n"] * 2


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("on_each", [1, 2])
@pytest.mark.parametrize("count", [100, 100_000], ids=["short", "long"])
def test_nodes_that_ask_for_different_things(tmp_path: Path, on_each: int, count: int) -> None:
    code = (
        f"os.environ['TORCHFLEET_SHM_NODE_RANKS'] = '{on_each}'; begin(seconds=60)\n"
        f"ones, op = torch.ones({count}), dist.ReduceOp.SUM if rank < 2 else dist.ReduceOp.MAX\n"
        "told(dist.all_reduce, ones, op=op); os._exit(0)"
    )
    for rank, text in enumerate(alone(tmp_path, code, size=4)):
        asked = ["SUM", "MAX"] if rank < 2 else ["MAX", "SUM"]
        assert [asked[0] in text, asked[1] in text, "do not ask for the same" in text] == [True] * 3, text


# What each pair of nodes asks for, and what the ranks are told of it. `one`: whether this rank is on the first node.
ELSEWHERE = {
    "broadcast": ("dist.broadcast, torch.ones(3), 0 if one else 1", ["root 0 of 3", "root 1 of 3"]),
    "reduce": ("dist.reduce, torch.ones(3 if one else 4), 0", ["of 3 Float", "of 4 Float"]),
    "empty": ("dist.broadcast, torch.ones(3 if one else 0), 0", ["of 3 Float", "of 0 Float"]),
    "all_gather": ("dist.all_gather, list(torch.ones(4, 1 + one)), torch.ones(1 + one)", ["of 2 Float", "of 1 Float"]),
    "reduce_scatter": ("dist.reduce_scatter, torch.ones(3), list(torch.ones(4, 3)), OP[one]",
                       ["reduce_scatter (SUM) of 3", "reduce_scatter (MAX) of 3"]),
    "types": ("dist.all_to_all_single, *[torch.ones(4, dtype=torch.float32 if one else torch.int32)] * 2",
              ["all_to_all of Float", "all_to_all of Int"]),
    "barrier": ("*(dist.barrier, ) if one else (dist.all_reduce, torch.ones(3))", ["barrier", "all_reduce (SUM) of 3"]),
}  # fmt: skip


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("on_each", [1, 2])
@pytest.mark.parametrize("case", ELSEWHERE)
def test_what_gloo_does_between_nodes_is_compared_before(tmp_path: Path, on_each: int, case: str) -> None:
    """All ranks fail in time, a later operation is refused, and the record has both as ended."""
    call, asked = ELSEWHERE[case]
    code = (
        f"os.environ.update(TORCHFLEET_SHM_NODE_RANKS='{on_each}', TORCH_FR_BUFFER_SIZE='2000')\n"
        "begin(seconds=60); one = rank < 2\n"
        "OP = dist.ReduceOp.MAX, dist.ReduceOp.SUM\n"
        f"told({call}); told(dist.barrier)\n"
        "import json; from torchfleet_backends import recorded\n"
        "rows = json.loads(recorded().split(bytes(1))[0])['entries']\n"
        "print(len(rows), all(row['retired'] for row in rows), flush=True); os._exit(0)"
    )
    for text in alone(tmp_path, code, size=4):
        assert [words in text for words in ("do not ask for the same", *asked)] == [True] * 3, text
        assert "an earlier operation of its group failed" in text and text.splitlines()[-1] == "2 True", text


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("asked", "rows"),
    [
        ("", 0),
        ("TORCH_FR_BUFFER_SIZE='0'", 0),
        ("TORCH_FR_BUFFER_SIZE='1'", 2),
        ("TORCH_NCCL_TRACE_BUFFER_SIZE='9'", 2),
    ],
)
def test_collectives_are_recorded_if_that_is_asked_for(tmp_path: Path, asked: str, rows: int) -> None:
    code = (
        f"os.environ.update({asked}); begin(); dist.barrier(); dist.all_reduce(torch.ones(3))\n"
        "import json; from torchfleet_backends import recorded\n"
        "print(len(json.loads(recorded().split(bytes(1))[0])['entries']), flush=True); dist.barrier()"
    )
    assert [text.splitlines()[-1] for text in alone(tmp_path, code)] == [str(rows)] * 2


@pytest.mark.usefixtures("run")
def test_a_process_that_can_make_no_thread_goes_on(tmp_path: Path) -> None:
    """Where it could, the operation is done: nothing waits for a thread that was never there."""
    code = (
        "import resource; begin(); groups = [dist.new_group([0, 1]) for _ in range(2)]; dist.barrier()\n"
        "soft, hard = resource.getrlimit(resource.RLIMIT_AS)\n"
        "used = int(open('/proc/self/statm').read().split()[0]) * os.sysconf('SC_PAGE_SIZE')\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), hard))\n"
        "told(dist.all_reduce, torch.ones(1), group=groups[0]); resource.setrlimit(resource.RLIMIT_AS, (soft, hard))\n"
        "ones = torch.ones(1); dist.all_reduce(ones, group=groups[0]); print(ones.item(), flush=True); dist.barrier()"
    )
    for text in alone(tmp_path, code):
        assert "Resource temporarily unavailable" in text and text.splitlines()[-1] == "2.0", text


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("nodes", ["one", "two"])
def test_parts_of_another_size_are_refused_on_all_ranks(tmp_path: Path, nodes: str) -> None:
    """Before anything is sent; also of what a rank keeps."""
    code = (
        f"if {nodes == 'two'}: os.environ['TORCHFLEET_SHM_NODE_RANKS'] = '1'\n"
        "begin(); sends, receives = ([1, 3], [1, 1]) if rank == 0 else ([1, 1], [5, 1])\n"
        "given = torch.zeros(sum(receives)), torch.zeros(sum(sends)), receives, sends\n"
        "told(dist.all_to_all_single, *given)\n"
        "group, kept = dist.new_group([0, 1]), torch.zeros(3 - 2 * rank)\n"
        "told(dist.all_to_all, [torch.zeros(1), kept][::1 if rank else -1], [torch.ones(1 + rank)] * 2, group=group)\n"
        "print(kept.tolist(), flush=True); os._exit(0)"
    )
    for rank, text in enumerate(alone(tmp_path, code)):
        first, second, kept = text.splitlines()
        assert "rank 0 sends 12 bytes to rank 1, which expects 20" in first, text
        assert "rank 0 sends 4 bytes to rank 0, which expects 12" in second, text
        assert kept == str([0.0] * (3 - 2 * rank))


@pytest.mark.usefixtures("run")
def test_a_rank_polls_if_all_have_a_core_together(tmp_path: Path) -> None:
    """Whatever its own cores are: a launcher may bind each rank to one (Open MPI does)."""
    one, other = sorted(os.sched_getaffinity(0))[:2]
    code = (
        "begin(); dist.barrier()\n"
        "for ranks in ([0, 1], [1, 2]): group = dist.new_group(ranks); rank in ranks and dist.barrier(group=group)\n"
        "dist.barrier()"
    )
    logged = ["env", "TORCH_CPP_LOG_LEVEL=INFO", "taskset", "--cpu-list"]
    bound = {rank: [*logged, str(core)] for rank, core in enumerate([one, other, other])}
    found = alone(tmp_path, code, size=3, before=bound)
    told = [re.findall(r"(\d) ranks share memory and (\d) cores: a rank that waits (\w+)", text) for text in found]
    assert told == [[("3", "2", "sleeps"), ("2", "2", "polls")], [("2", "1", "sleeps")], []], found


# The first rank makes the file, and then waits for the others, of which there are none.
FIRST_OF_MANY = """
import datetime, os, threading, torch, torch.distributed as dist
import torchfleet_backends._shared as shared
given = dist.HashStore(), 0, [0] * 256, datetime.timedelta(seconds=100), None
threading.Thread(target=shared.module().create, args=given, daemon=True).start()
def sizes():
    for name in os.listdir("/proc/self/fd"):
        path = f"/proc/self/fd/{name}"
        if os.path.lexists(path) and os.readlink(path).startswith("/memfd:torchfleet"):
            yield os.stat(path).st_size
while not max(sizes(), default=0): pass
print(max(sizes()), flush=True); os._exit(0)
"""


@pytest.mark.usefixtures("run")
def test_the_memory_of_a_group_is_bounded(tmp_path: Path) -> None:
    """Without a bound it has half a megabyte for each rank: 134 MB for 256, and more than that before."""
    (text,) = alone(tmp_path, FIRST_OF_MANY, size=1)
    assert 64_000_000 < int(text) < 80_000_000


@pytest.mark.usefixtures("run")
def test_ranks_with_different_torchs_are_refused(tmp_path: Path) -> None:
    version, code = package.torch_version(), "torch.__version__ += '+mine' * rank; told(begin)"
    for text in alone(tmp_path, code):
        assert f"backend shm: rank 1 has torch {version}+mine, rank 0 torch {version}: use the same" in text, text


@pytest.mark.usefixtures("run")
def test_ranks_with_different_releases_of_it_are_refused(tmp_path: Path) -> None:
    code = "import torchfleet_backends._shared as shared; shared.PROTOCOL += 'x' * rank; told(begin)"
    for rank, text in enumerate(alone(tmp_path, code)):
        assert f"backend shm: rank {1 - rank} has another release of it: use the same" in text, text


@pytest.mark.usefixtures("run")
def test_what_all_ranks_asked_for_is_done_before_the_end(tmp_path: Path) -> None:
    code = "begin(); works = [dist.all_reduce(torch.ones(10**6), async_op=True) for _ in range(20)]; print('end', rank)"
    assert alone(tmp_path, code) == ["end 0\n", "end 1\n"]
