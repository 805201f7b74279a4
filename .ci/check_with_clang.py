#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compiles what a build by clang has left out, for its warnings, and generates no code.

usage: check_with_clang.py BUILD FOLDER/..., such as tools/"""
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys


def compiles(step):
    output, command, folder = step
    print("clang:", output, flush=True)
    return subprocess.run(command + ["-fsyntax-only"], cwd=folder, check=False).returncode == 0


def main():
    build, folders = pathlib.Path(sys.argv[1]), tuple(sys.argv[2:])
    built = set(subprocess.run(["ninja", "-C", build, "-t", "inputs", "all"], check=True,
                               capture_output=True, text=True).stdout.splitlines())
    left_out = []
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        command = shlex.split(entry["command"])
        output = command[command.index("-o") + 1]
        if output.startswith(folders) and output not in built:
            left_out.append((output, command, entry["directory"]))
    if not left_out:
        sys.exit(f"nothing in {build} is left to check in {' '.join(folders)}")
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
        sys.exit(not all(list(workers.map(compiles, left_out))))


main()
