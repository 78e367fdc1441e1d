"""Workloads that find something wrong: each says so in one line and fails, on every rank."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.driver import REPO
from tests.integration.fleet import INSTALLED

PYTHON = str(INSTALLED / "pytorch" / "bin" / "python")
WORKLOADS = REPO / "workloads"
# Makes what one rank receives wrong, then turns into the workload.
SPOILED = """
import runpy, sys, torch.distributed as dist
sound, sys.argv = getattr(dist, sys.argv[1]), sys.argv[2:]
def spoiled(tensor, *given, **more):
    came = sound(tensor, *given, **more)
    if tensor.numel() > 1:
        tensor.view(-1)[3] += 1
    return came
setattr(dist, sound.__name__, spoiled)
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def start(
    *words: object, ranks: int = 1, said: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program on so many ranks; one needs no launcher. `said`: what it reads from stdin."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    names = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment}
    return subprocess.run(
        [PYTHON, *(torchrun if ranks > 1 else []), *map(str, words)],
        env={**os.environ, **names},
        input=said,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def spoiled(tmp_path: Path, function: str, workload: str, *words: str, ranks: int = 1) -> tuple[int, str]:
    driver = tmp_path / "spoiled.py"
    driver.write_text(SPOILED)
    done = start(driver, function, WORKLOADS / f"{workload}.py", *words, ranks=ranks)
    return done.returncode, done.stdout + done.stderr


def mistaken(done: subprocess.CompletedProcess[str], says: str) -> None:
    """A mistake of the user is one line, and status 2."""
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stdout + done.stderr
    assert re.search(says, done.stderr), done.stderr


def test_pi_fails_where_it_is_not_pi() -> None:
    done = start(WORKLOADS / "pi.py", "--intervals", "10")
    assert done.returncode == 1
    assert re.search(r"pi\.py: the error .* is not below 1e-10; more --intervals make it smaller", done.stderr)
    assert start(WORKLOADS / "pi.py", "--intervals", "100000").returncode == 0


def test_a_training_that_reaches_too_little_fails(tmp_path: Path) -> None:
    one = ("--epochs", "1", "--lr", "0.00001")
    done = start(WORKLOADS / "mnist.py", *one)
    assert done.returncode == 1 and "is below --target-accuracy 0.97" in done.stderr, done.stderr
    kept = tmp_path / "kept.pt"
    done = start(WORKLOADS / "mnist.py", *one, "--target-accuracy", "0", "--device", "cpu", "--save-model", kept)
    assert done.returncode == 0 and f"the trained weights are in {kept}" in done.stdout, done.stderr
    weights = start("-c", f"import torch; print(sorted(torch.load({str(kept)!r}, weights_only=True))[0])").stdout
    assert weights == "0.0.bias\n"


@pytest.mark.parametrize("content", [b"no checkpoint", b""])
def test_what_is_no_checkpoint_is_not_resumed_from(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.pt").write_bytes(content)
    resume = ("--resume", "--checkpoint", tmp_path / "x.pt")
    mistaken(start(WORKLOADS / "mnist.py", *resume), "x.pt is damaged or not a checkpoint")


def test_a_checkpoint_of_another_program_is_not_resumed_from(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    code = f"replace(Path({str(path)!r}), lambda stream: torch.save({{'model': {{}}}}, stream))"
    imports = "import torch; from pathlib import Path; from _sealed import replace; "
    assert start("-c", imports + code, PYTHONPATH=str(WORKLOADS)).returncode == 0
    resume = ("--resume", "--checkpoint", path)
    mistaken(start(WORKLOADS / "mnist.py", *resume), "x.pt is not a checkpoint of this program")
    assert path.exists()


def test_a_checkpoint_that_would_run_a_program_does_not(tmp_path: Path) -> None:
    path, made = tmp_path / "x.pt", tmp_path / "made"
    code = (
        "import os, torch; from pathlib import Path; from _sealed import replace\n"
        f"class Hostile:\n    def __reduce__(self): return os.mkdir, ({str(made)!r},)\n"
        f"replace(Path({str(path)!r}), lambda stream: torch.save({{'model': Hostile()}}, stream))"
    )
    assert start("-c", code, PYTHONPATH=str(WORKLOADS)).returncode == 0
    resume = ("--resume", "--checkpoint", path)
    mistaken(start(WORKLOADS / "mnist.py", *resume), "x.pt is damaged or not a checkpoint")
    assert not made.exists()


def test_a_mistake_that_rank_0_sees_ends_every_rank(tmp_path: Path) -> None:
    """The others would wait for it in the next collective until the job is ended from outside."""
    (tmp_path / "x.pt").write_bytes(b"no checkpoint")
    resume = ("--resume", "--checkpoint", tmp_path / "x.pt")
    done = start(WORKLOADS / "mnist.py", *resume, ranks=2)
    assert done.returncode != 0 and done.stderr.count("x.pt is damaged or not a checkpoint") == 1, done.stderr


def test_sums_that_are_wrong_fail_the_benchmark(tmp_path: Path) -> None:
    sizes = ("--min-bytes", "1K", "--max-bytes", "1K", "--iterations", "1")
    status, text = spoiled(tmp_path, "all_reduce", "all_reduce_bench", *sizes)
    assert status == 1 and "some sums are wrong: see the last column" in text, text


def test_a_message_that_arrives_wrong_fails_its_receiver(tmp_path: Path) -> None:
    status, text = spoiled(tmp_path, "recv", "message_passing", ranks=2)
    assert status != 0 and "rank 1 received wrong values from rank 0" in text, text


# Every product of the second rank takes a hundred times as long, as on a GPU that is throttled; or the third one is
# wrong.
THROTTLED = "lambda one, other: time.sleep(0.5) or sound(one, other)"
BROKEN = "lambda one, other: sound(one, other) and next(turns) != 3"
SPOILED_PRODUCTS = """
import itertools, os, runpy, sys, time, torch
sound, turns = torch.equal, itertools.count()
if os.environ["RANK"] == "1":
    torch.equal = {spoiled}
sys.argv = sys.argv[1:]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(("spoiled", "says"), [(THROTTLED, "the median of all ranks is"), (BROKEN, "wrong results")])
def test_a_burn_in_names_the_rank_that_is_slow_or_wrong(tmp_path: Path, spoiled: str, says: str) -> None:
    driver = tmp_path / "spoiled.py"
    driver.write_text(SPOILED_PRODUCTS.format(spoiled=spoiled))
    # On a machine with other work a sound rank may get half of what the other one gets.
    load = ("--device", "cpu", "--seconds", "0.5", "--least-share", "0.1")
    done = start(driver, WORKLOADS / "burn_in.py", *load, ranks=2)
    found = re.findall(r"burn_in\.py: cpu of rank (\d) on \S+: (.*)", done.stderr)
    assert done.returncode != 0 and [rank for rank, _fault in found] == ["1"] and says in found[0][1], done.stderr


def test_a_burn_in_of_gpus_that_are_not_there_is_refused() -> None:
    done = start(WORKLOADS / "burn_in.py", "--device", "cuda")
    mistaken(done, "--device cuda: local rank 0 has no cuda device; this node has 0")
    sound = start(WORKLOADS / "burn_in.py", "--seconds", "0.1", "--least-share", "0.01", ranks=2)
    assert sound.returncode == 0 and "torchfleet: tflops=" in sound.stdout, sound.stderr


def test_a_message_that_went_to_another_receiver_is_seen_as_wrong() -> None:
    code = "import message_passing as m; a, b = m.message(1, 'cpu'), m.message(2, 'cpu'); print(bool((a == b).any()))"
    assert start("-c", code, PYTHONPATH=str(WORKLOADS)).stdout == "False\n"


def test_a_backend_that_torch_does_not_have_is_named() -> None:
    mistaken(start(WORKLOADS / "pi.py", "--backend", "ucc"), r"this PyTorch \(.*\) has no backend 'ucc'")


def test_the_backend_of_the_job_is_the_one_that_is_used() -> None:
    """And --backend is for who wants another."""
    mistaken(start(WORKLOADS / "pi.py", TORCHFLEET_BACKEND="ucc"), "has no backend 'ucc'")
    few = ("--intervals", "100000", "--backend", "gloo")
    assert start(WORKLOADS / "pi.py", *few, TORCHFLEET_BACKEND="ucc").returncode == 0


def test_ranks_without_a_place_to_meet_say_what_is_to_be_set() -> None:
    place = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
    mistaken(start(WORKLOADS / "pi.py", **place), "MASTER_ADDR and MASTER_PORT must be set")
