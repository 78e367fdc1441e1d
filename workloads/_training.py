"""The loop that trainings share: epochs of steps, reports, checkpoints in the middle of an epoch, the notice.

Everything random in a step depends on the seed, the rank, the epoch and the step alone. So a run that goes on from a
checkpoint does, bit by bit, what one that was never interrupted does (on CPUs; some GPU kernels add up in any order).
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from _basics import Every, Mistake
from _checkpoint import RUN_ME_AGAIN, Notice
from _common import Rank, report, say
from torch import Tensor, nn

KEYS = ("epoch", "step", "losses", "settings")


class Speed:
    """Counts samples over the time spent between `start` and the last `count`."""

    def __init__(self) -> None:
        self.images, self.seconds, self.steps, self._since = 0, 0.0, 0, 0.0

    def start(self) -> None:
        """Let the time count from now on."""
        self._since = time.perf_counter()

    def count(self, images: int) -> None:
        """Add the samples of a step, and the time until now. No samples: only the time."""
        now = time.perf_counter()
        self.images += images
        self.steps += images > 0
        self.seconds += now - self._since
        self._since = now

    def __float__(self) -> float:
        """Give the samples per second, 0 before the first."""
        return self.images / self.seconds if self.images else 0.0

    def step_ms(self) -> float:
        """Give the milliseconds of a step, 0 before the first."""
        return 1000 * self.seconds / self.steps if self.steps else 0.0


class Task(Protocol):
    """What is trained: one rank's part."""

    steps: int  # of an epoch, the same on all ranks
    samples: int  # that all ranks show the model in a step
    settings: dict[str, Any]  # options that a checkpoint is good for, by name

    def parts(self) -> dict[str, Any]:
        """Name what training changes: each has state_dict() and load_state_dict()."""

    def rates(self, samples_per_s: float) -> dict[str, float]:
        """Return what else to report of the speed."""

    def warm_up(self) -> None:
        """Go once through the model, without an effect on it: `warm_up` below."""

    def batches(self, epoch: int, first: int) -> Iterable[Any]:
        """Yield this rank's batches of an epoch, from the step `first` on."""

    def train(self, batch: Any) -> Tensor:
        """Take a step; return the loss, a scalar without a gradient."""

    def evaluate(self) -> dict[str, float]:
        """Measure, on all ranks together, what the model does; return values to report."""


class Keeper(Protocol):
    """Where a training is saved; all ranks call each method."""

    path: Path

    def prepare(self) -> None:
        """Find out, before the work, whether it can be saved. Raise Mistake if not."""

    def save(self, states: dict[str, Any]) -> None:
        """Save what rank 0 gives. Raise Mistake if that cannot be."""

    def load(self) -> dict[str, Any] | None:
        """Return what was saved last, None if nothing was. Raise Mistake if nothing is whole."""


class Plan(NamedTuple):
    """How long to train, and how often to save: every so many epochs, and steps of an epoch if not 0."""

    epochs: int
    seed: int
    batch_size: int  # of a rank
    save_epochs: int = 1
    save_steps: int = 0


