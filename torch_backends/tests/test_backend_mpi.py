"""The backend under every MPI, with 2 to 4 ranks: every check of ranks.py, and what goes wrong."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.combinations import combined
from torch_backends.tests import package
from torch_backends.tests.conftest import CHECKS, MISHAP_CHECKS, Came, Run, wrong
from torch_backends.tests.package import HOME, MPIS, PYTHON

MPI_ALONE = {"TORCHFLEET_MPI_SHARED": "0"}  # as between nodes
TWO_LEVELS = {"TORCHFLEET_MPI_NODE_RANKS": "2"}  # as if two ranks were on each node
SMALL_STEPS = {"TORCHFLEET_MPI_STEP": "1000", **MPI_ALONE}  # as if an int counted no further
WORLDS = [
    ("openmpi", 3, SMALL_STEPS),
    ("openmpi-4.1", 3, TWO_LEVELS),
    ("mpich", 3, {}),
    ("intelmpi", 2, {}),
]
MORE_WORLDS = [
    ("openmpi", 2, {}),
    ("openmpi", 4, {}),
    ("openmpi", 4, TWO_LEVELS),
    ("mpich", 2, MPI_ALONE),
    ("mpich", 4, TWO_LEVELS),
    ("intelmpi", 3, MPI_ALONE),
]
OWN_TESTS = {"2.13": 94, "2.14": 94, "2.15": 94}  # of PyTorch, by its minor release: those that run here
JOB = {"TORCHFLEET_BACKEND": "mpi"}  # what ranks of a job with -e backend=mpi have
ALONE = "import torch.distributed as dist\ndist.init_process_group('mpi')\nrank = dist.get_rank()\n"


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize(
    "world", [*WORLDS, *combined(*((world,) for world in MORE_WORLDS))], ids=lambda world: f"{world[0]}-{world[1]}"
)
def test_every_rank_finds_what_it_should(came: Came, world: tuple[str, int, dict[str, str]], check: str) -> None:
    mpi, ranks, environment = world
    assert wrong(came(mpi, ranks, "mpi", tuple(environment.items())), check) == ""


@pytest.mark.parametrize("check", MISHAP_CHECKS)
@pytest.mark.parametrize("mpi", ["openmpi", "mpich", *combined("intelmpi")])
def test_nothing_hangs_or_lies(mishaps: Callable[[str, str], list[dict[str, str]]], mpi: str, check: str) -> None:
    """Each check of mishaps.py hung, or came to a wrong result, before it was written."""
    assert wrong(mishaps(mpi, "mpi"), check) == ""


# The ranks of the script are the other way round than those of MPI.
OTHER_WAY = (
    "import datetime, os, torch, torch.distributed as dist\n"
    "place, size = (int(os.environ['OMPI_COMM_WORLD_' + name]) for name in ('RANK', 'SIZE'))\n"
    "os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='29879')\n"
    "os.environ.update(RANK=str(size - 1 - place), WORLD_SIZE=str(size))\n"
    "assert not dist.Backend._plugins\n"
)


@pytest.mark.parametrize("backend", ["torchfleet", "cpu:mpi", "cpu:gloo,cuda:torchfleet"])
def test_ranks_are_those_of_the_script(run: Run, backend: str) -> None:
    """Not those of MPI, where they differ. And a wait with a timeout of its own leaves the end a good one."""
    code = OTHER_WAY + (
        f"dist.init_process_group('{backend}')\n"
        "rank = dist.get_rank(); assert rank == size - 1 - place\n"
        "groups = [dist.group.WORLD, dist.new_group([0, 2]), dist.new_group([2, 1], backend='torchfleet')]\n"
        "for group, source in zip(groups, [0, 2, 1]):\n"
        "    if group is dist.GroupMember.NON_GROUP_MEMBER: continue\n"
        "    tensor = torch.tensor([rank]); dist.broadcast(tensor, source, group=group)\n"
        "    assert tensor.item() == source, (tensor, source)\n"
        "if rank == 0: __import__('time').sleep(1)\n"
        "work = dist.barrier(async_op=True)\n"
        "if rank == 1:\n"
        "    try: work.wait(datetime.timedelta(milliseconds=100))\n"
        "    except Exception as error: print('late', flush=True)\n"
        "work.wait(); dist.destroy_process_group(); print('end', rank, flush=True)\n"
    )
    done = run("openmpi", 3, "-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["end 0", "end 1", "end 2", "late"], done.stdout + done.stderr


@pytest.mark.parametrize("mpi", MPIS)
def test_an_operation_that_one_rank_leaves_out_times_out(run: Run, mpi: str) -> None:
    code = ALONE + (
        "import datetime, sys, time\n"
        "if rank == 0:\n"
        "    work = dist.all_reduce(__import__('torch').ones(2), async_op=True)\n"
        "    try:\n        work.wait(datetime.timedelta(seconds=1))\n"
        "    except Exception as error:\n        print(error, flush=True); sys.exit(3)\n"
        "time.sleep(3)\n"
    )
    done = run(mpi, 2, "-c", code)
    assert done.returncode != 0
    told = "all_reduce number 1 of group 0 (rank 0 of 2) has not ended within 1000 ms: rank 1 does not take part in it"
    assert told in done.stdout, done.stdout + done.stderr


def test_nothing_stays_in_shared_memory(run: Run) -> None:
    """What ranks share has no name: even of a job that is killed nothing is left."""
    before = set(Path("/dev/shm").iterdir())
    code = ALONE + "import os, torch\ndist.all_reduce(torch.ones(10**6)); os.kill(os.getpid(), 9)"
    assert run("openmpi", 2, "-c", code).returncode != 0
    assert {path for path in set(Path("/dev/shm").iterdir()) - before if "torchfleet" in path.name} == set()


def test_monitored_barrier_names_who_is_missing(run: Run) -> None:
    code = ALONE + (
        "import datetime, sys, time\n"
        "if rank == 2: time.sleep(5)\n"
        "try:\n    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=2))\n"
        "except Exception as error:\n    print(error, flush=True); sys.exit(3)\n"
    )
    done = run("openmpi", 3, "-c", code)
    assert "not there within 2000 ms: rank 2" in done.stdout, done.stdout + done.stderr


def test_a_monitored_barrier_after_one_that_failed(run: Run) -> None:
    """What was sent for the one is not taken for the other."""
    code = ALONE + (
        "import datetime, time\n"
        "for seconds in (1, 20, 20):\n"
        "    if rank == 2 and seconds == 1: time.sleep(3)\n"
        "    try:\n        dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=seconds))\n"
        "        print(rank, seconds, 'good')\n"
        "    except Exception as error:\n        print(rank, seconds, 'failed')\n"
    )
    done = run("openmpi", 3, "-c", code)
    expected = [f"{rank} {told}" for rank in range(3) for told in ("1 failed", "20 good", "20 good")]
    assert sorted(done.stdout.splitlines()) == sorted(expected), done.stdout + done.stderr


def test_a_sum_and_a_mean_in_a_long_reduce_scatter(run: Run) -> None:
    """It is done as one reduce for each rank, of which the signatures are compared too."""
    code = ALONE + (
        "import torch\nop = dist.ReduceOp.AVG if rank == 0 else dist.ReduceOp.SUM\n"
        "try:\n    dist.reduce_scatter_single(torch.ones(600), torch.ones(1200), op=op)\n"
        "except Exception as error:\n    print(rank, str(error).partition('the ranks ')[2])\n"
    )
    done = run("openmpi", 2, "-c", code, **SMALL_STEPS)
    told = (
        " do not ask for the same: rank 0: reduce_scatter (AVG) of 600 Float; rank 1: reduce_scatter (SUM) of 600 Float"
    )
    assert sorted(done.stdout.splitlines()) == [f"0{told}", f"1{told}"], done.stdout + done.stderr


def test_an_error_of_mpi_names_its_call(run: Run) -> None:
    """MPICH has fewer tags than torch."""
    code = ALONE + (
        "import torch\ntry:\n    dist.send(torch.ones(1), 1 - rank, tag=2**31 - 1)\n"
        "except Exception as error:\n    print(str(error).splitlines()[0])\n"
    )
    done = run("mpich", 2, "-c", code)
    assert [line[:24] for line in done.stdout.splitlines()] == ["backend mpi: MPI_Isend: "] * 2, (
        done.stdout + done.stderr
    )


def test_what_is_sent_after_the_end_of_the_backend(run: Run) -> None:
    """By a function that was to run at the exit before there was a group: its memory is kept until it is received."""
    code = (
        "import atexit, torch, torch.distributed as dist\n"
        "def late():\n    if rank == 0:\n        dist.isend(torch.full((3_000_000,), 7.0), 1)\n"
        "        [torch.zeros(3_000_000) for _number in range(3)]\n"
        "atexit.register(late)\n"
        "dist.init_process_group('mpi')\nrank = dist.get_rank()\n"
        "if rank == 1: given = torch.ones(3_000_000); dist.recv(given, 0); print(given.unique().tolist())\n"
    )
    done = run("openmpi", 2, "-c", code)
    assert (done.returncode, done.stdout) == (0, "[7.0]\n"), done.stdout + done.stderr


def test_a_group_that_is_never_destroyed(run: Run) -> None:
    """MPI is finalised all the same, in the right order."""
    done = run("openmpi", 2, "-c", ALONE + "dist.barrier(); print('end', rank)")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["end 0", "end 1"]), done.stderr


@pytest.mark.parametrize("mpi", MPIS)
def test_a_rank_that_fails_ends_all(run: Run, mpi: str) -> None:
    """The others wait for it in an operation, and MPI_Finalize would have it wait for them."""
    code = (
        "import torch\ndist.all_reduce(torch.ones(3))\n"
        "if rank == 1:\n    work = dist.barrier(async_op=True)\n    raise ValueError('a mistake of the user')\n"
        "for _time in range(2):\n    dist.barrier()\n"
    )
    done = run(mpi, 3, "-c", ALONE + code)
    assert done.returncode != 0 and "a mistake of the user" in done.stderr, done.stdout + done.stderr


# What the ranks of two nodes ask for, each case in a group of its own.
OTHER_NODES = ALONE + (
    "import datetime, os, time, torch\n"
    "def add(group, count, op='SUM'): dist.all_reduce(torch.ones(count), getattr(dist.ReduceOp, op), group)\n"
    "def told(case, least, most, work):\n"
    "    begun = time.monotonic()\n"  # before any rank has the group: the first one's time ends the others'
    "    group = dist.new_group(range(4), timeout=datetime.timedelta(seconds=most))\n"
    "    try: work(group)\n"
    "    except dist.DistBackendError as error:\n"
    "        in_time = least <= time.monotonic() - begun < most + 5\n"
    "        print(case, rank, in_time, str(error).replace(chr(10), ' '), flush=True)\n"
    "    dist.barrier()\n"
    "one = rank < 2\n"
    "told('absent', 3, 3, lambda group: add(group, 1_200_001) if rank != 3 else time.sleep(4))\n"
    "told('count', 0, 60, lambda group: add(group, 1_200_001 if one else 1_200_003))\n"
    "told('operation', 0, 60, lambda group: add(group, 1_200_001, 'SUM' if one else 'MAX'))\n"
    "told('way', 0, 60, lambda group: add(group, 1_200_001 if one else 3))\n"
    "os._exit(0)\n"
)


@pytest.mark.parametrize("mpi", ["openmpi", "mpich"])
def test_nodes_that_ask_for_different_things(run: Run, mpi: str) -> None:
    """All ranks fail, also those whose counterpart on the other node never comes (`way`: a long and a short one)."""
    done = run(mpi, 4, "-c", OTHER_NODES, **TWO_LEVELS)
    lines = sorted(line.split(" ", 3) for line in done.stdout.splitlines())
    failed = [("absent", "012"), ("count", "0123"), ("operation", "0123"), ("way", "0123")]
    expected = [[case, rank, "True"] for case, ranks in failed for rank in ranks]
    assert [line[:3] for line in lines] == expected, done.stdout + done.stderr
    for case, rank, _in_time, text in lines:
        why = "has not ended within 3000 ms" if case == "absent" else "do not ask for the same"
        assert why in text, (case, rank, text)


def test_a_forked_child_is_no_rank(run: Run) -> None:
    """It has its parent's connections, and must not use them."""
    code = ALONE + (
        "import os, torch\n"
        "dist.barrier(); ones, other, child = torch.ones(1), 1 - rank, os.fork()\n"
        "for call, *given in [(dist.all_reduce,), (dist.send, other), (dist.recv, other)] * (child == 0):\n"
        "    try: call(ones, *given)\n"
        "    except dist.DistBackendError as error: print('was forked from rank' in str(error), flush=True)\n"
        "if child == 0: os._exit(0)\n"
        "os.waitpid(child, 0); dist.barrier(); print('end', flush=True); os._exit(0)\n"
    )
    done = run("openmpi", 2, "-c", code)
    assert sorted(done.stdout.split()) == ["True"] * 6 + ["end"] * 2, done.stdout + done.stderr


