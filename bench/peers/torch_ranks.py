# SPDX-License-Identifier: BSD-3-Clause
"""Runs a function in ranks that torch.distributed joins."""

import datetime
import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing

TIMEOUT = datetime.timedelta(minutes=2)


def run_ranks(function, ranks, *arguments, backend="gloo"):
    """Calls function(rank, *arguments), of a module's top level, in `ranks` processes; only in this
    process, if it is a rank that bench/on_hosts.py started."""
    if "BENCH_STORE" in os.environ:
        _rank(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["BENCH_STORE"],
              backend, function, arguments)
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        torch.multiprocessing.spawn(_rank, (ranks, store, backend, function, arguments),
                                    nprocs=ranks)


def _rank(rank, ranks, store_file, backend, function, arguments):
    cores = sorted(os.sched_getaffinity(0))
    if ranks <= len(cores):  # as `lockstep run` does it
        os.sched_setaffinity(0, {cores[rank]})
    store = dist.FileStore(store_file, ranks)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=TIMEOUT)
    function(rank, *arguments)
    sys.stdout.flush()
    # A rank that leaves while another still reads would reset its connection.
    store.set(f"done {rank}", "yes")
    store.wait([f"done {other}" for other in range(ranks)], TIMEOUT)
    os._exit(0)  # the destructor of PyTorch 1.13's Gloo group may hang


def agreed_repetitions(turn, seconds, least, most):
    """The number of calls of turn() that fit into `seconds` by rank 0's clock; the same on all
    ranks."""
    warm_up = []
    for _ in range(5):
        start = time.perf_counter()
        turn()
        warm_up.append(time.perf_counter() - start)
    fitting = seconds / statistics.median(warm_up)
    count = torch.tensor([min(max(int(fitting), least), most)])
    if dist.get_backend() == "nccl":
        count = count.cuda()
    dist.broadcast(count, 0)
    return count.item()
