"""DistributedDataParallel and what goes with it: communication hooks, ZeroRedundancyOptimizer, Join, torch.compile.

DDP reads the annotations of hooks, so they are no texts here.
"""

import os
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from torch_backends.tests.programs.models import loss_of, numbers, sentences, stack, transformer
from torch_backends.tests.programs.registry import Found, listed, program, rank, same_everywhere, sgd, size, state

STEPS = 4
COMPILER = os.environ.get("PROGRAMS_COMPILER", "aot_eager")


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, steps: int = STEPS) -> Found:
    """Train the model of a DDP, each rank with sentences of its own. Return its state and this rank's losses."""
    optimizer, losses = optimizer or sgd(model), []
    for step in range(steps):
        words, following = sentences(step, rank())
        losses.append(loss_of(model(words), following))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return same_everywhere(state(model)) | listed("losses", losses)


class Half(torch.nn.Module):
    """Uses one of its two halves, another one in each step and on each rank; counts its steps in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.halves = torch.nn.ModuleList([stack(6, 8, 6), stack(6, 10, 6)])
        self.register_buffer("steps", torch.zeros(3))

    def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
        self.steps += rank() + 1  # of rank 0 in the end: DDP broadcasts buffers
        return self.halves[(step + rank()) % 2](x)


@program()
def data_parallel() -> Found:
    """With small buckets, with views of them, with a static graph, and with parts that are not used."""
    small = {"bucket_cap_mb": 0.01}
    found = {f"plain {name}": tensor for name, tensor in train(DistributedDataParallel(transformer(), **small)).items()}
    replica = DistributedDataParallel(transformer(), gradient_as_bucket_view=True, static_graph=True, **small)
    found |= {f"views {name}": tensor for name, tensor in train(replica).items()}
    model = DistributedDataParallel(Half(), find_unused_parameters=True)
    optimizer = sgd(model)
    for step in range(STEPS):
        model(numbers(step, rank(), 5, 6), step).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    model(numbers(0, rank(), 5, 6), 0)  # takes the buffers of rank 0
    return found | {f"half {name}": tensor for name, tensor in state(model).items() if "steps" not in name}


@program()
def gradients_of_several_batches() -> Found:
    """no_sync() in all but every third step."""
    model = DistributedDataParallel(transformer(), bucket_cap_mb=0.02)
    optimizer = sgd(model)
    for step in range(6):
        words, following = sentences(step, rank())
        if step % 3 < 2:
            with model.no_sync():
                loss_of(model(words), following).backward()
        else:
            loss_of(model(words), following).backward()
            optimizer.step()
            optimizer.zero_grad()
    return same_everywhere(state(model))


def hooked(hook: Any, hook_state: object = None, bucket_cap_mb: float | None = None) -> Found:
    """Train with a hook. One that starts a collective when another is over needs all gradients in one bucket.

    Else each rank starts those of two buckets in an order of its own: under gloo that ends a process.
    """
    model = DistributedDataParallel(transformer(), bucket_cap_mb=bucket_cap_mb)
    model.register_comm_hook(hook_state, hook)
    return train(model)


@program(tolerance=2e-2)
def gradients_of_sixteen_bits() -> Found:
    """The hooks fp16_compress and bf16_compress: what is added has 11 and 8 bits.

    The second is wrapped: DDP takes it by its name, and only with a GPU.
    """

    def bf16(hook_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        return default_hooks.bf16_compress_hook(hook_state, bucket)

    found = {
        f"fp16 {name}": tensor for name, tensor in hooked(default_hooks.fp16_compress_hook, bucket_cap_mb=0.02).items()
    }
    return found | {f"bf16 {name}": tensor for name, tensor in hooked(bf16, bucket_cap_mb=0.02).items()}


@program(tolerance=1e-3)
def gradients_by_power_sgd() -> Found:
    """PowerSGD, whose futures start collectives of their own. Its batched form fails in PyTorch 2.13 itself."""
    return hooked(powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None, 2, start_powerSGD_iter=2))


@program()
def gradients_by_a_hook_of_the_program() -> Found:
    """It scales by what is largest on any rank, and makes the bucket longer, as batched PowerSGD does."""

    def hook(_state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        gradients = bucket.buffer()
        count = gradients.numel()
        gradients.resize_(count + 7)[count:] = 0
        largest = gradients.abs().max().reshape(1)
        agreed = dist.all_reduce(largest, dist.ReduceOp.MAX, async_op=True).get_future()

        def add(_done: object) -> torch.Tensor:
            gradients.div_(largest * size())
            dist.all_reduce(gradients)
            return gradients.mul_(largest).resize_(count)

        return agreed.then(add)

    return hooked(hook)


@program()
def optimizer_in_parts() -> Found:
    """ZeroRedundancyOptimizer: each rank has the state of a part of the parameters, and rank 0 in the end of all."""
    found = {}
    for name, kind, more in [("sgd", torch.optim.SGD, {"momentum": 0.9}), ("adagrad", torch.optim.Adagrad, {})]:
        model = DistributedDataParallel(transformer())
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), optimizer_class=kind, parameters_as_bucket_view=name == "sgd", lr=0.05, **more
        )
        found |= {f"{name} {key}": tensor for key, tensor in train(model, optimizer).items()}
        optimizer.consolidate_state_dict(to=0)
        if rank() == 0:
            for place, kept in optimizer.state_dict()["state"].items():
                found |= {f"{name} {place} {key}": torch.as_tensor(value).clone() for key, value in kept.items()}
    return found


@program()
def uneven_inputs() -> Found:
    """Join: each rank has one batch more than the one before it."""
    model = DistributedDataParallel(stack(6, 12, 4))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.SGD, lr=0.1)
    with Join([model, optimizer]):
        for step in range(2 + rank()):
            model(numbers(step, rank(), 5, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = same_everywhere(state(model))
    model = DistributedDataParallel(stack(6, 12, 4))
    optimizer, stopped = torch.optim.SGD(model.parameters(), lr=0.1), 0
    try:
        with model.join(throw_on_early_termination=True):
            for step in range(2 + rank()):
                model(numbers(step, rank(), 5, 6)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    except RuntimeError as error:
        assert "exhausted" in str(error), error
        stopped = 1
    return found | {"stopped": torch.tensor(stopped)}


def compiled(function: Any, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend=COMPILER, **options)


@program(tolerance=1e-4)
def compiled_data_parallel() -> Found:
    """torch.compile of a DDP, which divides the graph where buckets end. They have at least a megabyte."""
    model = DistributedDataParallel(stack(30, 600, 600, 600, 8), bucket_cap_mb=1)
    optimizer, run, losses = torch.optim.SGD(model.parameters(), lr=0.1), compiled(model), []
    for step in range(3):
        losses.append(run(numbers(step, rank(), 5, 30)).square().mean())
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return same_everywhere(state(model)) | listed("losses", losses)


@program(tolerance=1e-4)
def compiled_collectives() -> Found:
    """Functional collectives in one graph, and those of torch.distributed in another."""
    weights = stack(6, 8)[0].weight

    def step(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = x @ weight.t()
        together = functional.all_reduce(y, "sum", dist.group.WORLD)
        parts = functional.reduce_scatter_tensor(y.repeat(size(), 1), "sum", 0, dist.group.WORLD)
        everything = functional.all_gather_tensor(parts.sin(), 0, dist.group.WORLD)
        shuffled = functional.all_to_all_single(everything, None, None, dist.group.WORLD)
        return together.sum() + (everything * shuffled).sum() + parts.square().sum()

    def in_place(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        dist.all_reduce(y)
        gathered = torch.empty(size() * x.size(0), *x.shape[1:])
        dist.all_gather_into_tensor(gathered, y + rank())
        return gathered.sin()

    given = numbers(1, rank(), 5, 6)
    with torch.no_grad():
        found = {"sum": compiled(step, fullgraph=True)(given, weights)}
        found["in place"] = compiled(in_place, fullgraph=True)(given)
    return {name: tensor.clone() for name, tensor in found.items()}
