#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Writes the C++ of pages of the documentation into one source, for a compiler to check.

usage: lines_of_pages.py OUTPUT PAGE...

Compiled are the code spans in the second column of each table whose second column is titled "C++",
and each block that is fenced as cpp. A row or a block is the body of a function of its own, which may
use what names.h declares. A comment in the line before a block changes that:

  <!-- continues -->    the block goes on in the function of the block before it
  <!-- file scope -->   the block is outside of functions; later blocks of the page may use it

An ellipsis stands for lines of the reader's own. Errors of the compiler name the page and its line.
"""

import pathlib
import re
import sys

SPAN = re.compile(r"`([^`]+)`")
MARKER = re.compile(r"<!-- (continues|file scope) -->")


def cells(line):
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def statements(code):
    """The code with what a table leaves out: the last semicolon."""
    code = code.replace("…", "")
    return code if code.endswith(";") else code + ";"


def parts_of(page):
    """The number of the line, the marker or None, and the code of each row and block."""
    lines = page.read_text().splitlines()
    in_table = False
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if line.strip() == "```cpp":
            marker = MARKER.fullmatch(lines[number - 2].strip())
            end = lines.index("```", number)
            code = "\n".join(lines[number:end]).replace("…", "")
            yield number + 1, marker and marker.group(1), code
            number = end + 1
        elif not line.startswith("|"):
            in_table = False
        elif number < len(lines) and lines[number].startswith("|--"):
            in_table = cells(line)[1:2] == ["C++"]
            number += 1
        elif in_table:
            spans = SPAN.findall(cells(line)[1])
            if not spans:
                sys.exit(f"{page}:{number}: no code in the column C++")
            yield number, None, " ".join(statements(span) for span in spans)


def source_of(page):
    """The functions of a page, in a namespace of their own."""
    functions = []
    for number, marker, code in parts_of(page):
        located = f'#line {number} "{page}"\n{code}\n'
        if marker == "file scope":
            functions.append(located)
        elif marker == "continues":
            functions[-1] = functions[-1].removesuffix("}\n") + located + "}\n"
        else:
            functions.append(f"void line_{number}() {{\n{located}}}\n")
    if not functions:
        sys.exit(f"{page}: no rows and no blocks of C++")
    name = re.sub(r"\W", "_", page.stem)
    return f"namespace {name} {{\n" + "".join(functions) + f"}}  // namespace {name}\n"


def main():
    output, *pages = map(pathlib.Path, sys.argv[1:])
    output.write_text('#include "docs/names.h"\n' + "".join(source_of(page) for page in pages))


main()
