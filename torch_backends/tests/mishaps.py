"""Runs on two ranks: what goes wrong, and what would wait for ever.

Arguments: a directory, the backend, and the checks if not all: then the program just ends after them.

Each rank writes <directory>/<rank>.json: the name of each check, and what was wrong. A check that hangs ends its rank.
"""

from __future__ import annotations

import contextlib
import datetime
import faulthandler
import json
import os
import re
import resource
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

CHECKS: dict[str, Callable[[], None]] = {}
PLACE = Path(sys.argv[1])
BACKEND = sys.argv[2]
HANGS = 150  # seconds of one check after which it hangs; on a busy machine an import of PyTorch may take 60
SOON = datetime.timedelta(seconds=1.5)


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


def rank() -> int:
    return int(dist.get_rank())


def own_group(timeout: datetime.timedelta = datetime.timedelta(seconds=10)) -> dist.ProcessGroup:
    """Return a group that may break."""
    group = dist.new_group([0, 1], timeout=timeout)
    assert isinstance(group, dist.ProcessGroup)
    return group


@contextlib.contextmanager
def refused(pattern: str, kind: type[Exception] = dist.DistBackendError) -> Iterator[None]:
    """Expect an exception with such a text."""
    try:
        yield
    except kind as error:
        assert re.search(pattern, str(error)), str(error)
    else:
        raise AssertionError(f"nothing was raised, and {pattern!r} is expected")


def flagged(name: str, seconds: float = 10) -> bool:
    """Wait for a file that the other rank makes."""
    end = time.monotonic() + seconds
    while not (PLACE / name).exists() and time.monotonic() < end:
        time.sleep(0.01)
    return (PLACE / name).exists()


@check
def messages_that_cross_a_collective() -> None:
    """Who waits for the collective must move the message on that the other one is in."""
    for count in (100, 20_000, 4_000_000):
        tensor, ones = torch.full((count,), float(rank())), torch.ones(3)
        if rank() == 0:
            work = dist.irecv(tensor, 1)
            dist.all_reduce(ones)
            work.wait()
            assert bool((tensor == 1).all())
            work = dist.isend(tensor, 1)
            dist.all_reduce(ones)
            work.wait()
        else:
            dist.send(tensor, 0)
            dist.all_reduce(ones)
            dist.recv(tensor, 0)
            dist.all_reduce(ones)


@check
def a_message_to_a_rank_that_computes() -> None:
    """Its send ends while the receiver calls nothing of ours, and the receiver's work is over without a look."""
    if BACKEND == "shm":
        return  # its messages are gloo's
    tensor = torch.full((1_000_000,), float(rank()))
    if rank() == 0:
        work = dist.irecv(tensor, 1)
        assert flagged("sent"), "the other rank is still in send()"
        work.get_future().wait()
        assert work.is_completed() and bool((tensor == 1).all())
    else:
        dist.send(tensor, 0)
        (PLACE / "sent").touch()


@check
def a_future_has_the_timeout_too() -> None:
    """DDP waits for futures only."""
    group = own_group(SOON)
    if rank() == 0:
        future = dist.all_reduce(torch.ones(3), group=group, async_op=True).get_future()
        with refused("all_reduce number 1 of group .* has not ended within 1500 ms: rank 1 does not", Exception):
            future.wait()
        with refused("an earlier operation of its group failed: .* number 1 of group"):
            dist.barrier(group=group)
        (PLACE / "gave up").touch()
    else:
        assert flagged("gave up")
        with refused("rank 0 failed: .* has not ended within 1500 ms: rank 1 does not take part"):
            dist.all_reduce(torch.ones(3), group=group)


@check
def data_parallel_training_ends_if_one_rank_stops() -> None:
    torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))  # the first one imports much
    group = own_group(SOON)
    replica = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8), process_group=group)
    replica(torch.ones(2, 8)).sum().backward()
    if rank() == 0:
        with refused("has not ended within 1500 ms", Exception):
            replica(torch.ones(2, 8)).sum().backward()
        (PLACE / "ddp gave up").touch()
    assert flagged("ddp gave up")


@check
def groups_in_another_order_on_each_rank() -> None:
    """Each of them has a thread of its own."""
    groups, tensors = [dist.new_group([0, 1]) for _group in range(2)], [torch.ones(3), torch.ones(5)]
    order = [0, 1] if rank() == 0 else [1, 0]
    works = [dist.all_reduce(tensors[place], group=groups[place], async_op=True) for place in order]
    for work in works:
        work.wait()
    assert [tensor.tolist() for tensor in tensors] == [[2] * 3, [2] * 5]


