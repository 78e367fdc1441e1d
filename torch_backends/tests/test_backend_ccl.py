"""Backend ccl under torchrun: every check of ranks.py, and what goes wrong."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from torch_backends.tests.conftest import CHECKS, MISHAPS, Came, Run, wrong
from torch_backends.tests.package import PACKAGE, PYTHON

# As scripts for Intel's bindings of oneCCL begin.
INTELS = """
import os, torch, torch.distributed as dist
import oneccl_bindings_for_pytorch as torch_ccl
dist.init_process_group(backend="ccl", init_method="env://")
tensor = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(tensor)
print(f"{tensor.tolist()} {os.path.isfile(os.path.join(torch_ccl.cwd, 'env/setvars.sh'))}\\n", end="", flush=True)
"""
ALONE = "import torch, torch.distributed as dist\ndist.init_process_group('ccl')\nrank = dist.get_rank()\n"


@pytest.mark.combination  # tests/lab/test_across_backends.py has all checks between nodes
@pytest.mark.parametrize("check", CHECKS)
def test_every_rank_finds_what_it_should(came: Came, check: str) -> None:
    assert wrong(came("torchrun", 3, "ccl", ()), check) == ""


def test_a_script_in_intels_words(run: Run) -> None:
    """It imports a module of that name, and has the backend; one line says whose it is."""
    done = run("torchrun", 2, "-c", INTELS)
    assert done.returncode == 0 and done.stdout.count("[3.0, 3.0, 3.0] True\n") == 2, done.stdout + done.stderr
    assert done.stderr.count("backend ccl is that of torchfleet-backends, on CPU tensors\n") == 1


@pytest.mark.usefixtures("run")  # which has PyTorch installed
def test_without_oneccl_it_says_what_brings_it() -> None:
    """As with the source alone, where role torch_backends has not laid the library beside it."""
    # torch would load the package that is installed, by the modules of this one.
    environment = {
        "PYTHONPATH": str(PACKAGE / "src"),
        "HOME": str(Path.home()),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0",
    }
    code = "from torchfleet_backends._oneccl import load; load()"
    done = subprocess.run([PYTHON, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert re.search(r"BackendError: backend ccl: .*libccl\.so\.2.*ansible-playbook setup\.yml -e ", done.stderr), (
        done.stderr
    )
    assert "TORCHFLEET_CCL_LIBRARY" in done.stderr and "CCL_ROOT" in done.stderr
    code = "import oneccl_bindings_for_pytorch"
    done = subprocess.run([PYTHON, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert "ImportError: oneccl_bindings_for_pytorch: there is no oneCCL" in done.stderr, done.stderr


def test_an_operation_that_one_rank_leaves_out_times_out(run: Run) -> None:
    """And the process ends, though a thread of it waits for ever."""
    code = ALONE + (
        "import datetime, time\n"
        "if rank == 1: time.sleep(3)\n"
        "else:\n    dist.all_reduce(torch.ones(2), async_op=True).wait(datetime.timedelta(seconds=1))\n"
    )
    done = run("torchrun", 2, "-c", code)
    told = "backend ccl: all_reduce number 1 of group 0 (rank 0 of 2) has not ended within 1000 ms"
    assert done.returncode != 0 and told in done.stderr, done.stderr


def test_nothing_hangs(run: Run, tmp_path: Path) -> None:
    """The ranks end well, though a thread of rank 0 waits for ever."""
    checks = [
        "data_parallel_training_ends_if_one_rank_stops",
        "groups_in_another_order_on_each_rank",
        "a_collective_in_the_callback_of_another",
    ]
    done = run("torchrun", 2, MISHAPS, tmp_path, "ccl", *checks)
    assert done.returncode == 0, done.stdout + done.stderr
    told = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert told == [dict.fromkeys(checks, "")] * 2


def test_a_group_that_is_never_destroyed(run: Run) -> None:
    done = run("torchrun", 2, "-c", ALONE + "dist.all_reduce(torch.ones(3)); print('end', rank)")
    assert (done.returncode, sorted(done.stdout.splitlines())[-2:]) == (0, ["end 0", "end 1"]), done.stderr


@pytest.mark.usefixtures("run")
def test_where_there_is_no_library_torch_has_no_such_backend(tmp_path: Path) -> None:
    """One that is named, and is none, is told of."""
    library = tmp_path / "libccl.so.2"
    library.touch()
    env = {"HOME": str(Path.home()), "TORCHFLEET_CCL_LIBRARY": str(library)}
    code = (
        "import torch.distributed as dist; dist.init_process_group('ccl', store=dist.HashStore(), rank=0, world_size=1)"
    )
    done = subprocess.run([PYTHON, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert f"backend ccl: {library}: file too short" in done.stderr
