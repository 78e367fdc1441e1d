"""Compute pi as the integral of 4 / (1 + x^2) from 0 to 1 by the trapezoid rule, split over the ranks."""

import math

import torch
import torch.distributed as dist
from _basics import Parser, positive, share
from _common import Rank, complain, join, report, run

TOLERANCE = 1e-10
CHUNK = 1 << 20  # Intervals at a time: 8 MiB per temporary tensor, whatever the number of intervals.


def integral(intervals: range, width: float, device: torch.device) -> torch.Tensor:
    """Integrate over some of the intervals of this width; float64 scalar."""
    total = torch.zeros((), dtype=torch.float64, device=device)
    for start in intervals[::CHUNK]:
        stop = min(start + CHUNK, intervals.stop)
        x = torch.arange(start, stop + 1, dtype=torch.float64, device=device) * width
        total += torch.trapezoid(4 / (1 + x * x), dx=width)
    return total


def pi(intervals: int, rank: Rank) -> float:
    """Integrate this rank's share and add up all ranks' shares."""
    total = integral(share(intervals, rank.world_size, rank.rank), 1 / intervals, rank.device).to(rank.wire)
    dist.all_reduce(total)
    return float(total)


def main() -> int:
    """Join, compute, check and report; return the exit code."""
    parser = Parser(__doc__)
    # The rule's own error is width^2 / 6 here: about 41,000 intervals are enough for the tolerance.
    parser.add_argument("--intervals", type=positive, default=10_000_000, help="default: %(default)s")
    options = parser.parse_args()
    value = pi(options.intervals, join(options.backend, options.device, staged=True))
    error = abs(value - math.pi)
    report(pi=f"{value:.15f}", error=error)
    if not error < TOLERANCE:
        complain(f"the error {error:.1e} is not below {TOLERANCE:.0e}; more --intervals make it smaller")
        return 1
    return 0


if __name__ == "__main__":
    run(main)