class Loop:
    """A training from its beginning, or its checkpoint, to its end or the notice."""

    def __init__(self, task: Task, plan: Plan, rank: Rank, notice: Notice, checkpoints: Keeper) -> None:
        self.task, self.plan, self.rank, self.notice, self.checkpoints = task, plan, rank, notice, checkpoints
        self.epoch = self.step = 0
        self.losses = torch.zeros((), device=rank.device)
        self.values: dict[str, float] = {}
        self.cost: dict[str, float] = {}  # of the last checkpoint
        self.speed, self.due = Speed(), Every(seconds=0.5)

    def run(self, resume: bool) -> int:
        """Train the epochs that are left; return 0, or RUN_ME_AGAIN after the notice."""
        self.checkpoints.prepare()
        self.task.warm_up()
        if resume:
            self.resume()
        while self.epoch < self.plan.epochs:
            if self.train_epoch():
                self.save()
                say_on_rank_zero(f"notice: saved after step {self.step}/{self.task.steps} of epoch {self.epoch + 1}")
                return RUN_ME_AGAIN
            self.finish_epoch()
        self.values = self.values or self.task.evaluate()
        return 0

    def train_epoch(self) -> bool:
        """Take the steps that are left of the epoch; return whether the notice came."""
        self.speed.start()
        for batch in self.task.batches(self.epoch, self.step):
            seed_step(self.plan.seed, self.rank.rank, self.epoch * self.task.steps + self.step)
            self.losses += self.task.train(batch)
            self.step += 1
            self.speed.count(self.task.samples)
            if self.due():
                self.report(loss=float(self.losses) / self.step)
            if self.notice.agreed(self.rank, self.step):
                return True
            if self.plan.save_steps and self.step % self.plan.save_steps == 0 and self.step < self.task.steps:
                self.save()
                self.speed.start()
        self.speed.count(0)
        return False

    def finish_epoch(self) -> None:
        """Measure, report, and save if it is time to."""
        total = self.losses.clone()
        dist.all_reduce(total)
        loss = float(total) / self.task.steps / self.rank.world_size
        self.values = {"loss": loss, **self.task.evaluate()}
        self.report(**self.values)
        self.epoch, self.step = self.epoch + 1, 0
        self.losses.zero_()
        if self.epoch % self.plan.save_epochs == 0 or self.epoch == self.plan.epochs:
            self.save()

    def report(self, **values: float) -> None:
        """Report values after a step (from 1) of the running epoch."""
        progress = {"epoch": f"{self.epoch + 1}/{self.plan.epochs}", "step": f"{self.step}/{self.task.steps}"}
        rate = float(self.speed)
        report(
            **progress, **values, samples_per_s=rate, step_ms=self.speed.step_ms(), **self.task.rates(rate), **self.cost
        )

    def save(self) -> None:
        """Write the checkpoint."""
        losses = [torch.zeros_like(self.losses) for _rank in range(self.rank.world_size)]
        dist.all_gather(losses, self.losses)
        states = {name: part.state_dict() for name, part in self.task.parts().items()}
        own = {"epoch": self.epoch, "step": self.step, "losses": [float(loss) for loss in losses]}
        began = time.monotonic()
        self.checkpoints.save({**states, **own, "settings": {**self.task.settings, **self.amid()}})
        self.cost = {"checkpoint_seconds": round(time.monotonic() - began, 4)}

    def amid(self) -> dict[str, int]:
        """Return what must be the same to go on amid an epoch: which samples its first steps had depends on it."""
        return {"ranks": self.rank.world_size, "batch_size": self.plan.batch_size, "seed": self.plan.seed}

    def resume(self) -> None:
        """Go on from the checkpoint; stay at the beginning if there is none yet.

        Raises:
            Mistake: it was made with other settings, or amid an epoch with other batches.
        """
        states = self.checkpoints.load()
        if states is None:
            return
        asked = {**self.task.settings, **(self.amid() if states["step"] else {})}
        check_settings(states["settings"], asked, str(self.checkpoints.path))
        self.epoch, self.step = states["epoch"], states["step"]
        self.losses.fill_(states["losses"][self.rank.rank] if self.step else 0.0)
        for name, part in self.task.parts().items():
            part.load_state_dict(states[name])


def check_settings(saved: Mapping[str, Any], asked: Mapping[str, Any], where: str) -> None:
    """Raise Mistake if a checkpoint was made with other settings than are asked for now."""
    for name, value in asked.items():
        if saved.get(name) != value:
            raise Mistake(f"{where} was made with {name} {saved.get(name)}, not {value}: give that, or another path")


def say_on_rank_zero(text: str) -> None:
    """Print a line on rank 0 alone."""
    if dist.get_rank() == 0:
        say(text)


def seed_step(seed: int, rank: int, step: int) -> None:
    """Make what is random in a step depend on these three alone."""
    torch.manual_seed((seed * 1_000_003 + step) * 65_537 + rank)


def order(count: int, rank: Rank, seed: int, epoch: int) -> list[int]:
    """Return this rank's samples of an epoch, shuffled: as many on each rank, so that some are shown twice."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    shuffled = torch.randperm(count, generator=generator).tolist()
    each = math.ceil(count / rank.world_size)
    filled: list[int] = (shuffled * math.ceil(each * rank.world_size / count))[: each * rank.world_size]
    return filled[rank.rank :: rank.world_size]


def steps_of(count: int, rank: Rank, batch_size: int) -> int:
    """Return how many steps an epoch has."""
    return math.ceil(math.ceil(count / rank.world_size) / batch_size)


def in_batches(items: list[int], batch_size: int, first: int) -> Iterator[list[int]]:
    """Yield a list in batches, from the batch `first` on; the last may be shorter."""
    for start in range(first * batch_size, len(items), batch_size):
        yield items[start : start + batch_size]


def warm_up(model: nn.Module, *inputs: Any) -> None:
    """Go through a DistributedDataParallel model once, without an effect on it.

    DDP lays its buckets out anew after the first pass, and the layout decides in which order three ranks or more add
    up: done here, a resumed run adds up in the order of one that was never interrupted. In evaluation mode batch
    normalisation learns nothing from it.
    """
    model.eval()
    found = model(*inputs)
    outputs = [found] if isinstance(found, Tensor) else found
    sum(output.float().mean() for output in outputs).backward()
    model.train()
    for parameter in model.parameters():
        parameter.grad = None


def same_buffers(model: nn.Module) -> None:
    """Give every rank rank 0's buffers (such as the statistics of batch normalisation), as DDP does before a step."""
    for buffer in model.buffers():
        dist.broadcast(buffer, 0)


def mean_of_all(total: Tensor) -> list[float]:
    """Return sums of all ranks, divided by the last of them, which is dropped."""
    dist.all_reduce(total)
    *sums, count = total.tolist()
    return [value / count for value in sums]
