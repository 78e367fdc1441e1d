"""What goes between some of the ranks only: experts by all_to_all, objects, groups within the world."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

from torch_backends.tests.programs.models import WIDTH, loss_of, numbers, sentences, stack, transformer
from torch_backends.tests.programs.registry import Found, listed, program, rank, same_everywhere, sgd, size, state

STEPS = 3


class Experts(nn.Module):
    """Each rank has one expert. A router sends each word to one of them: some ranks get more than others, or none."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.router = nn.Linear(WIDTH, size(), bias=False)
        self.expert = nn.ModuleList(stack(WIDTH, 2 * WIDTH, WIDTH) for _rank in range(size()))[rank()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).softmax(-1).max(-1)
        order = chosen.argsort(stable=True)
        sends = torch.bincount(chosen, minlength=size())
        receives = torch.empty_like(sends)
        dist.all_to_all_single(receives, sends)
        there, here = sends.tolist(), receives.tolist()
        given = functional.all_to_all_single_autograd(x[order], here, there, dist.group.WORLD)
        done = self.expert(functional.wait_tensor(given))
        back = functional.wait_tensor(functional.all_to_all_single_autograd(done, there, here, dist.group.WORLD))
        return torch.zeros_like(x).index_copy(0, order, back) * weights[:, None]


@program()
def experts() -> Found:
    """The router's gradients are added, those of an expert are its own."""
    model, losses = Experts(), []
    optimizer = sgd(model)
    for step in range(2 * STEPS):
        x = numbers(step, rank(), 5 * (rank() + 1), WIDTH)
        losses.append((model(x) - x.roll(1, -1)).square().mean())
        losses[-1].backward()
        dist.all_reduce(model.router.weight.grad)
        optimizer.step()
        optimizer.zero_grad()
    return state(model) | listed("losses", losses)


@program(tolerance=0)
def experts_without_work() -> Found:
    """All send everything to one rank, another one in each round; then nobody sends anything."""
    found = {}
    for round_ in range(size() + 1):
        sends = [0] * size()
        if round_ < size():
            sends[round_] = 3 + rank()
        receives = [3 + of if rank() == round_ else 0 for of in range(size())]
        given, got = numbers(round_, rank(), sum(sends), 4), torch.empty(sum(receives), 4)
        dist.all_to_all_single(got, given, receives, sends)
        found[f"round {round_}"] = got
    return found


@program()
def gradients_through_collectives() -> Found:
    """torch.distributed.nn: what a loss on one rank depends on lies on all."""
    x = numbers(1, rank(), 6).requires_grad_()
    total = differentiable.all_reduce(x * (rank() + 1))
    parts = torch.stack(differentiable.all_gather(x.sin()))
    of_first = differentiable.broadcast(x.cos(), 0)
    swapped = differentiable.all_to_all(
        [torch.empty(2) for _rank in range(size())], [x[:2] * of for of in range(size())]
    )
    loss = (total * parts.sum(0) * of_first).sum() + torch.cat(list(swapped)).square().sum() * (rank() + 1)
    loss.backward()
    return {"loss": loss.detach(), "gradient": x.grad}


@program(tolerance=0)
def objects() -> Found:
    """Of different sizes, some large, in every way there is."""
    own = {"rank": rank(), "text": "x" * (10 ** (2 * rank() + 1) % 999_983), "tensor": numbers(1, rank(), 7)}
    everything: list[object] = [None] * size()
    dist.all_gather_object(everything, own)
    last = size() - 1
    gathered = [None] * size() if rank() == last else None
    dist.gather_object(own, gathered, dst=last)
    part: list[object] = [None]
    dist.scatter_object_list(part, everything if rank() == last else [None] * size(), src=last)
    sent = [own, rank()] if rank() == 0 else [None, None]
    dist.broadcast_object_list(sent, src=0)
    passed: list[object] = [None]
    if rank() > 0:
        dist.recv_object_list(passed, src=rank() - 1)
    if rank() < last:
        dist.send_object_list([everything[: rank() + 1]], dst=rank() + 1)
    assert [one["rank"] for one in everything] == list(range(size())) and part[0]["rank"] == rank()
    assert gathered is None or [len(one["text"]) for one in gathered] == [len(one["text"]) for one in everything]
    assert rank() == 0 or len(passed[0]) == rank()
    found = {f"tensor {of}": one["tensor"] for of, one in enumerate(everything)}
    return found | {"sent": sent[0]["tensor"], "part": part[0]["tensor"]}


@program()
def groups_within() -> Found:
    """Groups that overlap, each with collectives under way at the same time; ranks take part in them in any order."""
    pairs = [(one, other) for one in range(size()) for other in range(one + 1, size())]
    groups = {pair: dist.new_group(pair) for pair in pairs}
    mine, found, works = [pair for pair in pairs if rank() in pair], {}, []
    for step in range(STEPS):
        for pair in mine if (step + rank()) % 2 else mine[::-1]:
            tensor = numbers(step, rank(), 1000)
            works.append(dist.all_reduce(tensor, group=groups[pair], async_op=True))
            found[f"{step} {pair}"] = tensor
    whole = numbers(9, rank(), 1000)
    dist.all_reduce(whole)
    for work in works:
        work.wait()
    by_number, _all = dist.new_subgroups(group_size=size() // 2 if size() % 2 == 0 else size())
    tensor = numbers(10, rank(), 100)
    dist.all_reduce(tensor, group=by_number)
    listed_ones, _all = dist.new_subgroups_by_enumeration([[0], list(range(1, size()))])
    parts = [torch.empty(3) for _rank in range(dist.get_world_size(listed_ones))]
    dist.all_gather(parts, numbers(11, rank(), 3), group=listed_ones)
    for pair in mine:
        dist.destroy_process_group(groups[pair])
    return found | {"whole": whole, "by number": tensor, "parts": torch.cat(parts)}


@program()
def local_training() -> Found:
    """Post-local SGD: at first all gradients are added, then those of a part of the ranks, and weights are averaged."""
    part, _all = dist.new_subgroups(group_size=2 if size() % 2 == 0 else 1)
    model = nn.parallel.DistributedDataParallel(transformer())
    model.register_comm_hook(PostLocalSGDState(None, part, start_localSGD_iter=2), post_localSGD_hook)
    averager, optimizer = PeriodicModelAverager(period=2, warmup_steps=2), sgd(model)
    for step in range(6):
        words, following = sentences(step, rank())
        loss_of(model(words), following).backward()
        optimizer.step()
        averager.average_parameters(model.parameters())  # those that have gradients
        optimizer.zero_grad()
    found = state(model)
    return same_everywhere(found) if size() == 2 else found
