# SPDX-License-Identifier: BSD-3-Clause
"""Kills a rank of a training of mlp, and times until the others train on, and until as many ranks
as before do: an elastic job of Lockstep, or torchrun's restart from a checkpoint at every step.
Prints JSON with a row for each number of ranks."""

import argparse
import json
import mmap
import os
import pathlib
import random
import signal
import statistics
import struct
import subprocess
import tempfile
import time

LIMIT = 90  # seconds for one start, or for one recovery
STEPS_BEFORE = 20
INTERVAL = 0.0005  # between two looks at the board, in seconds


class Board:
    """The progress of ranks: the generation or attempt, and for each member twice its steps, as
    an elastic job's launcher has it in the file `board` (lockstep/rendezvous/elastic_board.h)."""

    def __init__(self, folder):
        def board():
            return next(folder.rglob("board"), None)
        wait_for(lambda: board() and board().stat().st_size > 0, "the job to begin")
        with open(board(), "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)

    def generation(self):
        return struct.unpack_from("i", self._bytes)[0]

    def steps(self, member):
        return (struct.unpack_from("q", self._bytes, 8 + 8 * member)[0] - 1) // 2


def wait_for(condition, what):
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {LIMIT} s for {what}")
        time.sleep(INTERVAL)
    return time.perf_counter()


def pid_of(variable, number, mark):
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if mark in variables and f"{variable}={number}".encode() in variables:
            return int(folder.name)
    raise SystemExit(f"there is no process with {variable}={number}")


def recovery(command, variable, ranks):
    """Milliseconds from the kill to a step of those who go on, and to one of as many as before."""
    with tempfile.TemporaryDirectory() as folder:
        mark = f"TMPDIR={folder}"
        with subprocess.Popen(command, env={**os.environ, "TMPDIR": folder},
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
            try:
                return _recovery(Board(pathlib.Path(folder)), variable, ranks, mark.encode())
            finally:
                job.send_signal(signal.SIGTERM)


def _recovery(board, variable, ranks, mark):
    everyone = range(ranks)
    wait_for(lambda: min(map(board.steps, everyone)) >= STEPS_BEFORE, "the first steps")
    victim = random.choice(everyone)
    pid = pid_of(variable, victim, mark)
    before = board.generation()
    start = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: board.generation() != before, "the others to notice")
    # A rank that had begun to commit a step may still do so.
    is_replaced = variable == "LOCKSTEP_MEMBER"
    others = [rank for rank in everyone if rank != victim or not is_replaced]
    reached = max(map(board.steps, everyone))
    others_at = wait_for(lambda: min(map(board.steps, others)) > reached, "the others' next step")
    all_at = (wait_for(lambda: board.steps(ranks) > reached, "the replacement's first step")
              if is_replaced else others_at)
    return (others_at - start) * 1e3, (all_at - start) * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--times", type=int, default=5, help="kills, each of another job")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of ranks to kill")
    parser.add_argument("program", help="the command lockstep, or a Python that has torch")
    options = parser.parse_args()
    random.seed(options.seed)
    is_lockstep = pathlib.Path(options.program).name == "lockstep"
    peer = str(pathlib.Path(__file__).parent / "peers" / "restarted_training.py")
    rows = []
    for ranks in options.ranks:
        if is_lockstep:
            command = [options.program, "run", "--elastic", f"1:{ranks}", "-n", str(ranks), "--",
                       options.program, "train", "mlp", "--microbatches", str(ranks),
                       "--epochs", "1000"]
        else:
            command = [options.program, "-m", "torch.distributed.run", "--nproc_per_node",
                       str(ranks), "--max-restarts", "1", "--monitor-interval", "0.1", peer]
        variable = "LOCKSTEP_MEMBER" if is_lockstep else "RANK"
        times = [recovery(command, variable, ranks) for _ in range(options.times)]
        others, everyone = zip(*times)
        rows.append({"ranks": ranks, "others_ms": statistics.median(others),
                     "others_ms_most": max(others), "all_ms": statistics.median(everyone),
                     "all_ms_most": max(everyone)})
    print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