def test_a_forked_child_ends_as_it_likes(run: Run) -> None:
    """Also while its parent is in an operation and a message: it has neither, and is no rank of MPI."""
    code = ALONE + (
        "import os, sys, time, torch\n"
        "dist.barrier(); ones = torch.ones(1)\n"
        "works = [dist.irecv(torch.ones(2), 1), dist.all_reduce(ones, async_op=True)] if rank == 0 else []\n"
        "time.sleep(0.5); child = os.fork()\n"
        "if child == 0:\n"
        "    dist.destroy_process_group()\n"
        "    try: dist.init_process_group('mpi')\n"
        "    except RuntimeError as error: print('which alone is a rank of MPI' in str(error), flush=True)\n"
        "    sys.exit()\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
        "if rank == 1: dist.send(ones.repeat(2), 0); dist.all_reduce(ones)\n"
        "for work in works: work.wait()\n"
        "dist.barrier(); print(ones.item(), flush=True)\n"
    )
    done = run("openmpi", 2, "-c", code)
    assert sorted(done.stdout.split()) == ["2.0"] * 2 + ["True"] * 2, done.stdout + done.stderr


def test_a_rank_that_is_killed_ends_a_job_on_several_nodes(run: Run) -> None:
    """While the others reduce long tensors with it."""
    code = ALONE + (
        "import os, torch\nones = torch.ones(1_200_001)\n"
        "for turn in range(10_000):\n"
        "    if (rank, turn) == (3, 20): os.kill(os.getpid(), 9)\n"
        "    dist.all_reduce(ones)\n"
    )
    assert run("openmpi", 4, "-c", code, **TWO_LEVELS).returncode != 0


