#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks which way the folders of lockstep/ depend on each other.

A file includes only from its own folder and from folders before it in the house's order. The base
(core, launch and the local store), which the launcher is made of, reaches no header of libtorch.
"""

import pathlib
import re
import sys

ORDER = ["core", "rendezvous", "launch", "collective", "data", "parallel", "amp", "checkpoint",
         "train", "bench", "report"]
ANYWHERE = {"lockstep/libtorch_version.h"}  # but in the base, where libtorch itself is caught
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
LIBTORCH = re.compile(r"^(torch|ATen|c10|c10d|caffe2)/")


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match.group(1)


def in_base(path):
    return path.parts[1] in ("core", "launch") or path.name.startswith("local_store")


def way_to_libtorch(root, name, seen):
    """The chain of headers from this one to one of libtorch's, or nothing."""
    if LIBTORCH.match(name):
        return [name]
    path = root / name
    if name in seen or not name.startswith("lockstep/") or not path.exists():
        return []
    seen.add(name)
    for _, included in includes(path):
        if chain := way_to_libtorch(root, included, seen):
            return [name, *chain]
    return []


def errors_in(root, path):
    relative = path.relative_to(root)
    folder = relative.parts[1]
    if len(relative.parts) > 2 and folder not in ORDER:
        yield f"{relative}: the folder {folder} has no place in the order {', '.join(ORDER)}"
        return
    for number, name in includes(path):
        if in_base(relative) and (chain := way_to_libtorch(root, name, set())):
            yield f"{relative}:{number}: the base reaches libtorch: {' -> '.join(chain)}"
        if not name.startswith("lockstep/") or name in ANYWHERE or len(relative.parts) == 2:
            continue
        if not (root / name).exists():
            yield f"{relative}:{number}: there is no {name}"
        elif ORDER.index(name.split("/")[1]) > ORDER.index(folder):
            yield f"{relative}:{number}: {folder} includes from {name}, which comes after it"


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    files = sorted(p for p in (root / "lockstep").rglob("*") if p.suffix in (".h", ".cpp"))
    errors = [error for path in files for error in errors_in(root, path)]
    print("\n".join(errors or [f"includes of {len(files)} files point the right way"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
