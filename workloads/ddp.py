"""Train a linear model on synthetic data with DistributedDataParallel, and save snapshots of it.

The labels are a fixed linear function of the data and a little noise, so the loss falls to the variance of the noise.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from _basics import Parser, positive
from _checkpoint import RUN_ME_AGAIN, Checkpoints, Notice
from _common import Rank, complain, join, report, run
from _training import KEYS, Loop, Plan, in_batches, mean_of_all, order, steps_of, warm_up
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

FEATURES = 20
NOISE = 0.1  # deviation: a loss of 0.01 is as good as it gets


class Regression:
    """One rank's part of the training."""

    def __init__(self, options: argparse.Namespace, rank: Rank) -> None:
        self.options, self.rank = options, rank
        generator = torch.Generator().manual_seed(options.seed)
        function = torch.rand(FEATURES, 1, generator=generator)
        data = torch.rand(options.samples, FEATURES, generator=generator)
        noise = NOISE * torch.randn(options.samples, 1, generator=generator)
        self.data, self.labels = data.to(rank.device), (data @ function + noise).to(rank.device)
        torch.manual_seed(options.seed)
        self.model = DistributedDataParallel(nn.Linear(FEATURES, 1).to(rank.device))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=options.learning_rate)
        self.steps = steps_of(options.samples, rank, options.batch_size)
        self.samples = options.batch_size * rank.world_size
        self.settings = {"samples": options.samples}

    def parts(self) -> dict[str, Any]:
        """Name what training changes."""
        return {"model": self.model.module, "optimizer": self.optimizer}

    def rates(self, samples_per_s: float) -> dict[str, float]:
        """Return nothing beside samples."""
        return {}

    def warm_up(self) -> None:
        """Go once through the model, without an effect on it."""
        warm_up(self.model, self.data[:1])

    def batches(self, epoch: int, first: int) -> Iterator[list[int]]:
        """Yield the numbers of samples."""
        mine = order(self.options.samples, self.rank, self.options.seed, epoch)
        return in_batches(mine, self.options.batch_size, first)

    def train(self, batch: list[int]) -> Tensor:
        """Take a step; return the loss."""
        loss = mse_loss(self.model(self.data[batch]), self.labels[batch])
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the mean squared error over all samples."""
        mine = slice(self.rank.rank, None, self.rank.world_size)
        squares = (self.model.module(self.data[mine]) - self.labels[mine]).square()
        error = torch.stack([squares.sum(), torch.tensor(float(squares.numel()), device=self.rank.device)])
        return {"error": mean_of_all(error)[0]}


def parse() -> argparse.Namespace:
    """Read the command line; errors end the program with exit code 2."""
    parser = Parser(__doc__)
    parser.add_argument("total_epochs", type=positive, help="epochs to train for, those of the snapshot included")
    parser.add_argument("save_every", type=positive, help="epochs between two snapshots; the last epoch has one too")
    parser.add_argument(
        "--batch_size", "--batch-size", type=positive, default=32, help="per rank and step (default: %(default)s)"
    )
    parser.add_argument("--learning_rate", type=float, default=0.05, help="(default: %(default)s)")
    parser.add_argument("--samples", type=positive, default=2048, help="in all (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="same seed and ranks, same result (default: %(default)s)")
    parser.add_argument(
        "--snapshot",
        type=Path,
        metavar="PATH",
        default=Path("snapshot.pt"),
        help="where rank 0 saves, and goes on from if it is there (default: %(default)s)",
    )
    parser.add_argument("--target_error", type=float, default=0.0, help="exit with 1 above it; 0: never (default: 0)")
    return parser.parse_args()


def main() -> int:
    """Join, train and report; return the exit code."""
    notice = Notice()
    options = parse()
    rank = join(options.backend, options.device)
    task = Regression(options, rank)
    checkpoints = Checkpoints(options.snapshot, {*task.parts(), *KEYS})
    plan = Plan(options.total_epochs, options.seed, options.batch_size, options.save_every)
    loop = Loop(task, plan, rank, notice, checkpoints)
    if loop.run(resume=True) == RUN_ME_AGAIN:
        return RUN_ME_AGAIN
    report(**loop.values, samples_per_s=float(loop.speed))
    if options.target_error and loop.values["error"] > options.target_error:
        complain(f"the mean squared error {loop.values['error']:.4g} is above --target_error {options.target_error}")
        return 1
    return 0


if __name__ == "__main__":
    run(main)
