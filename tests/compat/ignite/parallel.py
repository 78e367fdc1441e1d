"""Ignite's idist.Parallel, as its documentation has it for processes that a launcher started."""

import ignite.distributed as idist
import torch
from ignite.engine import Engine, Events
from ignite.metrics import RunningAverage


def training(local_rank: int) -> None:
    model = idist.auto_model(torch.nn.Linear(4, 1))
    optimizer = idist.auto_optim(torch.optim.SGD(model.parameters(), lr=0.1))

    def step(_engine: Engine, batch: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    trainer = Engine(step)
    RunningAverage(output_transform=float).attach(trainer, "loss")
    trainer.add_event_handler(Events.COMPLETED, lambda: print(f"steps {trainer.state.iteration}"))
    torch.manual_seed(idist.get_rank())
    trainer.run(torch.randn(8, 2, 4), max_epochs=2)
    print(f"rank {idist.get_rank()} of {idist.get_world_size()}, local rank {local_rank}, node {idist.get_node_rank()}")
    print(f"weights {sum(value.double().sum() for value in model.parameters()):.6f}")


with idist.Parallel(backend="gloo") as parallel:
    parallel.run(training)
