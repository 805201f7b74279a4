#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks that docs/errors.md quotes messages that some source still has, and that no error's text
begins with "[component]", which an ErrorContext provides.

Much of a quotation is a value that the message gets when it is made. So a quotation passes if three
words of it in a row are in one text of a source; those of five words or fewer are skipped.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("lockstep/**/*.h", "lockstep/**/*.cpp", "tools/**/*.h", "tools/**/*.cpp", "scripts/*",
           "CMakeLists.txt", "cmake/*", "lockstep/CMakeLists.txt")
# Messages of libtorch, CMake and the system, and those whose words come from several places.
SKIPPED = ("Your installed Caffe2 version", "Expected more than 1 value per channel",
           "cannot write …: No space left", "failed first: stopped by signal")


def words(text):
    return re.sub(r"[^\w'/.-]+", " ", text).strip()


def source_texts():
    """The string literals of the sources, those of one expression joined, without placeholders."""
    texts = []
    for pattern in SOURCES:
        for path in ROOT.glob(pattern):
            if not path.is_file():
                continue
            source = path.read_text(errors="replace")
            if path.suffix in (".h", ".cpp"):
                for chain in re.findall(r'"(?:[^"\\\n]|\\.)*"(?:\s*"(?:[^"\\\n]|\\.)*")*', source):
                    literal = "".join(re.findall(r'"((?:[^"\\\n]|\\.)*)"', chain))
                    texts.append(literal.replace('\\"', '"'))
            else:
                texts.append(source)
    return texts


def runs(quotation):
    """Each three words in a row."""
    parts = words(quotation).split()
    return [" ".join(parts[i:i + 3]) for i in range(len(parts) - 2)]


def handmade_prefixes():
    """Where an exception is made of a text that begins with "[component]"."""
    made = re.compile(r'\b\w*(?:Error|Failed|Lost|Late)\(\s*(?:fmt::format\(\s*)?"\[\w')
    for pattern in SOURCES:
        for path in ROOT.glob(pattern):
            if path.suffix not in (".h", ".cpp"):
                continue
            source = path.read_text()
            for found in made.finditer(source):
                line = source.count("\n", 0, found.start()) + 1
                yield f"{path.relative_to(ROOT)}:{line}"


def main():
    texts = [words(re.sub(r"\{[^}]*\}|\$\{?\w+\}?", " ", text)) for text in source_texts()]
    everything = "\n".join(texts)
    page = (ROOT / "docs/errors.md").read_text()
    table = page[page.index("| message | remedy |"):]
    faults = 0
    for line in table.splitlines():
        if not line.startswith("| `") and not line.startswith("| warning: `"):
            continue
        for quotation in re.findall(r"`([^`]*)`", line.split(" | ")[0]):
            found = [run for run in runs(quotation) if run in everything]
            if len(runs(quotation)) > 3 and not found and not quotation.startswith(SKIPPED):
                print(f"docs/errors.md: no source has three words in a row of: {quotation}")
                faults += 1
    for place in handmade_prefixes():
        print(f"{place}: give the error an ErrorContext instead of a text that begins with \"[\"")
        faults += 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
