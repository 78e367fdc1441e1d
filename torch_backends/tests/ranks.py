"""Runs on every rank: all checks of a backend against what each rank can work out by itself.

Arguments: backend, directory. Each rank writes <directory>/<rank>.json: the name of each check, and what went wrong.
"""

from __future__ import annotations

import copy
import datetime
import functools
import json
import os
import random
import re
import shutil
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

CHECKS: dict[str, Callable[[], None]] = {}
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
COMPLEX = [torch.complex64, torch.complex128]
OPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
OURS = ("mpi", "shm")  # whose collectives are compiled
SIZES = [0, 1, 7, 4096, 100_003, 1_500_001]
LONG = 4 << 20  # bytes from which all ranks of a node reduce with other nodes, and not the first one alone


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def rank() -> int:
    return int(dist.get_rank())


def size() -> int:
    return int(dist.get_world_size())


def by_others() -> bool:
    """Say whether MPI itself, gloo or oneCCL takes part in what ranks of one node do; that is slow with few cores."""
    told = ("TORCHFLEET_MPI_", "TORCHFLEET_SHM_")
    return dist.get_backend() not in OURS or any(name.startswith(told) for name in os.environ)


def by_shared_memory() -> bool:
    """Say whether all ranks share memory."""
    return not by_others() and len(set(objects_of_all(socket.gethostname()))) == 1


def by_gloo() -> bool:
    """Say whether gloo does what shared memory or oneCCL does not."""
    return dist.get_backend() != "mpi"


def is_offered(name: str, dtype: torch.dtype) -> bool:
    """Say whether the backend reduces that: oneCCL has no bitwise operations."""
    bitwise = name.startswith("B")
    if bitwise:
        return dtype in INTEGERS and dist.get_backend() in OURS
    return name == "SUM" or dtype not in COMPLEX


def values(of: int, dtype: torch.dtype, count: int = 24) -> torch.Tensor:
    """Return what a rank brings: small whole numbers, which every type holds and adds exactly."""
    return ((torch.arange(count) * (of + 1)) % 3 + 1).to(dtype)


def reduced(op: str, dtype: torch.dtype, count: int = 24) -> torch.Tensor:
    """Return what all ranks together make of it, in rank order."""
    return functools.reduce(OPS[op], (values(of, dtype, count) for of in range(size())))


def objects_of_all(mine: object) -> list[object]:
    found: list[object] = [None] * size()
    dist.all_gather_object(found, mine)
    return found


def all_equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return len(found) == len(expected) and all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@check
def all_reduce_of_every_type_and_operation() -> None:
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX]:
        for name in OPS:
            if not is_offered(name, dtype):
                continue
            tensor = values(rank(), dtype)
            dist.all_reduce(tensor, op=getattr(dist.ReduceOp, name))
            assert torch.equal(tensor, reduced(name, dtype)), (dtype, name)


@check
def many_small_ones_after_each_other() -> None:
    """Sizes on both sides of where the way through shared memory changes; now and then a rank is late."""
    chance = random.Random(7)  # on all ranks the same
    for number in range(100 if by_others() else int(os.environ.get("OPERATIONS", "3000"))):
        count = chance.choice([1, 5, 1000, 4096, 4097, 20_000, 70_001]) if number % 50 == 0 else chance.randint(1, 64)
        if chance.random() < 0.002 and number % size() == rank():
            time.sleep(0.003)
        tensor = torch.full((count,), float(rank() + number))
        dist.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((count,), float(sum(range(size())) + size() * number))), (number, count)


@check
def all_ranks_get_the_same_bits() -> None:
    """And they are those of a sum in the order of the ranks, where all go through shared memory."""
    for count in (7, 5000, 300_001):
        parts = [torch.randn(count, generator=torch.Generator().manual_seed(of)) for of in range(size())]
        tensor = parts[rank()].clone()
        dist.all_reduce(tensor)
        together = [torch.empty(count) for _rank in range(size())]
        dist.all_gather(together, tensor)
        assert all(torch.equal(other, tensor) for other in together)
        if by_shared_memory():
            assert torch.equal(tensor, functools.reduce(torch.add, parts))


