#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times torch.distributed's all_reduce over Gloo, as `lockstep bench all-reduce` times ours."""

import argparse
import json
import time

import torch
import torch.distributed as dist

from torch_ranks import agreed_repetitions, run_ranks


def measure(rank, ranks, size, seconds):
    pattern = torch.arange(size // 4, dtype=torch.float32) % 7
    original = pattern + (rank + 1)
    tensor = torch.empty_like(original)

    def turn():
        tensor.copy_(original)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        return time.perf_counter() - start

    repetitions = agreed_repetitions(turn, seconds, 5, 5000)
    times = torch.tensor([turn() for _ in range(repetitions)], dtype=torch.float64)
    dist.all_reduce(times, dist.ReduceOp.MAX)
    expected = pattern * ranks + ranks * (ranks + 1) // 2
    return {
        "bytes": size,
        "time_us_min": times.min().item() * 1e6,
        "time_us_median": times.quantile(0.5).item() * 1e6,
        "wrong": (tensor != expected).sum().item(),
    }


def rank_main(rank, options):
    rows = [measure(rank, options.ranks, size, options.seconds) for size in options.sizes]
    if rank == 0:
        print(json.dumps({"rows": rows}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each size")
    parser.add_argument("sizes", type=int, nargs="+", metavar="BYTES")
    options = parser.parse_args()
    run_ranks(rank_main, options.ranks, options)


if __name__ == "__main__":
    main()
