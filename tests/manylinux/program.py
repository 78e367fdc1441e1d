"""Ranks add up by backend shm, and import nothing of its package: torchrun starts them."""

from __future__ import annotations


def main() -> None:
    """Add up what is small, what takes one chunk, and what takes several, and say so."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("shm")
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (3, 100_000, 5_000_000):
        for dtype in (torch.float32, torch.bfloat16, torch.int8):
            tensor = torch.full((count,), rank + 1, dtype=dtype)
            dist.all_reduce(tensor)
            assert (tensor == size * (size + 1) // 2).all(), (count, dtype)
    gathered = [torch.zeros(1000) for _rank in range(size)]
    dist.all_gather(gathered, torch.full((1000,), float(rank)))
    assert [int(each[0]) for each in gathered] == list(range(size))
    dist.barrier()
    print(f"rank {rank} of {size}\n", end="", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