@check
def all_reduce_of_booleans() -> None:
    for name, combine in (("SUM", any), ("MAX", any), ("PRODUCT", all), ("MIN", all), ("BOR", any), ("BAND", all)):
        tensor = torch.tensor([True, False, rank() == 0])
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, name))
        mixed = combine(of == 0 for of in range(size()))
        assert tensor.tolist() == [True, False, mixed], name


@check
def the_mean() -> None:
    for dtype in FLOATS:
        tensor = values(rank(), dtype)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert torch.allclose(tensor.double(), reduced("SUM", torch.float64) / size(), rtol=1e-2)


@check
def all_reduce_of_every_size() -> None:
    for count in SIZES:
        tensor = values(rank(), torch.float32, count)
        dist.all_reduce(tensor)
        assert torch.equal(tensor, reduced("SUM", torch.float32, count)), count


@check
def all_reduce_of_long_ones() -> None:
    """Between nodes: counts on both sides of where the way changes, and between multiples of the ranks."""
    if dist.get_backend() not in OURS or by_shared_memory():
        return
    for dtype in [*FLOATS, *INTEGERS, *COMPLEX]:
        least = LONG // dtype.itemsize
        for count in (least - 1, least, least + 1, 2 * least + 3) if dtype == torch.float32 else (least + 1,):
            tensor = values(rank(), dtype, count)
            dist.all_reduce(tensor)
            assert torch.equal(tensor, reduced("SUM", dtype, count)), (dtype, count)
        if dtype in FLOATS:
            tensor = values(rank(), dtype, least + 1)
            dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
            assert torch.allclose(tensor.double(), reduced("SUM", torch.float64, least + 1) / size(), rtol=1e-2), dtype
    truth = values(rank(), torch.uint8, LONG + 1) == 1
    dist.all_reduce(truth)
    assert torch.equal(truth, reduced("MIN", torch.uint8, LONG + 1) == 1)


