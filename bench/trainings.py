# SPDX-License-Identifier: BSD-3-Clause
"""Runs `lockstep train`, for the programs here that compare trainings."""

import json

import children

LIMIT = 900  # seconds for one training


def train(lockstep, recipe, ranks, *flags):
    """Trains on the CPUs, and returns what --json prints. children.NotRun if it fails."""
    output, _ = children.run([str(lockstep), "train", recipe, "--device", "cpu", "--json",
                              "--ranks", str(ranks), *map(str, flags)], LIMIT)
    return json.loads(output)
