"""Train a small GPT on the bytes of text files, by DDP or FSDP2.

Without --data, or `train.yml -e data=`, it learns the workloads' own source code, which every node has.
"""

import argparse
import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from _basics import DATA, Mistake, Parser, laid, positive, positive_number
from _checkpoint import RUN_ME_AGAIN, Notice, resumes
from _common import Rank, check_same, complain, join, report, run, say
from _gpt import GPT, Shape, operations_per_token
from _sharded import ShardedCheckpoints
from _training import Loop, Plan, mean_of_all, warm_up
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

# Dense 16-bit products, 10^12 a second, by a part of the name that PyTorch tells (data sheets of NVIDIA and AMD).
PEAKS = {"H100 PCIe": 756, "H100 NVL": 835, "H100": 989, "H200": 989, "A100": 312, "L40S": 362, "MI300X": 1307}
VALIDATION = 10  # one byte in so many, at the end of the text
VALIDATION_BATCHES = 4
WARM_UP_STEPS = 20  # over which the learning rate rises
CLIP = 1.0


class LanguageModel:
    """One rank's part of the training."""

    def __init__(self, text: Tensor, options: argparse.Namespace, rank: Rank) -> None:
        self.options, self.rank = options, rank
        edge = len(text) - len(text) // VALIDATION
        self.text, self.rest = text[:edge], text[edge:]
        shape = Shape(options.layers, options.heads, options.width, options.context)
        torch.manual_seed(options.seed)
        network = GPT(shape).to(rank.device)
        self.operations = operations_per_token(network, shape)
        self.peak = peak(options, rank)
        self.model = wrapped(network, options.parallel, rank)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), options.learning_rate, betas=(0.9, 0.95))
        self.steps = options.steps_per_epoch
        self.samples = options.batch_size * options.accumulate * rank.world_size
        self.settings = shape._asdict()

    def parts(self) -> dict[str, Any]:
        """Name nothing: the checkpoints take model and optimizer, sharded as they are."""
        return {}

    def rates(self, samples_per_s: float) -> dict[str, float]:
        """Return tokens in a second, and the part of the devices' operations that the model's are (MFU), 0 to 1."""
        tokens = samples_per_s * self.options.context
        return {"tokens_per_s": tokens, "mfu": tokens * self.operations / (self.peak * self.rank.world_size)}

    def warm_up(self) -> None:
        """Go once through the model, without an effect on it."""
        if self.options.parallel == "ddp":
            warm_up(self.model, self.windows(self.text, 1, seed=0)[:, :-1])

    def windows(self, text: Tensor, count: int, seed: int) -> Tensor:
        """Return pieces of the text, int64 [count, context + 1], by a number."""
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(len(text) - self.options.context, (count, 1), generator=generator)
        return text[starts + torch.arange(self.options.context + 1)].long().to(self.rank.device)

    def batches(self, epoch: int, first: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the number of each step, and the pieces of text for it."""
        for step in range(epoch * self.steps + first, (epoch + 1) * self.steps):
            seed = (self.options.seed * 1_000_003 + step) * 65_537 + self.rank.rank
            yield step, self.windows(self.text, self.options.batch_size * self.options.accumulate, seed)

    def loss(self, pieces: Tensor) -> Tensor:
        """Return the mean loss of the bytes after the first, in nats."""
        with torch.autocast(self.rank.device.type, dtype=torch.bfloat16, enabled=self.options.amp):
            scores = self.model(pieces[:, :-1])
        return cross_entropy(scores.float().flatten(0, 1), pieces[:, 1:].flatten())

    def train(self, batch: tuple[int, Tensor]) -> Tensor:
        """Take a step; ranks exchange gradients only after the last of the batches that are accumulated."""
        step, pieces = batch
        total = torch.zeros((), device=self.rank.device)
        parts = pieces.chunk(self.options.accumulate)
        for number, part in enumerate(parts, start=1):
            with exchanging(self.model, number == len(parts)):
                loss = self.loss(part) / len(parts)
                loss.backward()
            total += loss.detach()
        for group in self.optimizer.param_groups:
            group["lr"] = self.options.learning_rate * min(1.0, (step + 1) / WARM_UP_STEPS)
        nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return total

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Return the loss on text that the model is not trained on, in nats for each byte."""
        count = self.options.batch_size
        losses = [
            self.loss(self.windows(self.rest, count, number * self.rank.world_size + self.rank.rank))
            for number in range(VALIDATION_BATCHES)
        ]
        found = torch.stack([torch.stack(losses).mean(), torch.ones((), device=self.rank.device)])
        return {"validation_loss": mean_of_all(found)[0]}


def wrapped(network: nn.Module, parallel: str, rank: Rank) -> nn.Module:
    """Return the model as the ranks share it."""
    if parallel == "ddp":
        return DistributedDataParallel(network)
    mesh = init_device_mesh(rank.device.type, (rank.world_size,))
    for block in network.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(network, mesh=mesh)


def exchanging(model: nn.Module, now: bool) -> Any:
    """Return a context in which gradients are exchanged, or only added up."""
    if isinstance(model, DistributedDataParallel):
        return nullcontext() if now else model.no_sync()
    model.set_requires_gradient_sync(now)
    return nullcontext()


def peak(options: argparse.Namespace, rank: Rank) -> float:
    """Return the operations that a rank's device can do in a second: told, known by its name, or measured."""
    if options.peak_tflops:
        return float(options.peak_tflops * 1e12)
    if rank.device.type == "cuda":
        name = torch.cuda.get_device_name(rank.device)
        known = next((value for part, value in PEAKS.items() if part in name), None)
        if known:
            return known * 1e12
    side, best = (512, 0.0) if rank.device.type == "cpu" else (8192, 0.0)
    one = torch.rand(side, side, device=rank.device, dtype=torch.bfloat16 if options.amp else torch.float32)
    for _turn in range(5):
        started = time.perf_counter()
        float((one @ one)[0, 0])  # which waits for the device
        best = max(best, 2 * side**3 / (time.perf_counter() - started))
    return best


def read_text(paths: list[Path], context: int) -> Tensor:
    """Return the bytes of files, and of the files below directories, uint8 [length].

    Raises:
        Mistake: a file cannot be read, or there is too little text.
    """
    content = bytearray()
    for path in paths:
        files = sorted(found for found in path.rglob("*") if found.is_file()) if path.is_dir() else [path]
        for file in files:
            try:
                content += file.read_bytes()
            except OSError as problem:
                raise Mistake(f"{file}: {problem.strerror}") from problem
    least = VALIDATION * (context + 2)
    if len(content) < least:
        raise Mistake(f"{len(content)} bytes of text: --context {context} takes {least} at least")
    return torch.frombuffer(content, dtype=torch.uint8)


def parse() -> argparse.Namespace:
    """Read the command line; errors end the program with exit code 2."""
    parser = Parser(__doc__)
    add, shown = parser.add_argument, "(default: %(default)s)"
    add("--data", type=Path, nargs="+", metavar="PATH", help=f"text files, or directories of them (default: ${DATA})")
    add("--parallel", choices=["ddp", "fsdp2"], default="ddp", help=f"fsdp2 shares the model out among ranks {shown}")
    add("--num_epochs", type=positive, default=5, help=f"in all; each ends with a validation {shown}")
    add("--steps_per_epoch", type=positive, default=50, help=shown)
    add("--batch_size", type=positive, default=8, help=f"pieces of text per rank, at once {shown}")
    add("--accumulate", type=positive, default=1, metavar="N", help=f"batches of a step {shown}")
    add("--context", type=positive, default=128, help=f"bytes of a piece of text {shown}")
    add("--layers", type=positive, default=4, help=shown)
    add("--heads", type=positive, default=4, help=shown)
    add("--width", type=positive, default=128, help=shown)
    add("--learning_rate", type=positive_number, default=0.001, help=shown)
    add("--seed", type=int, default=0, help=f"same seed and ranks, same result {shown}")
    add("--checkpoint", type=Path, default=Path("llm.dcp"), metavar="DIR", help=f"where ranks save {shown}")
    add("--resume", action="store_true", help="go on from --checkpoint")
    add("--save_steps", type=int, default=0, metavar="N", help="save after every N steps too (default: 0, never)")
    add("--amp", action="store_true", help="16-bit products (bfloat16)")
    add("--peak_tflops", type=positive_number, help="of a rank's device, for the MFU (default: known or measured)")
    add("--target_loss", type=float, default=0.0, help="exit with 1 above this validation loss; 0: never (default: 0)")
    options = parser.parse_args()
    if options.width % options.heads:
        parser.error(f"--width {options.width} is no multiple of --heads {options.heads}")
    return options


def main() -> int:
    """Read the text, join, train and report; return the exit code."""
    notice = Notice()
    options = parse()
    own, folder = sorted(Path(__file__).parent.glob("*.py")), laid(os.environ)
    text = read_text(options.data or ([folder] if folder else own), options.context)
    rank = join(options.backend, options.device)
    check_same("text", [text.numpy()])
    task = LanguageModel(text, options, rank)
    if rank.rank == 0:
        parameters = sum(part.numel() for part in task.model.parameters())
        say(f"{parameters:,} parameters, {len(text):,} bytes of text, peak {task.peak / 1e12:.3g} TFLOP/s of a rank")
    checkpoints = ShardedCheckpoints(options.checkpoint, task.model, task.optimizer, rank)
    plan = Plan(options.num_epochs, options.seed, options.batch_size, save_steps=options.save_steps)
    loop = Loop(task, plan, rank, notice, checkpoints)
    if loop.run(resumes(options.resume)) == RUN_ME_AGAIN:
        return RUN_ME_AGAIN
    report(**loop.values, **task.rates(float(loop.speed)), step_ms=loop.speed.step_ms())
    if 0 < options.target_loss < loop.values["validation_loss"]:
        complain(f"the loss {loop.values['validation_loss']:.4g} is above --target_loss {options.target_loss}")
        return 1
    return 0


if __name__ == "__main__":
    run(main)
