# SPDX-License-Identifier: BSD-3-Clause
"""The compilations of a build, and how to repeat them without code."""
import json
import shlex
import subprocess
from typing import NamedTuple


class Step(NamedTuple):
    source: str
    output: str
    command: list
    folder: str


def steps(build):
    """All of them, also those that no target built so far."""
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        command = shlex.split(entry["command"])
        yield Step(entry["file"], command[command.index("-o") + 1], command, entry["directory"])


def compiles(step, *options):
    """Whether it compiles with these options as well. Prints its warnings and generates no code."""
    print("checking", step.output, flush=True)
    command = [*step.command, "-fsyntax-only", *options]
    return subprocess.run(command, cwd=step.folder, check=False).returncode == 0
