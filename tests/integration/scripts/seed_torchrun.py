"""A script as people write them for torchrun today: it knows RANK and WORLD_SIZE only; sends a tensor to all."""

import argparse
import os

import torch
import torch.distributed as dist

LOCAL_RANK = int(os.environ["LOCAL_RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
WORLD_RANK = int(os.environ["RANK"])


def run() -> None:
    tensor = torch.zeros(1)
    if WORLD_RANK == 0:
        for peer in range(1, WORLD_SIZE):
            dist.send(tensor=tensor, dst=peer)
            print(f"Rank 0 sent data to Rank {peer}\n")
    else:
        dist.recv(tensor=tensor, src=0)
        print(f"Rank {WORLD_RANK} has received data from rank 0\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", type=str, default="nccl", choices=["nccl", "gloo"])
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend, rank=WORLD_RANK, world_size=WORLD_SIZE)
    run()
