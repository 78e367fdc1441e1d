"""On which device a workload computes. There is no GPU here: what PyTorch says of GPUs is made up, nothing else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.driver import REPO
from tests.integration.test_trainings import in_turn, run
from tests.integration.test_workloads import WORKLOADS, start

# Asks for seats as if PyTorch saw so many GPUs of a kind, and could compute on them or not.
ASK = """
import json, sys, types, torch, torch.distributed as dist
import _device
from _basics import Mistake
def made_up(kind, count):
    return types.SimpleNamespace(is_available=lambda: count > 0, device_count=lambda: count)
def asked(gpus, works, words):
    kinds = {kind: made_up(kind, gpus.get(kind, 0)) for kind in ("cuda", "xpu")}
    torch.get_device_module = lambda kind: kinds[str(kind).partition(":")[0]]
    _device.trial = lambda device: "" if works else "no kernel image is available"
    try:
        return [str(word) for word in _device.seat(**words)]
    except Mistake as mistake:
        return str(mistake)
dist.Backend.backend_capability["ccl"] = ["cpu"]
print(json.dumps([asked(*case) for case in json.load(sys.stdin)]))
"""
CUDA, XPU, NONE = {"cuda": 4}, {"xpu": 2}, {}
LOCAL = {"asked": "auto", "local_rank": 1}
# GPUs, whether they compute, what is asked for; device, wire, why.
CASES: list[tuple[dict[str, int], bool, dict[str, Any], list[str] | str]] = [
    (CUDA, True, {"backend": "nccl"}, ["cuda:1", "cuda:1", ""]),
    (XPU, True, {"backend": "xccl"}, ["xpu:1", "xpu:1", ""]),
    (CUDA, True, {"backend": "gloo"}, ["cuda:1", "cpu", ""]),
    (CUDA, True, {"backend": "mpi"}, ["cuda:1", "cuda:1", ""]),
    (CUDA, True, {"backend": "ucc"}, ["cuda:1", "cuda:1", ""]),
    (CUDA, True, {"backend": "mpi", "local_rank": 5}, ["cuda:1", "cuda:1", ""]),
    (XPU, True, {"backend": "gloo"}, ["cpu", "cpu", "gloo carries no xpu tensors"]),
    (XPU, True, {"backend": "gloo", "staged": True}, ["xpu:1", "cpu", ""]),
    (CUDA, True, {"backend": "ccl"}, ["cpu", "cpu", "ccl carries no cuda tensors"]),
    (CUDA, True, {"backend": "ccl", "staged": True}, ["cuda:1", "cpu", ""]),
    (CUDA, False, {"backend": "gloo"}, ["cpu", "cpu", "cuda does not work: no kernel image is available"]),
    (CUDA, True, {"backend": "gloo", "asked": "cpu"}, ["cpu", "cpu", ""]),
    (CUDA, True, {"backend": "nccl", "asked": "cpu", "staged": True}, ["cpu", "cuda:1", ""]),
    (CUDA, True, {"backend": "nccl", "asked": "cpu"}, "--device cpu: nccl carries tensors of cuda only"),
    (XPU, True, {"backend": "ucc", "asked": "xpu"}, "--device xpu: ucc carries tensors of cpu and cuda only"),
    (NONE, True, {"backend": "nccl"}, "nccl: local rank 1 has no cuda device; this node has 0"),
    (CUDA, True, {"backend": "nccl", "local_rank": 4}, "nccl: local rank 4 has no cuda device; this node has 4"),
    (
        CUDA,
        True,
        {"backend": "gloo", "staged": True, "shared": False, "local_rank": 4, "asked": "cuda"},
        "--device cuda: local rank 4 has no cuda device; this node has 4",
    ),
]


def test_a_rank_computes_on_a_gpu_that_its_backend_can_move_tensors_of() -> None:
    cases = [(gpus, works, {**LOCAL, **words}) for gpus, works, words, _wanted in CASES]
    done = start("-c", ASK, said=json.dumps(cases), PYTHONPATH=str(WORKLOADS))
    found = json.loads(done.stdout or "[]")
    told = {str(case): answer for case, answer in zip(cases, found, strict=True)}
    assert told == {str(case): wanted for case, (*_words, wanted) in zip(cases, CASES, strict=True)}, done.stderr


def test_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """By every workload: one that did not pass --device on would compute on the CPU without a word."""
    names = sorted(path.stem for path in WORKLOADS.glob("[!_]*.py"))
    needed = {"ddp": "1 1"}
    statuses, told = in_turn(*(run(name, f"{needed.get(name, '')} --device cuda", tmp_path) for name in names))
    assert statuses == [[2]] * len(names), told
    for name in names:
        assert f"{name}.py: --device cuda: local rank 0 has no cuda device; this node has 0\n" in told, told


def test_rank_0_tells_the_devices_of_all() -> None:
    few = ("--intervals", "100000")
    said = start(WORKLOADS / "pi.py", *few, ranks=2).stdout.splitlines()
    assert [line for line in said if "device: cpu (PyTorch 2." in line and "sees no GPU here" in line] == said[:1]
    code = "import _device; print(_device.told([('cuda', ''), ('cpu', 'no GPU'), ('cuda', '')]))"
    told = "device: cpu of 1 ranks, cuda of 2 ranks (rank 1: no GPU)\n"
    assert start("-c", code, PYTHONPATH=str(WORKLOADS)).stdout == told


def test_our_mpi_takes_tensors_of_every_kind_of_gpu() -> None:
    """PyTorch's own list for mpi lacks Intel's: DDP on such a GPU would find no backend."""
    code = (
        "import torchfleet_backends._autoload as ours, torch.distributed as dist; ours.autoload();"
        "print(dist.Backend.backend_capability['mpi'])"
    )
    said = start("-c", code, PYTHONPATH=str(REPO / "torch_backends/src"), TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert "'xpu'" in said.stdout, said.stderr