@check
def not_a_number_in_long_ones() -> None:
    """One rank has it: in the first part of a node's, between two, or at the end. oneCCL loses it."""
    if dist.get_backend() not in OURS:
        return
    count = LONG // 4 + 1
    for number, at in enumerate((0, count // 2, count - 1)):
        tensor, expected = values(rank(), torch.float32, count), reduced("MIN", torch.float32, count)
        expected[at] = torch.nan
        if rank() == number % size():
            tensor[at] = torch.nan
        dist.all_reduce(tensor, op=dist.ReduceOp.MIN)
        assert torch.equal(tensor.nan_to_num(7.0), expected.nan_to_num(7.0)), at


@check
def what_does_not_lie_in_one_piece() -> None:
    whole = values(rank(), torch.float32, 48).view(6, 8)
    dist.all_reduce(whole.t())
    assert torch.equal(whole.flatten(), reduced("SUM", torch.float32, 48))
    strided = torch.zeros(10)
    dist.broadcast(strided[::2], src=0)
    strided[::2] = rank()
    dist.broadcast(strided[::2], src=size() - 1)
    assert strided.tolist() == [size() - 1, 0] * 5


@check
def what_autograd_watches() -> None:
    """Parameters, and tensors of inference mode, are written to in the threads of the backend too."""
    everybody = range(size())
    parameter = torch.nn.Parameter(values(rank(), torch.float32, 8)[::2])
    with torch.no_grad():
        dist.broadcast(parameter, src=size() - 1)
        assert torch.equal(parameter, values(size() - 1, torch.float32, 8)[::2])
        dist.all_reduce(parameter, dist.ReduceOp.SUM if by_others() else dist.ReduceOp.AVG)
    with torch.inference_mode():
        given, outputs = values(rank(), torch.float32, 6), [torch.zeros(12)[::2] for _rank in everybody]
        dist.all_gather(outputs, given)
        assert all_equal(outputs, [values(of, torch.float32, 6) for of in everybody])
        output = torch.zeros(6)
        dist.reduce_scatter(output, [given] * size())
        assert torch.equal(output, reduced("SUM", torch.float32, 6))
        if not by_gloo():
            dist.scatter(outputs[0], [given] * size() if rank() == 0 else None, src=0)
            assert torch.equal(outputs[0], values(0, torch.float32, 6))


@check
def several_tensors_at_once() -> None:
    tensors = [values(rank(), torch.float32, count) for count in (3, 5)]
    dist.all_reduce_coalesced(tensors)
    assert all_equal(tensors, [reduced("SUM", torch.float32, count) for count in (3, 5)])


@check
def broadcast_from_every_rank() -> None:
    for root in range(size()):
        for dtype in (torch.float32, torch.bfloat16, torch.bool):
            tensor = values(rank(), dtype)
            dist.broadcast(tensor, src=root)
            assert torch.equal(tensor, values(root, dtype))


@check
def reduce_to_every_rank() -> None:
    for root in range(size()):
        tensor = values(rank(), torch.float32)
        dist.reduce(tensor, dst=root)
        expected = reduced("SUM", torch.float32) if rank() == root else values(rank(), torch.float32)
        assert torch.equal(tensor, expected), "the others keep theirs"


@check
def all_gather() -> None:
    everything = [values(of, torch.float32) for of in range(size())]
    parts = [torch.empty(24) for _ in range(size())]
    dist.all_gather(parts, values(rank(), torch.float32))
    assert all_equal(parts, everything)
    one = torch.empty(24 * size())
    dist.all_gather_into_tensor(one, values(rank(), torch.float32))
    assert torch.equal(one, torch.cat(everything))
    one[24 * rank() : 24 * (rank() + 1)] = rank()
    dist.all_gather_into_tensor(one, one[24 * rank() : 24 * (rank() + 1)])
    assert torch.equal(one, torch.arange(float(size())).repeat_interleave(24)), "the input is a part of the output"


@check
def all_gather_of_unequal_parts() -> None:
    parts = [torch.empty(of + 1) for of in range(size())]
    dist.all_gather(parts, torch.full((rank() + 1,), float(rank()), requires_grad=True))
    assert all_equal(parts, [torch.full((of + 1,), float(of)) for of in range(size())])
    assert not any(part.requires_grad for part in parts)
    given = torch.full((rank() + 1,), -1.0)
    work = dist.all_reduce(given[:1], async_op=True)
    dist.all_gather(parts, given)  # which comes after it
    work.wait()
    assert [part[0].item() for part in parts] == [-float(size())] * size()


@check
def reduce_scatter() -> None:
    whole = reduced("SUM", torch.float32, 4 * size())
    mine = whole[4 * rank() : 4 * (rank() + 1)]
    given = values(rank(), torch.float32, 4 * size())
    output = torch.empty(4)
    dist.reduce_scatter(output, list(given.chunk(size())))
    assert torch.equal(output, mine)
    dist.reduce_scatter_single(output, given)
    assert torch.equal(output, mine)
    dist.reduce_scatter_single(given[:4], given)
    assert torch.equal(given[:4], mine), "the output is a part of the input"


@check
def gather_and_scatter() -> None:
    for root in range(size()):
        parts = [torch.empty(24) for _ in range(size())] if rank() == root else None
        dist.gather(values(rank(), torch.float32), parts, dst=root)
        assert parts is None or all_equal(parts, [values(of, torch.float32) for of in range(size())])
        output = torch.empty(24)
        dist.scatter(output, [values(of, torch.float32) for of in range(size())] if rank() == root else None, src=root)
        assert torch.equal(output, values(rank(), torch.float32))


@check
def all_to_all() -> None:
    given = [torch.full((of + 1,), float(10 * rank() + of)) for of in range(size())]
    output = [torch.empty(rank() + 1) for _ in range(size())]
    dist.all_to_all(output, given)
    expected = [torch.full((rank() + 1,), float(10 * of + rank())) for of in range(size())]
    assert all_equal(output, expected)
    one = torch.empty((rank() + 1) * size())
    dist.all_to_all_single(one, torch.cat(given), [rank() + 1] * size(), [of + 1 for of in range(size())])
    assert torch.equal(one, torch.cat(expected))
    even = torch.empty(2 * size())
    dist.all_to_all_single(even, torch.arange(2.0 * size()) + 100 * rank())
    assert even.tolist() == [100 * of + 2 * rank() + place for of in range(size()) for place in (0, 1)]


@check
def messages_cross() -> None:
    """All send before anybody receives, more than any MPI buffers."""
    after, before = (rank() + 1) % size(), (rank() - 1) % size()
    for count in (1, 1 << 20):
        given, output = torch.full((count,), float(rank())), torch.empty(count)
        orders = [dist.P2POp(dist.isend, given, after), dist.P2POp(dist.irecv, output, before)]
        for work in dist.batch_isend_irecv(orders):
            work.wait()
        assert bool((output == before).all())


@check
def messages_from_anybody() -> None:
    if rank() == 0:
        output, seen = torch.empty(2), []
        for _message in range(size() - 1):
            sender = dist.recv(output)
            assert output.tolist() == [sender, sender]
            seen.append(sender)
        assert sorted(seen) == list(range(1, size()))
        dist.barrier()
        outputs = [torch.empty(1) for _message in range(2 * size() - 2)]
        works = [dist.irecv(output) for output in outputs]
        for work in reversed(works):  # they are taken in their order all the same
            work.wait()
        firsts: dict[int, list[float]] = {}
        for work, output in zip(works, outputs, strict=True):
            firsts.setdefault(work.source_rank(), []).append(output.item())
        assert firsts == {of: [of, of + 100] for of in range(1, size())}
    else:
        dist.send(torch.full((2,), float(rank())), 0)
        dist.barrier()
        dist.send(torch.full((1,), float(rank())), 0)
        dist.send(torch.full((1,), float(rank() + 100)), 0)


@check
def messages_with_tags_and_gaps() -> None:
    if rank() == 0:
        for work in [dist.isend(torch.full((3,), float(tag)), 1, tag=tag) for tag in (1, 2)]:
            work.wait()
    elif rank() == 1:
        gap = 1 if by_gloo() else 2  # it takes only what lies in one piece
        second, first = torch.zeros(3 * gap), torch.zeros(3)
        dist.recv(second[::gap], 0, tag=2)
        dist.recv(first, 0, tag=1)
        assert second.tolist() == ([2] + [0] * (gap - 1)) * 3 and first.tolist() == [1] * 3


@check
def many_in_flight() -> None:
    tensors = [torch.full((1000,), float(number)) for number in range(50)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    assert [tensor[0].item() for tensor in tensors] == [number * size() for number in range(50)]
    future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    assert future.wait().tolist() == [2 * size()] * 3


@check
def operations_on_a_tensor_run_in_their_order() -> None:
    """Whatever has to be copied for them. Gloo does not promise it."""
    if dist.get_backend() == "gloo":
        return
    many = size()
    halves, apart, parts = torch.ones(1000, dtype=torch.float16), torch.ones(1000, 2), torch.ones(3)
    whole, output = torch.zeros(2 * many, 2), torch.zeros(3)
    works = [
        dist.all_reduce(halves, async_op=True),
        dist.all_reduce(halves, op=dist.ReduceOp.AVG, async_op=True),
        *(dist.all_reduce(apart[:, 0], async_op=True) for _ in range(2)),
        dist.all_reduce(parts, async_op=True),
        dist.reduce_scatter(output, [parts] * many, async_op=True),
        dist.all_gather_into_tensor(whole, torch.ones(2, 2), async_op=True),
        dist.all_reduce(whole[:, 1], async_op=True),
    ]
    for work in works:
        work.wait()
    assert halves.tolist() == [many] * 1000 and apart.tolist() == [[many**2, 1]] * 1000
    assert output.tolist() == [many**2] * 3 and whole.tolist() == [[1, many]] * (2 * many)


@check
def objects() -> None:
    found = objects_of_all({"rank": rank(), "text": "x" * rank()})
    assert found == [{"rank": of, "text": "x" * of} for of in range(size())]
    sent = [{"from": rank()}]
    dist.broadcast_object_list(sent, src=size() - 1)
    assert sent == [{"from": size() - 1}]


@check
def groups_within() -> None:
    lower = list(range(size() - 1))
    groups = {"one": [rank_ for rank_ in range(size()) if rank_ == size() - 1], "lower": lower, "all": range(size())}
    made = {name: dist.new_group(list(ranks)) for name, ranks in groups.items()}
    for name, ranks in groups.items():
        if rank() in ranks:
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=made[name])
            assert tensor.tolist() == [len(ranks)] * 3, name
    for group in made.values():
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)


@check
def barriers() -> None:
    dist.barrier()
    # dist.monitored_barrier() itself asks for gloo by name
    dist.group.WORLD.monitored_barrier(datetime.timedelta(seconds=30), wait_all_ranks=True)


@check
def what_was_entered_is_recorded() -> None:
    """In the form of PyTorch's flight recorder, with the same number on all ranks of a group.

    TORCH_FR_BUFFER_SIZE asks for it; in a job of train.yml each rank has it.
    """
    from torchfleet_backends import recorded

    group = dist.new_group(list(range(size())))
    for _collective in range(3):
        dist.all_reduce(torch.ones(10), group=group)
    dist.all_reduce(torch.ones(3, dtype=torch.float64), group=group)
    *rows, wider = [row for text in recorded().split(b"\0") for row in json.loads(text)["entries"]]
    last = rows[-1]
    assert (last["output_sizes"], last["output_dtypes"]) == ([[10]], ["Float"]), last
    assert (wider["output_sizes"], wider["output_dtypes"]) == ([[3]], ["Double"]), wider
    name = f"{dist.get_backend()}:all_reduce"
    assert (last["profiling_name"], last["collective_seq_id"], last["bytes"]) == (name, 3, 40), last
    assert last["process_group"] == [group.group_name, dist.get_backend()], last
    assert last["retired"] and not last["is_p2p"], last
    assert 0 < last["time_created_ns"] <= last["time_discovered_completed_ns"] <= time.time_ns(), last
    assert len(rows) <= 2 * 2048 and rows[-3]["time_created_ns"] <= rows[-2]["time_created_ns"], len(rows)


@check
def what_cannot_be_done_is_refused() -> None:
    """At once, and on every rank: the group works as before."""
    for tensor, op, why in (
        (torch.ones(2), dist.ReduceOp.BAND, r"BAND of (Float|float32) is not supported"),
        (torch.ones(1).expand(4), dist.ReduceOp.SUM, r"got an expanded tensor, .*; give tensor.contiguous\(\)"),
    ):
        try:
            dist.all_reduce(tensor, op=op)
        except ValueError as error:
            assert re.fullmatch(rf"backend (mpi|shm|ccl): (all_reduce: )?{why}", str(error)), error
        else:
            raise AssertionError("it was done")
    dist.barrier()


@check
def ranks_that_do_not_exist_are_refused() -> None:
    """By every rank, before anything is read or written there: PyTorch passes them on."""
    ours = dist.get_backend() in OURS
    for there in (size(), 3 * size(), 10**6):
        ones = torch.ones(2)
        calls = [functools.partial(dist.broadcast, ones, there), functools.partial(dist.reduce, ones, there)]
        if ours:
            calls += [functools.partial(call, ones, None, there) for call in (dist.gather, dist.scatter)]
            calls += [functools.partial(call, ones, there) for call in (dist.send, dist.recv)]
        for call in calls if ours or dist.get_backend() == "ccl" else ():
            try:
                call()
            except ValueError as error:
                told = rf"backend (mpi|shm|ccl): got (root|rank) {there}; give a rank from 0 to {size() - 1}"
                assert re.match(told, str(error)), error
            else:
                raise AssertionError(f"{call} was done")
    dist.barrier()


@check
def who_is_missing_is_named() -> None:
    """And nobody else, where most ranks have nothing to wait for. MPI would not be finalised after it."""
    if dist.get_backend() != "shm" or not by_shared_memory() or size() < 3:
        return
    for call, away, waiting in ((dist.broadcast, 0, range(1, size())), (dist.reduce, size() - 1, [0])):
        group = dist.new_group(range(size()), timeout=datetime.timedelta(seconds=1.5))
        try:
            if rank() != away:
                call(torch.ones(100), 0, group=group)
        except dist.DistBackendError as error:
            assert f": rank {away} does not take part in it" in str(error), error
        else:
            assert rank() not in waiting, "nothing was noticed"
        dist.barrier()


@check
def a_root_is_not_written_to() -> None:
    """It may have one element in several places, and then cannot be."""
    if dist.get_backend() not in OURS:
        return
    same = torch.ones(1).expand(4) if rank() == 0 else torch.zeros(4)
    dist.broadcast(same, 0)
    assert same.tolist() == [1] * 4
    dist.barrier()


@check
def lists_of_another_length_and_other_types_are_refused() -> None:
    """Nothing is read or written beyond them, and the group works as before. The root alone has lists to check."""
    if dist.get_backend() not in OURS:
        return
    few, many, ones = [torch.ones(2)], [torch.ones(2) for _ in range(size() + 1)], torch.ones(2 * size())
    scatter = dist.ScatterOptions()
    scatter.rootRank = 0
    for call in (
        *(functools.partial(dist.gather, torch.ones(2), list_) for list_ in (few, many) if rank() == 0),
        *(functools.partial(dist.scatter, torch.ones(2), list_) for list_ in (few, many) if rank() == 0),
        *(functools.partial(dist.all_to_all, *lists) for lists in ((few, many), (many, many))),
        *(functools.partial(dist.reduce_scatter, torch.ones(2), list_) for list_ in (few, many)),
        functools.partial(dist.reduce_scatter, torch.ones(2), [torch.ones(1), torch.ones(3), *many[:-3]]),
        functools.partial(dist.all_to_all_single, ones, ones, [1] * (2 * size()), None),
        functools.partial(dist.all_to_all_single, ones, ones, None, [1] * size()),
        functools.partial(dist.group.WORLD.reduce_scatter, [torch.ones(2)], [], dist.ReduceScatterOptions()),
        *(functools.partial(dist.group.WORLD.scatter, [torch.ones(2)], [], scatter) for _ in "1" if rank() == 0),
        functools.partial(dist.all_gather_into_tensor, ones.int(), torch.ones(2)),
        functools.partial(dist.all_gather_coalesced, [[torch.ones(3)] for _ in range(size())], [torch.ones(2)]),
        functools.partial(dist.all_gather_into_tensor, torch.ones(size()), torch.ones(2, dtype=torch.float16)),
        functools.partial(dist.reduce_scatter_single, torch.ones(2, dtype=torch.float64), ones),
        functools.partial(dist.reduce_scatter_single, torch.ones(2).int(), ones),
    ):
        try:
            call()
        except ValueError as error:
            operation = "gather|scatter|all_to_all|reduce_scatter|all_gather|all_gather_coalesced"
            assert re.match(rf"backend (mpi|shm): ({operation}): ", str(error))
        else:
            raise AssertionError(f"{call} was done")
    dist.barrier()


def train(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the parameters after a few steps, each rank with data of its own."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(4):
        torch.manual_seed(100 * step + rank())
        optimizer.zero_grad()
        model(torch.randn(8, 16)).pow(2).mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def model() -> torch.nn.Module:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))


