#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks which way the folders and files of lockstep/ and tools/ depend on each other.

A file includes only from its own folder and from folders before it in ORDER. No file and its header,
taken as one, includes another that includes it. The second line of a public header, and of no other,
begins with "Public.". The base
(the target lockstep_base), of which the launcher is made, reaches no header of libtorch. No folder
has more than a fifth of the library's lines.
"""

import pathlib
import re
import sys

ORDER = ["lockstep/core", "lockstep/core/file", "lockstep/core/net", "lockstep/core/process",
         "lockstep/tensor", "lockstep/tensor/kernels", "lockstep/rendezvous", "lockstep/launch",
         "lockstep/comm/types", "lockstep/comm/core", "lockstep/comm/self", "lockstep/comm/local",
         "lockstep/comm/remote", "lockstep/comm/nccl", "lockstep/comm/hierarchical",
         "lockstep/comm", "lockstep/data", "lockstep/parallel", "lockstep/hooks",
         "lockstep/optim", "lockstep/amp", "lockstep/checkpoint/tensor_file",
         "lockstep/checkpoint/safetensors", "lockstep/checkpoint/torch_file",
         "lockstep/checkpoint/optimizer", "lockstep/checkpoint", "lockstep/train",
         "tools/nets", "tools/recipes", "tools/report", "tools/compare", "tools/bench",
         "tools/doctor", "tools/verify", "tools/checkpoint", "tools/cli"]
# Generated, or for every folder; in the base, the check for libtorch's own headers still applies.
ANYWHERE = {"lockstep/libtorch_compat.h", "lockstep/built_with.h"}
LARGEST_PART = 0.2
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]')
LIBTORCH = re.compile(r"^(torch|ATen|c10|c10d|caffe2)/")


def includes(path):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if match := INCLUDE.match(line):
            yield number, match.group(1)


def folder_of(name):
    """The deepest folder of ORDER that holds this file; None for files beside the folders."""
    found = [folder for folder in ORDER if name.startswith(folder + "/")]
    return max(found, key=len, default=None)


def base_sources(root):
    """The sources of lockstep_base, by the build's own list."""
    text = (root / "lockstep/CMakeLists.txt").read_text()
    listed = re.search(r"target_sources\(lockstep_base PRIVATE\n(.*?)\n\)", text, re.DOTALL)
    return {"lockstep/" + line.strip() for line in listed.group(1).splitlines()}


def public_headers(root):
    """The installed headers, by the build's own list."""
    text = (root / "lockstep/CMakeLists.txt").read_text()
    listed = re.search(r"FILE_SET HEADERS BASE_DIRS \S+ FILES\n(.*?)\n\)", text, re.DOTALL)
    return {"lockstep/" + line.strip() for line in listed.group(1).splitlines()}


def unlike_the_list(root, files, public):
    for name in files:
        says_so = (root / name).read_text().splitlines()[1].startswith("// Public. ")
        if says_so and name not in public:
            yield f"{name}: says that it is public, but lockstep/CMakeLists.txt does not install it"
        if name in public and not says_so:
            yield f"{name}: a public header; its second line must begin with \"// Public. \""


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


def errors_in(root, name, base):
    folder = folder_of(name)
    if folder is None:
        if name.count("/") > 1:
            yield f"{name}: its folder has no place in the order {', '.join(ORDER)}"
        return
    for number, included in includes(root / name):
        if name in base and (chain := way_to_libtorch(root, included, set())):
            yield f"{name}:{number}: the base reaches libtorch: {' -> '.join(chain)}"
        if not included.startswith(("lockstep/", "tools/")) or included in ANYWHERE:
            continue
        other = folder_of(included)
        if not any((root / (included + end)).exists() for end in ("", ".in")):
            yield f"{name}:{number}: there is no {included}"
        elif other and ORDER.index(other) > ORDER.index(folder):
            yield f"{name}:{number}: {folder} includes from {included}, which comes after it"


def circles(root, files):
    """The groups of files that include each other, a source and its header taken as one."""
    known = set(files)
    graph = {}
    for name in files:
        room = name.rsplit(".", 1)[0]
        others = {included.rsplit(".", 1)[0] for _, included in includes(root / name)
                  if included in known}
        graph.setdefault(room, set()).update(others - {room})

    def reached_from(start):
        seen, left = set(), [start]
        while left:
            for other in graph.get(left.pop(), ()):
                if other not in seen:
                    seen.add(other)
                    left.append(other)
        return seen

    reached = {room: reached_from(room) for room in graph}
    found = {frozenset([room, *(other for other in reached[room] if room in reached[other])])
             for room in graph if room in reached[room]}
    return sorted(sorted(circle) for circle in found)


def too_large(root, files):
    lines = {}
    for name in files:
        if name.startswith("lockstep/") and (folder := folder_of(name)):
            lines[folder] = lines.get(folder, 0) + len((root / name).read_text().splitlines())
    total = sum(lines.values())
    for folder, count in lines.items():
        if count > LARGEST_PART * total:
            yield f"{folder} has {count} of the library's {total} lines, more than a fifth"


def sources(root):
    return sorted(str(path.relative_to(root)) for part in ("lockstep", "tools")
                  for path in (root / part).rglob("*") if path.suffix in (".h", ".cpp"))


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    files = sources(root)
    base = base_sources(root)
    errors = [error for name in files for error in errors_in(root, name, base)]
    errors += too_large(root, files)
    errors += unlike_the_list(root, files, public_headers(root))
    errors += [f"these include each other: {', '.join(circle)}" for circle in circles(root, files)]
    print("\n".join(errors or [f"includes of {len(files)} files point the right way"]))
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
