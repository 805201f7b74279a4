#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Counts what the review of the tree counted: `scripts/counts.py [FOLDER]`, for a checkout's folder.

Prints files and lines a file, circles of files, data members of the classes that had most, comment
lines with turns of speech that trip a reader, and the files that an option of the Trainer touches.
"""

import pathlib
import re
import statistics
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from check_includes import circles, sources  # noqa: E402

CROWDED = {"BackwardReduction": "lockstep/parallel", "RankWatch": "lockstep/launch"}
TURNS = re.compile(r"//\s+Of [a-z]|\b(that|those) of\b|\bgo(es)? on\b"
                   r"|\b(anew|in turns|in vain|for ever)\b")
MEMBER = re.compile(r"^ +(?!return\b|using\b|friend\b)[^()=;]*\b[a-z]\w*_(\{.*\}|\s*=.*)?;")
OPTION = "check_in_sync"


def members(root, name, folder):
    """The data members of a class, by their names, which end in an underscore."""
    for path in sorted((root / folder).rglob("*.h")):
        text = path.read_text()
        if match := re.search(rf"^class {name}\b[^;{{]*\{{\n(.*?)^\}};", text, re.M | re.S):
            return sum(bool(MEMBER.match(line)) for line in match.group(1).splitlines())
    return 0


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    files = sources(root)
    library = [name for name in files if name.startswith("lockstep/")]
    lines = {name: (root / name).read_text().splitlines() for name in files}
    counts = [len(lines[name]) for name in library]
    print(f"files of lockstep/          {len(library)}")
    print(f"lines a file                {sum(counts) / len(counts):.0f} "
          f"(median {statistics.median(counts):.0f}, longest {max(counts)})")
    print(f"headers under 40 lines      "
          f"{sum(name.endswith('.h') and len(lines[name]) < 40 for name in library)}")
    print(f"circles, with tools/        {len(circles(root, files))}")
    for name, folder in CROWDED.items():
        print(f"members of {name:18}{members(root, name, folder)}")
    comments = [line for name in library for line in lines[name] if "//" in line]
    hits = sum(bool(TURNS.search(line[line.index("//"):])) for line in comments)
    print(f"turns of speech             {hits} of {len(comments)} comment lines")
    touched = [name for name in files if name.startswith(("lockstep/train/", "tools/"))
               and any(re.search(rf"\b{OPTION}\b", line.split("//")[0]) for line in lines[name])]
    print(f"files with {OPTION}    {len(touched)}")


if __name__ == "__main__":
    main()
