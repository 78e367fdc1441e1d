"""What a program is: a function that uses torch.distributed as a user would, and returns what it came to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist

Found = dict[str, torch.Tensor]


class Program(NamedTuple):
    """A program, and how far its results may differ from those under gloo with three ranks and more."""

    run: Callable[[], Found]
    tolerance: float  # relative to the largest number of a tensor; 0: the same bits


PROGRAMS: dict[str, Program] = {}


def program(tolerance: float = 1e-5) -> Callable[[Callable[[], Found]], Callable[[], Found]]:
    """Make a function one of the programs.

    Two numbers have one sum. Of more, gloo adds in the order of its algorithm, and our backends in that of the ranks.
    """

    def add(function: Callable[[], Found]) -> Callable[[], Found]:
        PROGRAMS[function.__name__] = Program(function, tolerance)
        return function

    return add


def rank() -> int:
    return int(dist.get_rank())


def size() -> int:
    return int(dist.get_world_size())


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return what a DTensor stands for, on all ranks; a copy of any other tensor."""
    from torch.distributed.tensor import DTensor

    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def state(module: torch.nn.Module, prefix: str = "") -> Found:
    """Return all parameters and buffers of a module, whole."""
    return {prefix + name: whole(tensor) for name, tensor in module.state_dict().items()}


def listed(name: str, losses: Iterable[torch.Tensor]) -> Found:
    """Return numbers under a name."""
    return {name: torch.stack([whole(loss) for loss in losses])}


def same_everywhere(found: Found) -> Found:
    """Return it if all ranks have the same bits."""
    for name, tensor in found.items():
        parts = [torch.empty_like(tensor) for _rank in range(size())]
        dist.all_gather(parts, tensor.contiguous())
        assert all(torch.equal(part, tensor) for part in parts), f"{name} differs between the ranks"
    return found


def sgd(module: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)


@functools.cache
def grid() -> tuple[int, int]:
    """Return how the ranks are laid out in two dimensions: two by two if there are four, else side by side."""
    return (2, size() // 2) if size() == 4 else (1, size())
