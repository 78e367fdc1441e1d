"""On which device a rank computes, where the tensors live that its backend moves, and why."""

from typing import NamedTuple

import torch
import torch.distributed as dist
from _basics import Mistake

# The backends that carry tensors of one kind of accelerator only; every other backend here carries CPU tensors.
ACCELERATORS = {"nccl": "cuda", "xccl": "xpu"}
KINDS = ("cuda", "xpu")  # of AMD's GPUs too: PyTorch calls them cuda
CPU = torch.device("cpu")


class Seat(NamedTuple):
    """Where a rank computes (`device`), where what it sends lies (`wire`), and why on a CPU (else empty)."""

    device: torch.device
    wire: torch.device
    why: str = ""


def seat(asked: str, backend: str, local_rank: int, staged: bool = False, shared: bool = True) -> Seat:
    """Return the seat of a rank.

    `asked`: auto, cpu or one of KINDS. `staged`: the program copies what it sends to `wire`, so that any device will
    do. `shared`: ranks may take one GPU together where there are fewer GPUs than ranks.

    Raises:
        Mistake: there is no such device, or the backend cannot move its tensors.
    """
    own, moves = ACCELERATORS.get(backend, ""), carried(backend)
    if asked != "auto":
        kind, why = asked, ""
        if kind not in moves and not staged:
            raise Mistake(f"--device {kind}: {backend} carries tensors of {' and '.join(moves)} only")
    else:
        kind, why = (own, "") if own else found(backend, local_rank, staged)
    device = numbered(kind, local_rank, shared and not own, backend if asked == "auto" else f"--device {asked}")
    if kind in moves and backend != "gloo":  # which has no messages of GPU tensors, and stages the rest
        return Seat(device, device, why)
    return Seat(device, numbered(own or "cpu", local_rank, False, backend), why)


def found(backend: str, local_rank: int, staged: bool) -> tuple[str, str]:
    """Return the kind of device that there is for a backend that needs none, and why it is the CPU."""
    kind = next((kind for kind in KINDS if torch.get_device_module(kind).is_available()), "cpu")
    if kind == "cpu":
        return "cpu", f"PyTorch {torch.__version__} sees no GPU here"
    if not staged and kind not in carried(backend):
        return "cpu", f"{backend} carries no {kind} tensors"
    problem = trial(numbered(kind, local_rank, True, backend))
    return ("cpu", f"{kind} does not work: {problem}") if problem else (kind, "")


def carried(backend: str) -> tuple[str, ...]:
    """Return the kinds of devices whose tensors a backend takes, as PyTorch knows it."""
    own = ACCELERATORS.get(backend)
    return (own,) if own else tuple(dist.Backend.backend_capability.get(backend, ["cpu"]))


def trial(device: torch.device) -> str:
    """Return the first line of what PyTorch says of a sum on a device; empty if that works.

    A build without code for this GPU fails here (`no kernel image is available`).
    """
    try:
        (torch.ones(2, device=device) + 1).tolist()
    except RuntimeError as problem:
        return f"{problem}".partition("\n")[0]
    return ""


def numbered(kind: str, local_rank: int, shared: bool, wants: str) -> torch.device:
    """Return the device of a local rank. Raise Mistake where there are fewer; `wants`: what asks for it."""
    if kind == "cpu":
        return CPU
    count = torch.get_device_module(kind).device_count()
    if not count or (local_rank >= count and not shared):
        raise Mistake(f"{wants}: local rank {local_rank} has no {kind} device; this node has {count}")
    return torch.device(kind, local_rank % count)


def told(seats: list[tuple[str, str]]) -> str:
    """Return one line about the devices of all ranks, each given as its kind and why it is no GPU."""
    kinds = sorted({kind for kind, _why in seats})
    rank, why = next(((rank, why) for rank, (_kind, why) in enumerate(seats) if why), (0, ""))
    if len(kinds) == 1:
        return f"device: {kinds[0]} ({why})" if why else f"device: {kinds[0]}"
    counts = (f"{kind} of {sum(kind == other for other, _why in seats)} ranks" for kind in kinds)
    return f"device: {', '.join(counts)} (rank {rank}: {why})" if why else f"device: {', '.join(counts)}"
