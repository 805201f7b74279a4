#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Compiles each public header by itself, as the target all_verify_interface_header_sets of a build
by g++ does, but in half the time.

Most of the time goes to torch/types.h, which most headers of torch/data and torch/nn include. For
public headers that include one of these it is precompiled; it hides no missing include, since it is
included anyway.

usage: check_headers.py BUILD"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

from compile_steps import compiles, steps

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^#include ([<"])([^>"]+)', re.MULTILINE)
WITH_TYPES = ("torch/data/", "torch/nn/")
WITHOUT_TYPES = "torch/nn/utils/"


def includes_types(header, seen):
    """Whether this header, or one of ours that it includes, includes torch/types.h."""
    if header in seen or not (ROOT / header).exists():
        return False
    seen.add(header)
    return any(name.startswith(WITH_TYPES) and not name.startswith(WITHOUT_TYPES)
               if bracket == "<" else includes_types(name, seen)
               for bracket, name in INCLUDE.findall((ROOT / header).read_text(encoding="utf-8")))


def precompile(step, header):
    header.write_text("#include <torch/types.h>\n", encoding="utf-8")
    command = step.command[:step.command.index("-o")]
    command += ["-x", "c++-header", "-o", f"{header}.gch", "-c", str(header)]
    subprocess.run(command, cwd=step.folder, check=True)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    heavy, light = [], []
    for step in steps(build):
        _, generated, header = step.source.rpartition("_verify_interface_header_sets/")
        if generated:
            (heavy if includes_types(header.removesuffix(".cxx"), set()) else light).append(step)
    if not heavy or not light:
        sys.exit(f"{build} has {len(heavy)} headers with torch/types.h and {len(light)} without it")
    types = build / "torch_types.h"
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as workers:
        precompiled = workers.submit(precompile, heavy[0], types)
        checks = [workers.submit(compiles, step) for step in light]
        precompiled.result()
        checks += [workers.submit(compiles, step, "-Winvalid-pch", "-include", str(types))
                   for step in heavy]
        sys.exit(not all([check.result() for check in checks]))


main()
