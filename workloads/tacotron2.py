"""Train Tacotron 2 on speech with its text, with DistributedDataParallel.

The speech is a folder in LJSpeech's format with --data, else a corpus of tones that is made up.
"""

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from _basics import DATA, Parser, laid, positive, positive_number
from _checkpoint import RUN_ME_AGAIN, Checkpoints, Notice, resumes
from _common import Rank, check_same, complain, join, report, run
from _speech import BANDS, Batch, Clip, Corpus, LJSpeech, Part, Tones, collate
from _tacotron2 import Tacotron2, losses, on_diagonal
from _training import KEYS, Loop, Plan, in_batches, mean_of_all, order, same_buffers, steps_of, warm_up
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

TEST_EVERY = 16  # clips: one in so many is not trained on
CLIP, WEIGHT_DECAY = 1.0, 1e-6


class Speaking:
    """One rank's part of the training."""

    def __init__(self, train: Corpus, test: Corpus, options: argparse.Namespace, rank: Rank) -> None:
        self.clips, self.tests, self.options, self.rank = train, test, options, rank
        torch.manual_seed(options.seed)
        self.model = DistributedDataParallel(Tacotron2(options.width, options.frames_per_step).to(rank.device))
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), options.learning_rate, eps=1e-6, weight_decay=WEIGHT_DECAY
        )
        self.steps = steps_of(len(train), rank, options.batch_size)
        self.samples = options.batch_size * rank.world_size
        self.settings = {"width": options.width, "frames_per_step": options.frames_per_step}

    def parts(self) -> dict[str, Any]:
        """Name what training changes."""
        return {"model": self.model.module, "optimizer": self.optimizer}

    def rates(self, samples_per_s: float) -> dict[str, float]:
        """Return nothing beside samples."""
        return {}

    def warm_up(self) -> None:
        """Go once through the model, without an effect on it."""
        made = Clip(torch.tensor([2, 1]), torch.zeros(self.options.frames_per_step, BANDS))
        warm_up(self.model, collate([made], self.options.frames_per_step).to(self.rank.device))

    def batches(self, epoch: int, first: int) -> Iterator[Batch]:
        """Yield batches of clips."""
        mine = order(len(self.clips), self.rank, self.options.seed, epoch)
        for numbers in in_batches(mine, self.options.batch_size, first):
            yield self.batch(self.clips, numbers)

    def batch(self, corpus: Corpus, numbers: list[int]) -> Batch:
        """Return clips of a corpus."""
        return collate([corpus.clip(number) for number in numbers], self.options.frames_per_step).to(self.rank.device)

    def train(self, batch: Batch) -> Tensor:
        """Take a step; return the sum of the losses."""
        found = losses(self.model(batch), batch)
        loss = found.mel + found.end + self.options.guide * found.off_diagonal
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        return loss.detach()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the error of frames, and the part of attention on the diagonal, for clips that are not trained on."""
        same_buffers(self.model.module)
        self.model.eval()
        torch.manual_seed(self.options.seed)  # for the prenet's dropout
        total = torch.zeros(3, device=self.rank.device)
        mine = list(range(self.rank.rank, len(self.tests), self.rank.world_size))
        for numbers in in_batches(mine, self.options.batch_size, first=0):
            batch = self.batch(self.tests, numbers)
            heard = self.model.module(batch)
            values = losses(heard, batch).mel, on_diagonal(heard, batch), torch.ones((), device=self.rank.device)
            total += len(numbers) * torch.stack(values)
        self.model.train()
        mel, diagonal = mean_of_all(total)
        return {"mel_loss": mel, "diagonal": diagonal}


def corpora(options: argparse.Namespace) -> tuple[Corpus, Corpus]:
    """Return what to train with and what to test with."""
    folder = options.data or laid(os.environ)
    whole = LJSpeech(folder) if folder else Tones(options.clips, options.seed)
    tests = max(len(whole) // TEST_EVERY, 1)
    return Part(whole, range(len(whole) - tests)), Part(whole, range(len(whole) - tests, len(whole)))


def parse() -> argparse.Namespace:
    """Read the command line; errors end the program with exit code 2."""
    parser = Parser(__doc__)
    add, shown = parser.add_argument, "(default: %(default)s)"
    add("--data", type=Path, metavar="DIR", help=f"metadata.csv and wavs/, as in LJSpeech (default: ${DATA})")
    add("--clips", type=positive, default=512, help=f"made-up ones in all {shown}")
    add("--num_epochs", type=positive, default=20, help=f"in all {shown}")
    add("--batch_size", type=positive, default=16, help=f"per rank and step {shown}")
    add("--learning_rate", type=positive_number, default=0.001, help=shown)
    add("--seed", type=int, default=0, help=f"same seed and ranks, same result {shown}")
    add("--width", type=positive, default=128, help=f"of the encoder; the paper has 512 {shown}")
    add("--frames_per_step", type=positive, default=3, help=f"of the decoder; the paper has 1 {shown}")
    add("--guide", type=float, default=1.0, help=f"weight of attention off the diagonal; the paper has 0 {shown}")
    add("--checkpoint", type=Path, default=Path("tacotron2.pt"), metavar="PATH", help=f"where rank 0 saves {shown}")
    add("--resume", action="store_true", help="go on from --checkpoint")
    add("--save_steps", type=int, default=0, metavar="N", help="save after every N steps too (default: 0, never)")
    add("--target_diagonal", type=float, default=0.0, help="exit with 1 below it; 0: never (default: 0)")
    options = parser.parse_args()
    if options.width % 4:
        parser.error(f"--width {options.width} is no multiple of 4")
    if options.clips < 2:
        parser.error("--clips 1 leaves nothing to train with: 2 are needed at least")
    return options


def main() -> int:
    """Join, train and report; return the exit code."""
    notice = Notice()
    options = parse()
    train, test = corpora(options)
    rank = join(options.backend, options.device)
    check_same("speech", train.content())
    task = Speaking(train, test, options, rank)
    checkpoints = Checkpoints(options.checkpoint, {*task.parts(), *KEYS})
    plan = Plan(options.num_epochs, options.seed, options.batch_size, save_steps=options.save_steps)
    loop = Loop(task, plan, rank, notice, checkpoints)
    if loop.run(resumes(options.resume)) == RUN_ME_AGAIN:
        return RUN_ME_AGAIN
    report(**loop.values, samples_per_s=float(loop.speed), step_ms=loop.speed.step_ms())
    if loop.values["diagonal"] < options.target_diagonal:
        told = f"{loop.values['diagonal']:.3f} of attention is on the diagonal"
        complain(f"{told}, below --target_diagonal {options.target_diagonal}")
        return 1
    return 0


if __name__ == "__main__":
    run(main)
