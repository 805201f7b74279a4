# SPDX-License-Identifier: BSD-3-Clause
"""Checks that docs/faults.md names a test for each fault, and that these tests exist."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = True
sys.path.append(str(ROOT / "tests" / "chaos"))
import elastic_kinds
import faults
import situations

FAULTS = range(1, 41)


def tests_in_sources():
    """Such as "Join.RanksWithoutBatchesFollowTheOthers"."""
    macro = re.compile(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", re.MULTILINE)
    return {f"{suite}.{name}" for path in (ROOT / "tests").rglob("*.cpp")
            for suite, name in macro.findall(path.read_text())}


def numbers_of_runs():
    """The numbers of the faults that the runs of scripts/chaos in tests/chaos/CMakeLists.txt inject."""
    static = {fault.number for fault in faults.FAULTS if "run" in fault.launchers}
    static |= {situation.number for situation in situations.SITUATIONS if "shm" in situation.backends}
    return {"chaos/static": static,
            "chaos/elastic": {kind.number for kind in elastic_kinds.KINDS}}


def main():
    page = (ROOT / "docs" / "faults.md").read_text()
    section = page.split("## Tests by number")[1].split("\n## ")[0]
    rows = {int(number): re.findall(r"`([^`]+)`", tests) for number, tests in
            re.findall(r"^\| (\d+) \|.*\| ([^|]+) \|$", section, re.MULTILINE)}
    sources, runs = tests_in_sources(), numbers_of_runs()
    wrong = [f"fault {number} has no test" for number in FAULTS if not rows.get(number)]
    for number, tests in rows.items():
        for test in tests:
            exists = number in runs[test] if test in runs else test in sources
            if not exists:
                wrong.append(f"fault {number}: there is no test {test} of it")
    for line in wrong:
        print(f"docs/faults.md: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