@check
def a_collective_in_the_callback_of_another() -> None:
    """And in its callback again."""
    second, third = torch.ones(3), torch.ones(3)

    def in_it(_done: object) -> torch.Tensor:
        dist.all_reduce(second)
        dist.all_reduce(third, async_op=True).get_future().then(lambda _done: dist.barrier()).wait()
        return second

    future = dist.all_reduce(torch.ones(3), async_op=True).get_future().then(in_it)
    assert future.wait().tolist() == [2] * 3 and third.tolist() == [2] * 3


def gradients_by_power_sgd(group: dist.ProcessGroup | None) -> torch.Tensor:
    """Return what some steps of training find with PyTorch's hook, whose callbacks call collectives."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    replica = torch.nn.parallel.DistributedDataParallel(model, process_group=group)
    state = power_sgd.PowerSGDState(group, matrix_approximation_rank=2, start_powerSGD_iter=2)
    replica.register_comm_hook(state, power_sgd.powerSGD_hook)
    for step in range(5):
        model.zero_grad()
        replica(torch.full((4, 64), 1.0 + rank() + step)).square().sum().backward()
    assert state.compression_stats()[0] > 1  # the last steps were compressed
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


@check
def power_sgd_finds_what_it_finds_with_gloo() -> None:
    found = gradients_by_power_sgd(dist.group.WORLD)
    expected = gradients_by_power_sgd(dist.new_group([0, 1], backend="gloo"))
    assert float(found.abs().max()) > 0
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@check
def what_is_received_after_its_group_is_gone() -> None:
    if BACKEND == "shm":
        return  # its messages are gloo's
    group = own_group()
    if rank() == 0:
        dist.irecv(torch.zeros(8_000_000), 1, group=group)
        dist.destroy_process_group(group)
        others = [torch.zeros(1_000_000) for _number in range(8)]
        dist.barrier()
        dist.barrier()
        assert not any(bool(other.any()) for other in others)
    else:
        dist.barrier()
        dist.isend(torch.ones(8_000_000), 0, group=group).wait()
        dist.destroy_process_group(group)
        dist.barrier()


@check
def messages_of_a_group_that_is_gone() -> None:
    """Whoever has kept its backend is refused: Open MPI ends the process that probes for what came by it."""
    if BACKEND == "shm":
        return  # its messages are gloo's
    group = own_group()
    backend = group._get_backend(torch.device("cpu"))
    dist.destroy_process_group(group)
    with refused("this group was destroyed"):
        backend.send([torch.ones(3)], 1 - rank(), 0)
    with refused("this group was destroyed"):
        backend.recv([torch.ones(3)], 1 - rank(), 0)
    with refused("this group was destroyed"):
        backend.recv_anysource([torch.ones(3)], 0)


@check
def ranks_that_ask_for_different_things() -> None:
    """Both are told what each asks for."""
    for mine, other, text in [
        (torch.ones(1000), torch.ones(900), "rank 0: all_reduce .SUM. of 1000 Float; rank 1: .* of 900 Float"),
        (torch.ones(100_000), torch.ones(90_000), "rank 0: .* of 100000 Float; rank 1: .* of 90000 Float"),
        (torch.ones(3_000), torch.ones(300_000), "rank 0: .* of 3000 Float; rank 1: .* of 300000 Float"),
        (torch.ones(10), torch.ones(10).int(), "rank 0: .* of 10 Float; rank 1: .* of 10 Int"),
    ]:
        group = own_group()
        with refused(f"the ranks do not ask for the same: {text}"):
            dist.all_reduce(other if rank() else mine, group=group)


@check
def ranks_in_different_operations() -> None:
    for count in (10, 100_000):
        group = own_group()
        with refused(f"rank 0: broadcast with root 0 of {count} Float; rank 1: all_reduce"):
            if rank() == 0:
                dist.broadcast(torch.ones(count), 0, group=group)
                dist.barrier(group=group)  # a broadcast's root waits for nobody
            else:
                dist.all_reduce(torch.ones(count), group=group)


@check
def tensors_of_different_types_to_all() -> None:
    """Of as many bytes."""
    group, dtype = own_group(), torch.int32 if rank() else torch.float32
    given, output = [[torch.ones(10, dtype=dtype) for _rank in range(2)] for _list in range(2)]
    with refused("the ranks do not ask for the same: rank 0: all_to_all of Float; rank 1: all_to_all of Int"):
        dist.all_to_all(output, given, group=group)


@check
def more_to_gather_than_is_expected() -> None:
    """Nothing is written beside it: Open MPI would, all that is sent."""
    group, whole = own_group(), torch.zeros(100_000)
    with refused("rank 1 sends 320000 bytes to rank 0, which expects 40000"):
        if rank() == 0:
            dist.gather(torch.ones(10_000), [whole[:10_000], whole[10_000:20_000]], 0, group=group)
        else:
            dist.gather(torch.ones(80_000), None, 0, group=group)
    assert not bool(whole[20_000:].any())


@check
def shared_tensors_of_different_sizes() -> None:
    """Nothing is written beside them."""
    cpu = torch.device("cpu")
    group = own_group()
    backend = group._get_backend(cpu)
    if not backend.supports_tensor_alloc(cpu):
        return
    tensor = backend.allocate_tensor(100_000 - 10_000 * rank(), dtype=torch.float32, device=cpu).fill_(1)
    with refused("rank 0: .* of 100000 Float; rank 1: .* of 90000 Float"):
        dist.all_reduce(tensor, group=group)
    assert bool((tensor == 1).all())


@check
def shared_tensors_that_one_rank_cannot_map() -> None:
    """The others do not take what is not reduced for a result, and nothing later puts them right."""
    cpu, group = torch.device("cpu"), own_group()
    backend = group._get_backend(cpu)
    if not backend.supports_tensor_alloc(cpu):
        return
    tensor = backend.allocate_tensor(100_000, dtype=torch.float32, device=cpu).fill_(1)
    dist.barrier(group=group)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if rank() == 1:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # it opens no file, and so no other rank's memory
    with refused("^backend .* memory of rank 0 cannot be mapped" if rank() else "rank 1 failed: .* cannot be mapped"):
        dist.all_reduce(tensor, group=group)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with refused("an earlier operation of its group failed: .* cannot be mapped"):
        dist.barrier(group=group)
    dist.barrier()  # other groups work


@check
def parts_of_another_size_than_is_expected() -> None:
    """Nothing is written beyond the memory for it, which Open MPI does where it copies from another process."""
    if BACKEND == "shm":
        return  # its messages are gloo's
    sizes, later = (5, 20, 3000, 300_000), torch.zeros(10)
    group = own_group()
    if rank() == 0:
        for sent in sizes:
            for _time in range(2):
                dist.send(torch.ones(sent), 1, group=group)
        dist.send(torch.full((10,), 2.0), 1, group=group)
        return
    for sent in sizes:
        for source in (0, None):
            memory = torch.zeros(300_000)
            with refused(f"recv number .* of group .*: rank 0 sent {4 * sent} bytes, and 40 are expected"):
                dist.recv(memory[1000:1010], source, group=group)
            assert not memory[:1000].any() and not memory[1010:].any(), (sent, source)
    dist.recv(later, 0, group=group)
    assert later.tolist() == [2] * 10


@check
def receives_get_their_messages_in_order() -> None:
    """Those that name the source first, whichever is waited for first."""
    if BACKEND == "shm":
        return  # its messages are gloo's
    if rank() == 0:
        assert flagged("receives are there")
        for number in range(6):
            dist.send(torch.full((2000,), float(number)), 1, tag=7)
        return
    tensors = [torch.zeros(2000) for _number in range(6)]
    works = [
        dist.irecv(tensor, source, tag=7) for tensor, source in zip(tensors, [None, None, 0, 0, 0, 0], strict=True)
    ]
    (PLACE / "receives are there").touch()
    for work in reversed(works):
        work.wait()
    assert [int(tensor[0]) for tensor in tensors] == [4, 5, 0, 1, 2, 3]


@check
def a_wait_that_times_out_is_no_end() -> None:
    """The operation goes on, and the group works."""
    tensor = torch.ones(3)
    if rank() == 0:
        work = dist.all_reduce(tensor, async_op=True)
        later = dist.barrier(async_op=True)
        with refused("all_reduce number .* has not ended within 200 ms: rank 1 does not take part in it"):
            work.wait(datetime.timedelta(milliseconds=200))
        with refused("barrier number .* has not ended within 200 ms: it has not begun"):
            later.wait(datetime.timedelta(milliseconds=200))
        (PLACE / "waited").touch()
        work.wait()
        later.wait()
    else:
        assert flagged("waited")
        dist.all_reduce(tensor)
        dist.barrier()
    assert tensor.tolist() == [2] * 3


@check
def two_threads_and_messages_from_anybody() -> None:
    """A wait holds up neither another thread's messages nor a question whether it is over."""
    if rank() == 1:
        received = torch.zeros(1)
        dist.recv(received, 0)
        dist.recv(received, 0)
        dist.send(torch.ones(1), 0)
        dist.send(torch.ones(1), 0)
        return
    works = [dist.irecv(torch.zeros(1)) for _number in range(2)]
    waiting = threading.Thread(target=works[0].wait)
    waiting.start()
    time.sleep(0.2)
    assert not works[0].is_completed() and not works[1].is_completed()
    for _number in range(2):
        dist.isend(torch.ones(1), 1).wait()
    waiting.join()
    works[1].wait()


