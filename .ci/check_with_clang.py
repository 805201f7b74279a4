#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compiles what a build by clang has left out, for its warnings, and generates no code.

usage: check_with_clang.py BUILD FOLDER/..., such as tools/"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

from compile_steps import compiles, steps


def main():
    build, folders = pathlib.Path(sys.argv[1]), tuple(sys.argv[2:])
    built = set(subprocess.run(["ninja", "-C", build, "-t", "inputs", "all"], check=True,
                               capture_output=True, text=True).stdout.splitlines())
    left_out = [step for step in steps(build)
                if step.output.startswith(folders) and step.output not in built]
    if not left_out:
        sys.exit(f"nothing in {build} is left to check in {' '.join(folders)}")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
        sys.exit(not all(list(workers.map(compiles, left_out))))


main()
