#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks that docs/errors.md quotes messages that some source still has, that tests hold these
messages, and that no error's text begins with "[component]", which an ErrorContext provides.

Much of a quotation is a value that the message gets when it is made. So a quotation passes if three
words of it in a row are in one text of a source; those of five words or fewer are skipped.

A test holds a row if a text of the test has three words in a row of one of the row's quotations:
words that are in a source too, if there are any, since values say nothing about the message.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("lockstep/**/*.h", "lockstep/**/*.cpp", "tools/**/*.h", "tools/**/*.cpp", "scripts/*",
           "CMakeLists.txt", "cmake/*", "lockstep/CMakeLists.txt")
TESTS = ("tests/**/*.h", "tests/**/*.cpp", "tests/**/*.cmake", "tests/**/*.sh", "tests/**/*.py")
# Messages of libtorch, CMake and the system, and those whose words come from several places.
SKIPPED = ("Your installed Caffe2 version", "Expected more than 1 value per channel",
           "cannot write …: No space left", "failed first: stopped by signal")
# Rows that no test holds: they need a store that hangs, another network namespace, another version
# of Gloo, a limit of the address space, a library without a backend, Python's autograd engine, or a
# disk that fails. Lower the number when a test holds one more; do not raise it.
MOST_UNHELD_ROWS = 8


def words(text):
    return re.sub(r"[^\w'/.-]+", " ", text).strip()


def texts_of(patterns):
    """The string literals of C++, those of one expression joined; other files as a whole."""
    texts = []
    for pattern in patterns:
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


def all_words(texts):
    return "\n".join(words(text) for text in texts)


def runs(quotation):
    """Each three words in a row."""
    parts = words(quotation).split()
    return [" ".join(parts[i:i + 3]) for i in range(len(parts) - 2)]


def quotations(row):
    return re.findall(r"`([^`]*)`", row.split(" | ")[0])


def is_held(quotation, sources, tests):
    all_runs = runs(quotation) or [words(quotation)]
    of_message = [run for run in all_runs if run in sources] or all_runs
    return any(run in tests for run in of_message)


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
    # The placeholders of fmt and of CMake are no words of a message.
    sources = all_words(re.sub(r"\{[^}]*\}|\$\{?\w+\}?", " ", text) for text in texts_of(SOURCES))
    tests = all_words(texts_of(TESTS))
    page = (ROOT / "docs/errors.md").read_text()
    table = page[page.index("| message | remedy |"):]
    rows = [line for line in table.splitlines() if line.startswith(("| `", "| warning: `"))]
    faults = 0
    for row in rows:
        for quotation in quotations(row):
            found = [run for run in runs(quotation) if run in sources]
            if len(runs(quotation)) > 3 and not found and not quotation.startswith(SKIPPED):
                print(f"docs/errors.md: no source has three words in a row of: {quotation}")
                faults += 1
    unheld = [row for row in rows
              if not any(is_held(quotation, sources, tests) for quotation in quotations(row))]
    print(f"tests hold {len(rows) - len(unheld)} of the {len(rows)} rows of docs/errors.md")
    if len(unheld) > MOST_UNHELD_ROWS:
        print(f"{len(unheld)} rows are not held, and {MOST_UNHELD_ROWS} were; add a test of the "
              "new one, such as one in tests/messages. They are:")
        for row in unheld:
            print(row.split(" | ")[0])
        faults += 1
    for place in handmade_prefixes():
        print(f"{place}: give the error an ErrorContext instead of a text that begins with \"[\"")
        faults += 1
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
