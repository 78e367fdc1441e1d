"""Train a small convolutional network on handwritten digits with DistributedDataParallel.

The digits are MNIST (or the clothes of FashionMNIST) with --data, else the 1,797 smaller ones of scikit-learn.
"""

import argparse
import functools
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from _basics import DATA, Every, Parser, laid, positive, positive_number, prepare, replacing, share
from _checkpoint import RUN_ME_AGAIN, Checkpoints, Notice, resumes
from _common import Rank, check_same, complain, from_rank_zero, join, report, run, say
from _digits import Digits, load
from _sealed import DIRECTORY, located
from _training import Speed
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import BatchSampler, DistributedSampler, TensorDataset

EVALUATION_BATCH = 1000
# Label smoothing against overfitting on few digits: on scikit-learn's, the worst of 10 seeds gains up to 0.8 %.
LABEL_SMOOTHING = 0.1
KEYS = ("model", "optimizer", "scheduler", "epoch")
MODEL = Path("mnist_cnn.pt")  # the name that the MNIST examples of PyTorch and of Intel give it
TARGETS = {"MNIST": 0.97, "FashionMNIST": 0.85}  # accuracy that a training must reach, by data set
DECAY = 0.9  # Of the learning rate, each epoch: a schedule over --epochs would forbid to resume with more of them.


def network() -> nn.Sequential:
    """Make the network: float32 [count, 1, height, width] of any size in, scores [count, 10] out."""
    head = nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Linear(128, 10)
    return nn.Sequential(_block(1, 32, size=8), _block(32, 64, size=4), *head)


