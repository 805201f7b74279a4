# SPDX-License-Identifier: BSD-3-Clause
"""Trains the mlp of `lockstep bench step` with DistributedDataParallel over Gloo, under torchrun,
with a checkpoint at each step. Its progress is in the file `board`, as bench/recovery.py reads it."""

import mmap
import os
import pathlib
import struct
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

MEMBERS = 4096
FOLDER = pathlib.Path(tempfile.gettempdir())
CHECKPOINT = FOLDER / "checkpoint.pt"


def map_board(rank):
    path = FOLDER / "board"
    if rank == 0 and not path.exists():
        new = FOLDER / "new"
        new.write_bytes(bytes(8 + 8 * MEMBERS))
        new.rename(path)
    dist.barrier()
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def save(model, optimizer, steps):
    new = CHECKPOINT.with_suffix(".new")
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": steps},
               new)
    new.rename(CHECKPOINT)


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    board = map_board(rank)
    struct.pack_into("i", board, 0, int(os.environ["TORCHELASTIC_RESTART_COUNT"]))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.Adam(model.parameters())
    steps = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        steps = state["steps"]
    images = torch.rand(64, 784)
    labels = torch.randint(10, (64,))
    while True:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        steps += 1
        if rank == 0:
            save(model, optimizer, steps)
        struct.pack_into("q", board, 8 + 8 * rank, 2 * steps + 1)


if __name__ == "__main__":
    main()