@check
def numbers_of_operations_do_not_count_messages() -> None:
    group = own_group()
    if rank() == 0:
        dist.send(torch.ones(1), 1, group=group)
        dist.send(torch.ones(1), 1, group=group)
    else:
        received = torch.zeros(2)
        dist.recv(received[:1], 0, group=group)
        dist.recv(received[1:], 0, group=group)
    dist.barrier(group=group)
    assert group._get_backend(torch.device("cpu"))._get_sequence_number_for_group() == 1


@check
def the_mean_of_large_numbers() -> None:
    for count in (3, 100_003):
        tensor = torch.full((count,), 40_000.0, dtype=torch.float16)
        dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
        assert bool((tensor == 40_000).all()), tensor
        kept, output = torch.full((2 * count,), 40_000.0, dtype=torch.float16), torch.empty(count, dtype=torch.float16)
        dist.reduce_scatter_single(output, kept, op=dist.ReduceOp.AVG)
        assert bool((output == 40_000).all()) and bool((kept == 40_000).all())
    for dtype in (torch.int8, torch.uint16, torch.int64):
        with refused("AVG of .* is not supported", ValueError):
            dist.all_reduce(torch.ones(3, dtype=dtype), op=dist.ReduceOp.AVG)


@check
def not_a_number_is_kept() -> None:
    """As torch.maximum and torch.minimum keep it, whichever rank has it."""
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        for count in (3, 100_000):
            for has_it in (0, 1):
                for op in (dist.ReduceOp.MAX, dist.ReduceOp.MIN):
                    tensor = torch.ones(count, dtype=dtype)
                    if rank() == has_it:
                        tensor[1] = float("nan")
                    dist.all_reduce(tensor, op=op)
                    assert tensor[1].isnan() and tensor[0] == 1, (dtype, count, has_it, op)


