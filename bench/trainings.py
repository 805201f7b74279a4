# SPDX-License-Identifier: BSD-3-Clause
"""Runs `lockstep train`, for the programs here that compare trainings."""

import json
import os

import children
import programs

LIMIT = 900  # seconds for one training


def add_options(parser, rounds):
    """The options that the programs share. check_options() checks them."""
    parser.add_argument("--ranks", type=int, default=2, help="one for each core; 2 by default")
    parser.add_argument("--rounds", type=int, default=rounds,
                        help=f"measure everything so often, alternating; {rounds} by default")
    parser.add_argument("--lockstep", metavar="PATH",
                        help="measure this program instead of the one of a release build")


def check_options(parser, options):
    if options.ranks < 2 or options.ranks > len(os.sched_getaffinity(0)):
        parser.error(f"--ranks: from 2 to {len(os.sched_getaffinity(0))}, the cores")
    options.lockstep = programs.find_lockstep(options.lockstep)
    if not options.lockstep:
        parser.error("there is no such program, or no release build")


def train(lockstep, recipe, ranks, *flags):
    """Trains on the CPUs, and returns what --json prints. children.NotRun if it fails."""
    output, _ = children.run([str(lockstep), "train", recipe, "--device", "cpu", "--json",
                              "--ranks", str(ranks), *map(str, flags)], LIMIT)
    return json.loads(output)
