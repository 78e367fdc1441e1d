"""Rank 0 sends a tensor to every other rank, and every rank prints what it sent or received, to test messages."""

import torch
import torch.distributed as dist
from _basics import Parser
from _common import Rank, join, report, run, say

LENGTH = 1000


def message(receiver: int, device: torch.device) -> torch.Tensor:
    """Make what `receiver` is sent: float32 [LENGTH], different for every receiver."""
    return torch.arange(LENGTH, dtype=torch.float32, device=device) + receiver


def send_all(rank: Rank) -> int:
    """Send its message to every other rank; return the exit code."""
    for receiver in range(1, rank.world_size):
        dist.send(message(receiver, rank.device).to(rank.wire), dst=receiver)
        say(f"rank 0 sent to rank {receiver}")
    report(messages=rank.world_size - 1)
    return 0


def receive(rank: Rank) -> int:
    """Receive from rank 0 and check every value; return the exit code."""
    expected = message(rank.rank, rank.device)
    received = torch.full_like(expected, torch.nan, device=rank.wire)
    dist.recv(received, src=0)
    right = torch.equal(received.to(rank.device), expected)
    say(f"rank {rank.rank} received {'' if right else 'wrong values '}from rank 0")
    return 0 if right else 1


def main() -> int:
    """Join, send or receive, and return the exit code."""
    options = Parser(__doc__).parse_args()
    rank = join(options.backend, options.device, staged=True)
    return send_all(rank) if rank.rank == 0 else receive(rank)


if __name__ == "__main__":
    run(main)
