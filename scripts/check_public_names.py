#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Checks that some page of the documentation mentions each public name.

Public names are the types and functions that public headers declare in namespace lockstep, outside
of namespaces for details. Left out are names that programs do not write: concepts, structs of options
(FooOptions, given in braces), the module in a holder (FooImpl) and the base of a template (FooBase).
Pages are README.md, examples/README.md and docs/*.md.
"""

import pathlib
import re
import sys

from check_includes import public_headers

COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|^\s*#[^\n]*', re.DOTALL | re.MULTILINE)
NAMESPACE = re.compile(r"namespace ([\w:]+)$")
TYPE = re.compile(r"(?:class|struct|enum class|enum)\s+(\w+)(?: final)?(?:\s*:[^:].*)?$", re.DOTALL)
ALIAS = re.compile(r"using (\w+) =")
HOLDER = re.compile(r"^TORCH_MODULE\((\w+)\)")
FUNCTION = re.compile(r"([\w:]+)\(")
UNWRITTEN = re.compile(r"\w+(Options|Impl|Base)$")


def declarations(text):
    """The beginning of each declaration in namespace lockstep, up to its body or its end, and whether
    it has a body."""
    text = COMMENT_OR_TEXT.sub(" ", text)
    namespaces = []  # that are open
    depth = 0        # of braces and parentheses within a declaration
    begin = 0
    for at, character in enumerate(text):
        if depth > 0:
            depth += {"{": 1, "(": 1, "}": -1, ")": -1}.get(character, 0)
            # The parentheses of parameters do not end a declaration; braces do.
            if depth == 0 and character == "}":
                begin = at + 1
        elif character == "(":
            depth = 1
        elif character == "{":
            start = text[begin:at].strip()
            if named := NAMESPACE.search(start):
                namespaces.append(named.group(1))
                begin = at + 1
            else:
                if is_public(namespaces):
                    yield start, True
                depth = 1
        elif character == "}":
            namespaces.pop()
            begin = at + 1
        elif character == ";":
            if is_public(namespaces):
                yield text[begin:at].strip(), False
            begin = at + 1


def is_public(namespaces):
    path = "::".join(namespaces)
    return path.startswith("lockstep") and "detail" not in path


def without_template(start):
    """The declaration behind template<...>, requires and [[...]]."""
    start = re.sub(r"\[\[.*?\]\]", "", start, flags=re.DOTALL).strip()
    while start.startswith("template"):
        depth = 0
        for at, character in enumerate(start):
            depth += {"<": 1, ">": -1}.get(character, 0)
            if character == ">" and depth == 0:
                start = start[at + 1:].strip()
                break
    return start


def names_in(text):
    for start, has_body in declarations(text):
        if "[[deprecated" in start:
            continue
        start = without_template(start)
        if start.startswith("concept"):
            continue
        if alias := ALIAS.match(start):
            yield alias.group(1)
        elif holder := HOLDER.match(start):
            yield holder.group(1)
        elif has_body and (found := TYPE.match(start)):
            yield found.group(1)
        elif found := FUNCTION.search(start):
            # Neither a member that is defined outside of its class nor a deduction guide.
            if "::" not in found.group(1) and "->" not in start:
                yield found.group(1)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    pages = [root / "README.md", root / "examples/README.md", *sorted((root / "docs").glob("*.md"))]
    words = set(re.findall(r"\w+", " ".join(page.read_text() for page in pages)))
    missing = 0
    for header in sorted(public_headers(root)):
        for name in dict.fromkeys(names_in((root / header).read_text())):
            if name not in words and not UNWRITTEN.match(name):
                print(f"{header}: no page of the documentation mentions {name}")
                missing += 1
    return missing > 0


if __name__ == "__main__":
    sys.exit(main())