@check
def a_group_of_gloo() -> None:
    group = dist.new_group([0, 1], backend="gloo")
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=group)
    assert tensor.tolist() == [2] * 3


@check
def coalesced_by_device() -> None:
    first, second = torch.ones(3), torch.full((2,), float(rank()))
    with dist.distributed_c10d._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.all_reduce(first)
        dist.all_reduce(second)
    manager.wait()
    group = dist.group.WORLD
    group._start_coalescing(torch.device("cpu"))
    third = torch.full((2,), float(rank()))
    dist.broadcast(third, 1, async_op=True)
    work = group._end_coalescing(torch.device("cpu"))
    work.wait()
    assert third.tolist() == [1, 1]


def main() -> None:
    """Run all checks, and write down what came of each. At the end rank 0 asks for something that never comes."""
    dist.init_process_group(BACKEND, timeout=datetime.timedelta(seconds=20))
    found = {}
    for name, function in CHECKS.items():
        if sys.argv[3:] and name not in sys.argv[3:]:
            continue
        faulthandler.dump_traceback_later(HANGS, exit=True)
        try:
            function()
            found[name] = ""
        except Exception:
            found[name] = traceback.format_exc()
            sys.stderr.write(found[name])
        (PLACE / f"{rank()}.json").write_text(json.dumps(found))
        if found[name]:
            os._exit(1)
    faulthandler.cancel_dump_traceback_later()
    if sys.argv[3:]:
        return
    stuck = own_group(SOON)
    found["the_end"] = ""
    (PLACE / f"{rank()}.json").write_text(json.dumps(found))
    if rank() == 0:
        dist.all_reduce(torch.ones(3), group=stuck, async_op=True)
    else:
        time.sleep(3)


if __name__ == "__main__":
    main()
