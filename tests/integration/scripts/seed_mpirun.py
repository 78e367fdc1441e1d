"""A script as people write them for mpirun today: it knows OMPI_COMM_WORLD_* only and sends a tensor to every rank."""

import argparse
import os

import torch
import torch.distributed as dist

LOCAL_RANK = int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
WORLD_SIZE = int(os.environ["OMPI_COMM_WORLD_SIZE"])
WORLD_RANK = int(os.environ["OMPI_COMM_WORLD_RANK"])


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
