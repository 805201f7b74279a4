#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Makes the tables and charts of the runs in bench/results/, whose JSON is the output of
`bench/run --json`: a Markdown file beside each run, and docs/pictures/bench-*.svg. The charts show
runs that measured all of it; a chart of a single run shows the newest.

usage: bench/publish.py [--check]   (--check changes nothing; exit code 1 if a file is outdated)"""

import sys

sys.dont_write_bytecode = True

import pathlib

import charts
import outcome

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PICTURES = ROOT / "docs" / "pictures"


def page(path, run):
    made_from = f"Made from [{path.name}]({path.name}) by `bench/publish.py`."
    note = f" These figures were {run.note}." if run.note else ""
    how_to_read = "[How to read it](README.md#how-do-you-read-it)."
    return f"# {path.stem}\n\n{made_from}{note} {how_to_read}\n\n{run.as_markdown()}\n"


def files():
    """The expected contents of each file."""
    runs = {path: outcome.from_json(path.read_text(encoding="utf-8"))
            for path in sorted(RESULTS.glob("*.json"))}
    shown = [run for run in runs.values() if charts.can_draw(run)]
    return {**{path.with_suffix(".md"): page(path, run) for path, run in runs.items()},
            PICTURES / "bench-ddp-step.svg": str(charts.ddp_step(shown[-1])),
            PICTURES / "bench-all-reduce.svg": str(charts.all_reduce(shown[-1])),
            PICTURES / "bench-all-runs.svg": str(charts.all_runs(shown))}


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    outdated = {path: text for path, text in files().items()
                if not path.exists() or path.read_text(encoding="utf-8") != text}
    if "--check" not in sys.argv:
        for path, text in outdated.items():
            path.write_text(text, encoding="utf-8")
        return 0
    for path in outdated:
        print(f"{path.relative_to(ROOT)}: outdated; bench/publish.py makes it")
    return 1 if outdated else 0


if __name__ == "__main__":
    sys.exit(main())
