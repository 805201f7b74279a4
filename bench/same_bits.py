#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Measures what it costs that the bits do not depend on the number of ranks: trains recipes with one
microbatch on each rank, and with ordinary DDP."""

import sys

sys.dont_write_bytecode = True

import argparse
import os
import statistics

import children
import machine
import trainings


def arguments():
    parser = argparse.ArgumentParser(prog="bench/same_bits.py", description=__doc__,
                                     epilog="Leave the machine idle meanwhile.")
    parser.add_argument("recipes", nargs="*", metavar="RECIPE", default=["mlp", "cnn"],
                        help="mlp and cnn by default")
    parser.add_argument("--data", metavar="PATH", help="as of lockstep train; fewer images suffice")
    parser.add_argument("--epochs", type=int, default=3, help="3 by default; the median one counts")
    trainings.add_options(parser, rounds=5)
    options = parser.parse_args()
    trainings.check_options(parser, options)
    return options


def main():
    options = arguments()
    children.adopt_orphans()
    machine.choose_cores(options.ranks)  # as many as ranks, so that these are pinned
    common = ["--epochs", options.epochs, *(("--data", options.data) if options.data else ())]
    kinds = {"ordinary": common, "microbatches": [*common, "--microbatches", options.ranks]}
    print("time of a step, as a multiple of ordinary DDP's: median of the rounds (least to most)")
    for recipe in options.recipes:
        ratios = []
        for _ in range(options.rounds):
            rates = {kind: trainings.train(options.lockstep, recipe, options.ranks,
                                           *flags)["samples_per_second"]
                     for kind, flags in kinds.items()}
            ratios.append(rates["ordinary"] / rates["microbatches"])
        print(f"{recipe:18} {statistics.median(ratios):.3f} "
              f"({min(ratios):.3f} to {max(ratios):.3f})", flush=True)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except children.NotRun as error:
        sys.exit(f"bench/same_bits.py: {error}")