def test_what_was_asked_for_is_done_before_the_end(run: Run) -> None:
    """Of a program that ends well and neither waits nor takes its group down."""
    code = "import torch\nwork = [dist.all_reduce(torch.ones(10**6), async_op=True) for _time in range(20)]\n"
    done = run("openmpi", 2, "-c", ALONE + code + "print('end', rank)")
    assert (done.returncode, sorted(done.stdout.splitlines())) == (0, ["end 0", "end 1"]), done.stderr


def alone(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code without any launcher."""
    home = {"HOME": str(Path.home()), **environment}
    return subprocess.run([PYTHON, "-c", code], env=home, capture_output=True, text=True, check=False)


@pytest.mark.usefixtures("run")
def test_without_a_launcher_it_says_so() -> None:
    done = alone(ALONE)
    assert "no MPI launcher started this process: start it with mpirun" in done.stderr


@pytest.mark.parametrize("mpi", MPIS)
def test_names_that_others_set_for_scripts_do_not_mislead(run: Run, mpi: str) -> None:
    names = {"OMPI_COMM_WORLD_SIZE": "2", "MPI_LOCALRANKID": "0"}
    done = run(mpi, 2, "-c", ALONE + "dist.barrier(); print('end', dist.get_world_size())", **names)
    assert sorted(done.stdout.splitlines()) == ["end 2", "end 2"], done.stderr


def test_an_mpi_that_the_launcher_does_not_know_is_told_of(run: Run) -> None:
    """Each rank would be alone in a world of its own, and the training a wrong one."""
    done = run("openmpi", 1, "-c", "import os; os.environ['OMPI_COMM_WORLD_SIZE'] = '2'\n" + ALONE)
    assert "the launcher started 2 ranks, but Open MPI v5.0.11" in done.stderr, done.stderr
    assert "sees 1: it is not the launcher's MPI; set TORCHFLEET_MPI_LIBRARY" in done.stderr


def test_a_wrong_library_is_named(run: Run, tmp_path: Path) -> None:
    done = run("openmpi", 1, "-c", ALONE, TORCHFLEET_MPI_LIBRARY=str(tmp_path / "libmpi.so.40"))
    assert f"{tmp_path}/libmpi.so.40" in done.stderr and "TORCHFLEET_MPI_LIBRARY" in done.stderr


def test_groups_that_are_destroyed_give_back_what_they_had(run: Run) -> None:
    """MPICH has some 2,000 communicators at a time."""
    code = ALONE + (
        "import torch\n"
        "for _number in range(1500):\n    group = dist.new_group([0, 1])\n    tensor = torch.ones(1)\n"
        "    (dist.send if rank else dist.recv)(tensor, 1 - rank, group=group)\n    dist.destroy_process_group(group)\n"
        "dist.barrier()\n"
    )
    done = run("mpich", 2, "-c", code)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("mpi", ["openmpi", "openmpi-4.1", "mpich", "intelmpi"] if package.OTHER else ["openmpi"])
def test_what_pytorch_tests_of_a_backend(run: Run, tmp_path: Path, mpi: str) -> None:
    """Its own tests of distributed backends: those that need no GPU and are not of another backend."""
    found = importlib.util.find_spec("expecttest")
    assert found and found.origin
    (tmp_path / "expecttest").symlink_to(Path(found.origin).parent)  # PyTorch's tests want it
    names = {"PYTHONPATH": str(tmp_path), "TORCHFLEET_BACKEND": "mpi"}
    done = run(mpi, 3, Path(__file__).with_name("pytorch_own.py"), tmp_path, "mpi", **names)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(3)]
    wrong = {name: text for found in told for name, text in found.items() if not text.startswith(("ok", "skipped"))}
    assert wrong == {}
    assert [list(found.values()).count("ok") for found in told] == [OWN_TESTS[package.torch_minor()]] * 3


@pytest.mark.parametrize(
    ("before", "told"),
    [
        (
            "torch.__version__ = '2.99.0'",
            "built for torch RELEASE, but this is 2.99.0: build it again: ansible-playbook setup.yml",
        ),
        (
            "torch.__version__ += ['', '+mine'][int(os.environ['OMPI_COMM_WORLD_RANK'])]",
            "rank 1 has torch VERSION+mine, rank 0 torch VERSION: use the same on all nodes",
        ),
        (
            f"ctypes.CDLL('{HOME}/mpich/lib/libmpi.so.12')",
            "/lib/libmpi.so.40 is needed: import no other MPI",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(run: Run, before: str, told: str) -> None:
    done = run("openmpi", 2, "-c", f"import ctypes, os, torch\n{before}\n{ALONE}")
    version = package.torch_version()
    told = told.replace("VERSION", version).replace("RELEASE", version.partition("+")[0])
    assert done.returncode != 0 and told in done.stderr, done.stderr


def test_it_has_a_name_of_its_own_too(run: Run) -> None:
    """By PyTorch's public way, and with the timeout that the script gives."""
    code = (
        "import datetime, os, torch, torch.distributed as dist\n"
        "rank, size = (int(os.environ['OMPI_COMM_WORLD_' + name]) for name in ('RANK', 'SIZE'))\n"
        "os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='29877', RANK=str(rank), WORLD_SIZE=str(size))\n"
        "dist.init_process_group('torchfleet', timeout=datetime.timedelta(seconds=2))\n"
        "ones = torch.ones(3); dist.all_reduce(ones)\n"
        "group = dist.new_group([1]); assert ones.tolist() == [2] * 3\n"
        "if rank == 0: dist.barrier()\n"
        "else: import time; time.sleep(4)\n"
    )
    done = run("openmpi", 2, "-c", code)
    assert "barrier number 2 of group 0 (rank 0 of 2) has not ended within 2000 ms: rank 1" in done.stderr, done.stderr


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "go through memory of the host"),
        ({"TORCHFLEET_MPI_DIRECT": "1"}, "are read by MPI itself"),
        ({"TORCHFLEET_MPI_DIRECT": "1", "TORCHFLEET_MPI_STEP": "7"}, "are read by MPI itself"),
    ],
    ids=["staged", "direct", "direct-small-steps"],
)
def test_tensors_of_accelerators(run: Run, environment: dict[str, str], told: str) -> None:
    """They go through memory of the host, but for an MPI that reads theirs."""
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29878", "TORCH_CPP_LOG_LEVEL": "INFO"}
    done = run("openmpi", 3, Path(__file__).with_name("accelerator.py"), **names, **environment)
    assert done.stdout.count("all is well") == 3, done.stdout + done.stderr
    assert f"tensors on far:0 {told}" in done.stderr, done.stderr


