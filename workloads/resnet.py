"""Train a residual network (18, 50, 101 or 152 layers) on pictures with DistributedDataParallel.

The pictures are CIFAR-10 or folders of files with --data, else made up.
"""

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from _basics import DATA, Parser, laid, positive, positive_number, share
from _checkpoint import RUN_ME_AGAIN, Checkpoints, Notice, resumes
from _common import Rank, check_same, complain, join, report, run
from _images import Sets, Synthetic, load
from _resnet import ARCHITECTURES, resnet
from _training import KEYS, Loop, Plan, in_batches, mean_of_all, order, same_buffers, steps_of, warm_up
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

EVALUATION_BATCH = 100
MOMENTUM, WEIGHT_DECAY = 0.9, 1e-5
SYNTHETIC_CLASSES = 10


class Classifier:
    """One rank's part of the training."""

    def __init__(self, sets: Sets, options: argparse.Namespace, rank: Rank) -> None:
        self.sets, self.options, self.rank = sets, options, rank
        self.format = torch.channels_last if options.channels_last else torch.contiguous_format
        torch.manual_seed(options.random_seed)
        network = resnet(options.arch, sets.train.classes, sets.train.size, options.width)
        self.model = DistributedDataParallel(network.to(rank.device, memory_format=self.format))
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), options.learning_rate, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY
        )
        self.steps = steps_of(len(sets.train), rank, options.batch_size)
        self.samples = options.batch_size * rank.world_size
        self.settings = {
            "arch": options.arch,
            "width": options.width,
            "classes": sets.train.classes,
            "small_stem": sets.train.size <= 64,
        }

    def parts(self) -> dict[str, Any]:
        """Name what training changes."""
        return {"model": self.model.module, "optimizer": self.optimizer}

    def rates(self, samples_per_s: float) -> dict[str, float]:
        """Return the pictures of a second."""
        return {"images_per_s": samples_per_s}

    def warm_up(self) -> None:
        """Go once through the model, without an effect on it."""
        warm_up(self.model, self.on_device(self.sets.train[[0]][0]))

    def batches(self, epoch: int, first: int) -> Iterable[Any]:
        """Yield pictures and labels, read ahead by --workers processes."""
        mine = order(len(self.sets.train), self.rank, self.options.random_seed, epoch)
        chosen = list(in_batches(mine, self.options.batch_size, first))
        yield from DataLoader(self.sets.train, batch_size=None, sampler=chosen, num_workers=self.options.workers)

    def on_device(self, pictures: Tensor) -> Tensor:
        """Return pictures as the model takes them."""
        return pictures.to(self.rank.device, memory_format=self.format, non_blocking=True)

    def scores(self, model: nn.Module, pictures: Tensor) -> Tensor:
        """Return the model's scores [count, classes], by 16-bit products with --amp."""
        with torch.autocast(self.rank.device.type, dtype=torch.bfloat16, enabled=self.options.amp):
            found: Tensor = model(self.on_device(pictures))
        return found.float()

    def train(self, batch: Any) -> Tensor:
        """Take a step; half of the pictures that are not made up are mirrored."""
        pictures, labels = batch
        if not self.options.use_syn:
            mirrored = torch.rand(len(pictures)) < 0.5
            pictures = torch.where(mirrored[:, None, None, None], pictures.flip(3), pictures)
        loss = cross_entropy(self.scores(self.model, pictures), labels.to(self.rank.device))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Classify every test picture on exactly one rank; return the hit rate, 0 to 1."""
        same_buffers(self.model.module)
        self.model.eval()
        found = torch.zeros(2, device=self.rank.device)
        mine = share(len(self.sets.test), self.rank.world_size, self.rank.rank)
        for numbers in in_batches(list(mine), EVALUATION_BATCH, first=0):
            pictures, labels = self.sets.test[numbers]
            hits = self.scores(self.model.module, pictures).argmax(dim=1) == labels.to(self.rank.device)
            found += torch.stack([hits.sum(), torch.tensor(len(numbers), device=self.rank.device)])
        self.model.train()
        return {"accuracy": mean_of_all(found)[0]}


def sets_of(options: argparse.Namespace) -> Sets:
    """Return what to train with and what to test with."""
    if not options.use_syn:
        return load(options.data, options.image_size)
    made = (options.image_size, SYNTHETIC_CLASSES, options.random_seed)
    count = options.num_images
    return Sets(Synthetic(count, *made, part=0), Synthetic(max(count // 10, 1), *made, part=1))


def parse() -> argparse.Namespace:
    """Read the command line; errors end the program with exit code 2."""
    parser = Parser(__doc__)
    add, shown = parser.add_argument, "(default: %(default)s)"
    add("--arch", choices=ARCHITECTURES, default="resnet50", help=shown)
    add("--use_syn", action="store_true", help="train on made-up pictures; so it does where there are no others")
    kinds = "CIFAR-10's files, or folders train/CLASS and val/CLASS of pictures"
    add("--data", type=Path, metavar="DIR", help=f"{kinds} (default: ${DATA})")
    add("--num_epochs", type=positive, default=10, help=f"in all {shown}")
    add("--batch_size", type=positive, default=32, help=f"per rank and step {shown}")
    add("--learning_rate", type=positive_number, default=0.01, help=shown)
    add("--random_seed", type=int, default=0, help=f"same seed and ranks, same result {shown}")
    add("--model_dir", type=Path, default=Path("saved_models"), metavar="DIR", help=f"where rank 0 saves {shown}")
    add("--model_filename", default="resnet_distributed.pth", metavar="NAME", help=f"in --model_dir {shown}")
    add("--resume", action="store_true", help="go on from the file in --model_dir")
    add("--save_steps", type=int, default=0, metavar="N", help="save after every N steps too (default: 0, never)")
    add("--amp", action="store_true", help="16-bit products (bfloat16)")
    add("--channels_last", action="store_true", help="pictures with the channels last in memory")
    add("--image_size", type=positive, default=224, help=f"pixels; CIFAR-10 has its own {shown}")
    add("--num_images", type=positive, default=1280, help=f"made-up pictures in all {shown}")
    add("--width", type=positive, default=64, help=f"channels of the first stage {shown}")
    add("--workers", type=int, default=0, help=f"processes per rank that read pictures ahead {shown}")
    add("--target_accuracy", type=float, default=0.0, help="exit with 1 below it; 0: never (default: 0)")
    options = parser.parse_args()
    if options.use_syn and options.data:
        parser.error("--use_syn and --data cannot be given together")
    if not options.use_syn:
        options.data = options.data or laid(os.environ)
    options.use_syn = options.data is None
    return options


def main() -> int:
    """Read the pictures, join, train and report; return the exit code."""
    notice = Notice()
    options = parse()
    sets = sets_of(options)
    rank = join(options.backend, options.device)
    check_same("pictures", (part for each in sets for part in each.content()))
    task = Classifier(sets, options, rank)
    checkpoints = Checkpoints(options.model_dir / options.model_filename, {*task.parts(), *KEYS})
    plan = Plan(options.num_epochs, options.random_seed, options.batch_size, save_steps=options.save_steps)
    loop = Loop(task, plan, rank, notice, checkpoints)
    if loop.run(resumes(options.resume)) == RUN_ME_AGAIN:
        return RUN_ME_AGAIN
    report(**loop.values, **task.rates(float(loop.speed)), step_ms=loop.speed.step_ms())
    if loop.values["accuracy"] < options.target_accuracy:
        complain(f"accuracy {loop.values['accuracy']:.4f} is below --target_accuracy {options.target_accuracy}")
        return 1
    return 0


if __name__ == "__main__":
    run(main)
