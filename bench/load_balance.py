#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures what --balance-load saves if another process takes half of one rank's core: trains a
recipe undisturbed, and then disturbed with even and with balanced shares of the microbatches."""

import sys

sys.dont_write_bytecode = True

import argparse
import contextlib
import ctypes
import os
import signal
import statistics
import subprocess

import children
import machine
import trainings

PR_SET_PDEATHSIG = 1


def arguments():
    parser = argparse.ArgumentParser(
        prog="bench/load_balance.py", description=__doc__,
        epilog="The ideal split takes the speeds to be 1, and 1/2 for the disturbed rank. Leave the "
               "machine idle meanwhile.")
    parser.add_argument("--recipe", default="cnn", help="cnn by default")
    parser.add_argument("--microbatches", type=int, metavar="V",
                        help="by default a number that the ideal split divides")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N",
                        help="samples of a microbatch; 32 by default")
    parser.add_argument("--epochs", type=int, default=3,
                        help="3 by default; the median one counts, as the first one also has the "
                             "steps before the shares change")
    trainings.add_options(parser, rounds=3)
    options = parser.parse_args()
    trainings.check_options(parser, options)
    options.microbatches = options.microbatches or 4 * (2 * options.ranks - 1)
    return options


@contextlib.contextmanager
def busy(core):
    """A process that always wants the core."""
    def begin():
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        os.sched_setaffinity(0, {core})
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"], preexec_fn=begin)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def samples_per_second(options, balanced=False):
    flags = ["--microbatches", options.microbatches, "--batch-size", options.batch_size,
             "--epochs", options.epochs]
    if balanced:
        flags.append("--balance-load")
    result = trainings.train(options.lockstep, options.recipe, options.ranks, *flags)
    return result["samples_per_second"], result["sha256"]


def main():
    options = arguments()
    children.adopt_orphans()
    cores = machine.choose_cores(options.ranks)  # as many as ranks, so that these are pinned
    found = {"undisturbed": [], "even shares": [], "balanced": []}
    hashes = set()
    for _ in range(options.rounds):
        for name, numbers in found.items():
            with contextlib.nullcontext() if name == "undisturbed" else busy(cores[-1]):
                rate, sha256 = samples_per_second(options, balanced=name == "balanced")
            numbers.append(rate)
            hashes.add(sha256)
    medians = {name: statistics.median(numbers) for name, numbers in found.items()}
    share = (options.ranks - 0.5) / options.ranks
    ideal = medians["undisturbed"] * share
    for name, median in {**medians, f"ideal split, {share:.3g} of undisturbed": ideal}.items():
        print(f"{name:40} {median:10,.0f} samples/s  {median / ideal:5.2f} of the ideal split")
    if len(hashes) > 1:
        print("the trained nets differ")
        return 1
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except children.NotRun as error:
        sys.exit(f"bench/load_balance.py: {error}")