def _block(channels: int, filters: int, size: int) -> nn.Sequential:
    # Not batch normalisation: its statistics would depend on how many ranks share a batch.
    normalise = nn.GroupNorm(filters // 8, filters)
    return nn.Sequential(nn.Conv2d(channels, filters, 3, padding=1), normalise, nn.ReLU(), nn.AdaptiveMaxPool2d(size))


class Training:
    """One rank's part of a training: the model, what trains it, and how many epochs are done."""

    def __init__(self, digits: Digits, options: argparse.Namespace, rank: Rank, notice: Notice) -> None:
        self.options, self.rank, self.notice, self.done = options, rank, notice, 0
        self.checkpoints = Checkpoints(options.checkpoint, KEYS) if options.checkpoint else None
        self.train, self.test = (TensorDataset(*(part.to(rank.device) for part in kind.tensors)) for kind in digits)
        self.sampler: DistributedSampler[Any] = DistributedSampler(
            self.train, rank.world_size, rank.rank, seed=options.seed
        )
        self.batches = BatchSampler(self.sampler, options.batch_size, drop_last=False)
        torch.manual_seed(options.seed)
        self.model = DistributedDataParallel(network().to(rank.device))
        self.optimizer = AdamW(self.model.parameters(), options.lr)
        self.scheduler = ExponentialLR(self.optimizer, DECAY)
        self.speed, self.due = Speed(), Every(seconds=0.5)

    def warm_up(self) -> None:
        """Go through the model once, without an effect on it.

        DDP lays its buckets out anew after the first pass, and the layout decides in which order three ranks or more
        add up: done here, a resumed run adds up in the order of one that was never interrupted.
        """
        images, _labels = self.train[:1]
        self.model(images).sum().backward()
        self.optimizer.zero_grad()

    def finish(self) -> float | None:
        """Train the epochs that are left, save and report each; return the accuracy on the test images, 0 to 1.

        None: the notice came, and the epoch that ran is saved.
        """
        if self.checkpoints and resumes(self.options.resume):
            self.resume(self.checkpoints.load())
        accuracy: float = self.accuracy()
        while self.done < self.options.epochs:
            loss = self.train_epoch()
            accuracy = self.accuracy()
            self.report(len(self.batches), loss=loss, accuracy=accuracy)
            self.done += 1
            self.save()
            if self.checkpoints and self.done < self.options.epochs and self.notice.agreed(self.rank):
                return None
        return accuracy

    def train_epoch(self) -> float:
        """Show the model every training image once; return the mean loss over all batches of all ranks."""
        losses = torch.zeros((), device=self.rank.device)
        self.sampler.set_epoch(self.done)
        self.speed.start()
        for step, batch in enumerate(self.batches, start=1):
            losses += self.train_batch(*self.train[batch])
            self.speed.count(len(batch) * self.rank.world_size)
            if self.due():
                self.report(step, loss=losses.item() / step)
        self.scheduler.step()
        dist.all_reduce(losses)
        loss = float(losses) / len(self.batches) / self.rank.world_size
        self.speed.count(0)  # A GPU has done its work only now that its result was read.
        return loss

    def train_batch(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take a step with images [count, 1, height, width] and labels [count]; return the loss (scalar)."""
        loss = cross_entropy(self.model(images), labels, label_smoothing=LABEL_SMOOTHING)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def accuracy(self) -> float:
        """Classify every test image on exactly one rank (a sampler would repeat some); return the hit rate, 0 to 1."""
        hits = torch.zeros((), device=self.rank.device)
        mine = share(len(self.test), self.rank.world_size, self.rank.rank)
        for start in mine[::EVALUATION_BATCH]:
            images, labels = self.test[start : min(start + EVALUATION_BATCH, mine.stop)]
            hits += (self.model.module(images).argmax(dim=1) == labels).sum()
        dist.all_reduce(hits)
        return float(hits) / len(self.test)

    def report(self, step: int, **values: float) -> None:
        """Report values after a step (from 1) of the running epoch."""
        progress = {"epoch": f"{self.done + 1}/{self.options.epochs}", "step": f"{step}/{len(self.batches)}"}
        report(**progress, **values, samples_per_s=float(self.speed))

    def save(self) -> None:
        """Write the checkpoint, if there is to be one."""
        if self.checkpoints:
            states = {name: part.state_dict() for name, part in self.parts().items()}
            self.checkpoints.save(states | {"epoch": self.done})

    def resume(self, states: dict[str, Any] | None) -> None:
        """Continue from a checkpoint; stay at the beginning if there is none yet."""
        if states:
            self.done = states.pop("epoch")
            for name, part in self.parts().items():
                part.load_state_dict(states[name])

    def parts(self) -> dict[str, Any]:
        """Name what training changes, apart from the number of epochs."""
        return {"model": self.model.module, "optimizer": self.optimizer, "scheduler": self.scheduler}


def save_model(model: nn.Module, path: Path) -> None:
    """Write the trained weights alone: CPU tensors, which every machine can load."""
    with replacing(path) as stream:
        torch.save({name: weight.cpu() for name, weight in model.state_dict().items()}, stream)
    say(f"the trained weights are in {path.resolve()}")


def parse() -> argparse.Namespace:
    """Read the command line; errors end the program with exit code 2."""
    parser = Parser(__doc__)
    files = f"the four IDX files of --dataset, plain or .gz, or where torchvision has put them (default: ${DATA})"
    parser.add_argument("--data", type=Path, metavar="DIR", help=files)
    parser.add_argument("--dataset", choices=TARGETS, default="MNIST", help="(default: %(default)s)")
    parser.add_argument("--epochs", type=positive, default=12, help="in all (default: %(default)s)")
    parser.add_argument("--batch-size", type=positive, default=64, help="per rank and step (default: %(default)s)")
    parser.add_argument("--lr", type=positive_number, default=0.003, help="of the first epoch (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="same seed and ranks, same result (default: %(default)s)")
    parser.add_argument("--checkpoint", type=Path, metavar="PATH", help="where rank 0 saves after each epoch")
    parser.add_argument(
        "--save-model",
        type=Path,
        nargs="?",
        const=MODEL,
        metavar="PATH",
        help=f"where rank 0 writes the trained weights, on its node (without PATH: {MODEL})",
    )
    parser.add_argument("--resume", action="store_true", help="continue from --checkpoint, with its learning rate")
    targets = ", ".join(f"{target} for {name}" for name, target in TARGETS.items())
    parser.add_argument("--target-accuracy", type=float, help=f"exit with 1 below it; 0: never (default: {targets})")
    options = parser.parse_args()
    options.data = options.data or laid(os.environ)
    if options.dataset != "MNIST" and not options.data:
        parser.error(f"--dataset {options.dataset} needs --data")
    if options.target_accuracy is None:
        options.target_accuracy = TARGETS[options.dataset]
    if DIRECTORY in os.environ:
        options.checkpoint = options.checkpoint or Path("mnist.pt")
    if options.resume and not options.checkpoint:
        parser.error("--resume needs --checkpoint")
    return options


def main() -> int:
    """Read the digits, join, train and report; return the exit code."""
    notice = Notice()
    options = parse()
    digits = load(options.data, options.dataset)
    rank = join(options.backend, options.device)
    check_same("digits", (part.numpy() for kind in digits for part in kind.tensors))
    if options.save_model:
        from_rank_zero(functools.partial(prepare, located(options.save_model, os.environ)))
    training = Training(digits, options, rank, notice)
    if training.checkpoints:
        training.checkpoints.prepare()
    training.warm_up()
    accuracy = training.finish()
    if accuracy is None:
        return RUN_ME_AGAIN
    if options.save_model:
        from_rank_zero(lambda: save_model(training.model.module, located(options.save_model, os.environ)))
    report(accuracy=accuracy, samples_per_s=float(training.speed))
    if accuracy < options.target_accuracy:
        complain(f"accuracy {accuracy:.4f} is below --target-accuracy {options.target_accuracy}")
        return 1
    return 0


if __name__ == "__main__":
    run(main)