@pytest.fixture(scope="module")
def watched(run: Run, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compile what stands between the backend and Open MPI; return how a program begins that has it."""
    library = tmp_path_factory.mktemp("watched") / "watched_mpi.so"
    source = Path(__file__).with_name("watched_mpi.cpp")
    words = ["-shared", "-fPIC", f"-I{HOME}/openmpi/include", f"-L{HOME}/openmpi/lib", "-l:libmpi.so.40"]
    package.called("g++", source, "-o", library, *words, f"-Wl,-rpath,{HOME}/openmpi/lib")
    return f"import ctypes, os, time, torch\nctypes.CDLL('{library}', ctypes.RTLD_GLOBAL)\n" + ALONE


def test_what_all_ranks_count_together_fits_mpis_int(run: Run, watched: str) -> None:
    """Some MPIs multiply a rank's count by the ranks. Here an int counts to 1,000."""
    code = (
        "for count in (80, 90, 330, 340, 2000):\n"
        "    mine, all_ = torch.full((count,), rank + 1.0), torch.empty(3 * count)\n"
        "    dist.all_gather_into_tensor(all_, mine)\n"
        "    assert all_.tolist() == [1.0] * count + [2.0] * count + [3.0] * count\n"
        "    dist.reduce_scatter_single(mine, torch.ones(3 * count)); assert mine.tolist() == [3.0] * count\n"
        "print('end', rank)"
    )
    names = {**SMALL_STEPS, "WATCHED_MOST": "1000"}
    done = run("openmpi", 3, "-c", watched + code, **names)
    assert sorted(done.stdout.splitlines()) == ["end 0", "end 1", "end 2"], done.stdout + done.stderr


def test_the_rest_of_a_long_message_is_not_taken_for_another_one(run: Run) -> None:
    """Of one in several pieces, where other receives wait for the same rank and tag."""
    code = ALONE + (
        "import torch\n"
        "for number in range(200):\n"
        "    if rank == 1: dist.send(torch.ones(1000), 0); dist.send(torch.full((250,), 2.0), 0)\n"
        "    else:\n"
        "        long, other = torch.zeros(1000), torch.zeros(250)\n"
        "        works = [dist.irecv(tensor, 1 if number % 2 else None) for tensor in (long, other)]\n"
        "        for work in reversed(works): work.wait()\n"
        "        assert set(long.tolist()) == {1.0} and set(other.tolist()) == {2.0}, number\n"
        "print('end', rank)"
    )
    done = run("openmpi", 2, "-c", code, TORCHFLEET_MPI_STEP="1000")
    assert sorted(done.stdout.splitlines()) == ["end 0", "end 1"], done.stdout + done.stderr


def test_the_parts_of_two_messages_do_not_mix(run: Run) -> None:
    """Where two threads send to the same rank with the same tag."""
    code = ALONE + (
        "import threading, torch\n"
        "for turn in range(8):\n"
        "    if rank == 0:\n"
        "        given = [torch.full((500_000,), float(number)) for number in (1, 2)]\n"
        "        threads = [threading.Thread(target=dist.send, args=(one, 1)) for one in given]\n"
        "        for thread in threads: thread.start()\n"
        "        for thread in threads: thread.join()\n"
        "    else:\n"
        "        for _number in range(2):\n"
        "            tensor = torch.zeros(500_000); dist.recv(tensor, 0); assert len(tensor.unique()) == 1, turn\n"
        "print('end', rank)"
    )
    done = run("openmpi", 2, "-c", code, TORCHFLEET_MPI_STEP="1000")
    assert sorted(done.stdout.splitlines()) == ["end 0", "end 1"], done.stdout + done.stderr


@pytest.mark.parametrize("mpi", MPIS)
def test_a_message_in_parts_has_one_size(run: Run, mpi: str) -> None:
    """Whatever size is expected of it, nothing of it is left for the next receive, and nothing is written beside it."""
    sizes = [(500, 250), (250, 500), (375, 750), (750, 375), (500, 10), (10, 500), (1000, 0), (0, 250)]
    code = ALONE + (
        "import torch\n"
        f"for sent, expected in {[*sizes, (250, 250), (500, 500)]}:\n"
        "    for source in (1, None):\n"
        "        if rank == 1: dist.send(torch.ones(sent), 0); dist.send(torch.full((10,), 2.0), 0); continue\n"
        "        memory, other, told = torch.zeros(2000), torch.zeros(10), ''\n"
        "        try: dist.recv(memory[500:500 + expected], source)\n"
        "        except dist.DistBackendError as error: told = str(error)\n"
        "        dist.recv(other, source)\n"
        "        assert set(other.tolist()) == {2.0}, (sent, expected, source)\n"
        "        assert not memory[:500].any() and not memory[500 + expected:].any(), (sent, expected, source)\n"
        "        text = f'rank 1 sent {4 * sent} bytes, and {4 * expected} are expected'\n"
        "        assert (text in told) if sent != expected else not told, (text, told)\n"
        "print('end', rank)"
    )
    done = run(mpi, 2, "-c", code, TORCHFLEET_MPI_STEP="1000")
    assert sorted(done.stdout.splitlines()) == ["end 0", "end 1"], done.stdout + done.stderr


@pytest.mark.usefixtures("run")
def test_the_private_names_that_are_used_are_there() -> None:
    """Those of this release of PyTorch: another one may have others. The second of the makers came with 2.14."""
    code = (
        "from torch.distributed import distributed_c10d as c10d\n"
        "import torch, inspect, torchfleet_backends._autoload as ours\n"
        "makers = [getattr(c10d, name, None) for name in ('_new_process_group_helper', '_create_mpi_process_group')]\n"
        "source = '\\n'.join(inspect.getsource(maker) for maker in makers if maker)\n"
        "assert 'is_mpi_available()' in source and 'ProcessGroupMPI.create(' in source\n"
        "assert c10d.is_mpi_available() and c10d.ProcessGroupMPI is ours.ProcessGroupMPI\n"
        "names = list(inspect.signature(c10d._new_process_group_helper).parameters)\n"
        "assert names[:6] == ['group_size', 'group_rank', 'global_ranks_in_group', 'backend', 'store', 'group_name']\n"
        "assert 'timeout' in names and ours.PLUGINS and not c10d.Backend._plugins\n"
        "ours.PLUGINS.update(ccl=1, shm=2)\n"
        "listed = ours.telling(lambda *given, **more: dict(c10d.Backend._plugins), torch.distributed)\n"
        "names = 'cpu:gloo,xpu:xccl', 'nccl', 'CPU:shm,cuda:nccl'\n"
        "found = [listed(2, 0, [0, 1], name, torch.distributed.HashStore(), '') for name in names]\n"
        "assert found == [{}, {}, {'SHM': 2}], found\n"
    )
    done = alone(code)
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(("environment", "shown"), [({}, False), ({"TORCHFLEET_BACKEND": "gloo"}, False), (JOB, True)])
def test_it_is_shown_only_to_a_job_that_uses_it(environment: dict[str, str], shown: bool) -> None:
    """Accelerate takes mpi wherever it is available and no backend is named, also where no MPI has started the rank."""
    code = "import torch.distributed as d; print(d.is_mpi_available(), d.is_backend_available('mpi'))"
    assert alone(code, **environment).stdout.split() == [str(shown)] * 2


CHECKED = {"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}  # PyTorch's own wrapper compares what the ranks ask for


@pytest.mark.parametrize("environment", [{}, {"TORCHFLEET_BACKEND": "gloo"}, JOB, CHECKED], ids=str)
def test_its_name_is_enough(run: Run, environment: dict[str, str]) -> None:
    """Of a script that says mpi itself, under mpirun by hand too."""
    code = f"{ALONE}import torch\nones = torch.ones(1)\ndist.all_reduce(ones)\nprint('sum', int(ones))\n"
    done = run("openmpi", 2, "-c", code, **environment)
    assert done.stdout.split() == ["sum", "2"] * 2, done.stderr