@check
def data_parallel_training() -> None:
    """DDP comes to what gradients that are added in rank order come to."""
    parameters = train(torch.nn.parallel.DistributedDataParallel(model()))
    reference = model()
    optimizer = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        for of in range(size()):
            torch.manual_seed(100 * step + of)
            (reference(torch.randn(8, 16)).pow(2).mean() / size()).backward()
        optimizer.step()
    for found, expected in zip(parameters, reference.parameters(), strict=True):
        assert torch.allclose(found, expected, atol=1e-6)


def own_tensor(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor where DDP has its buckets: in memory that the ranks share, if they can."""
    cpu = torch.device("cpu")
    backend = dist.group.WORLD._get_backend(cpu)
    return (
        backend.allocate_tensor(count, dtype=dtype, device=cpu)
        if backend.supports_tensor_alloc(cpu)
        else torch.empty(count, dtype=dtype)
    )


def shared_tensors() -> int:
    """Return how many tensors that ranks share this process has in its memory."""
    return Path("/proc/self/maps").read_text().count("/memfd:torchfleet-tensor")


@check
def tensors_in_memory_that_ranks_share() -> None:
    """Each rank reduces a part of them for all; they come and go, and another rank may have an ordinary one."""
    count = 100_003
    for dtype, name in [(torch.float32, "SUM"), (torch.float64, "MAX"), (torch.bfloat16, "SUM"), (torch.int64, "BXOR")]:
        if not is_offered(name, dtype):
            continue
        tensor = own_tensor(count + 5, dtype)
        part = tensor[5:]
        for _time in range(2):
            part.copy_(values(rank(), dtype, count))
            dist.all_reduce(part, op=getattr(dist.ReduceOp, name))
            assert torch.equal(part, reduced(name, dtype, count)), (dtype, name)
        expected = size() if tensor.data_ptr() and by_shared_memory() else 0
        assert shared_tensors() == expected, (shared_tensors(), expected)
        dist.barrier()
        mixed = part if rank() == 0 else torch.empty(count, dtype=dtype)
        mixed.copy_(values(rank(), dtype, count))
        dist.all_reduce(mixed, op=getattr(dist.ReduceOp, name))
        assert torch.equal(mixed, reduced(name, dtype, count)), (dtype, name)
        del tensor, part, mixed


@check
def buckets_of_data_parallel_training() -> None:
    """They lie in shared memory, and all ranks come to the same bits: those of a sum in the order of the ranks."""
    torch.manual_seed(7)
    single = torch.nn.Sequential(torch.nn.Linear(16, 3000), torch.nn.ReLU(), torch.nn.Linear(3000, 4))
    replica = torch.nn.parallel.DistributedDataParallel(copy.deepcopy(single))
    for step in range(3):
        replica.zero_grad()
        gradients = []
        for of in range(size()):
            single.zero_grad()
            torch.manual_seed(100 * step + of)
            single(torch.randn(8, 16)).pow(2).mean().backward()
            gradients.append([parameter.grad * (1 / size()) for parameter in single.parameters()])
        torch.manual_seed(100 * step + rank())
        replica(torch.randn(8, 16)).pow(2).mean().backward()
        for parameter, *parts in zip(replica.parameters(), *gradients, strict=True):
            assert torch.allclose(parameter.grad, sum(parts), atol=1e-6)
            assert not by_shared_memory() or torch.equal(parameter.grad, functools.reduce(torch.add, parts))
    assert shared_tensors() == (size() if by_shared_memory() else 0), shared_tensors()


@check
def fully_sharded_training_and_checkpoint() -> None:
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded = model()
    fully_shard(sharded, mesh=init_device_mesh("cpu", (size(),)))
    train(sharded)
    if len(set(objects_of_all(socket.gethostname()))) > 1:
        return  # a checkpoint wants a directory that all can reach
    where: list[object] = [tempfile.mkdtemp() if rank() == 0 else None]
    dist.broadcast_object_list(where, src=0)
    state = get_model_state_dict(sharded)
    checkpoint.save(state, checkpoint_id=where[0])
    kept = {name: tensor.to_local().clone() for name, tensor in state.items()}
    for tensor in state.values():
        tensor.to_local().zero_()
    checkpoint.load(state, checkpoint_id=where[0])
    dist.barrier()
    if dist.get_rank() == 0:
        shutil.rmtree(str(where[0]))
    assert all(torch.equal(kept[name], tensor.to_local()) for name, tensor in state.items())


def main() -> None:
    """Run all checks in the order in which they stand here, and write down what came of each, until one goes wrong."""
    backend, directory = sys.argv[1:3]
    dist.init_process_group(backend)
    found = {}
    for name, function in CHECKS.items():
        try:
            function()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
        (Path(directory) / f"{rank()}.json").write_text(json.dumps(found))
        if found[name]:
            sys.stderr.write(found[name])
            os._exit(1)  # from here on the ranks would wait for each other; the launcher ends them all
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
