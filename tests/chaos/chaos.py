# SPDX-License-Identifier: BSD-3-Clause
"""Injects each fault of docs/faults.md into training jobs, and checks what comes of it: whether
the right rank was named, how long the job took to end, and whether anything was left behind; of an
elastic job, also whether it ended with the bits of the undisturbed run."""

import argparse
import concurrent.futures
import os
import random
import subprocess
import sys
import traceback

import report
import trials
import verdict
from launchers import LAUNCHERS, Programs

LONG = 1000
SEEDS = 1_000_000


def busy_cores(wanted):
    """A process for each core that does nothing but compute."""
    count = len(os.sched_getaffinity(0)) if wanted else 0
    return [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__, epilog=(
        "Exit code 0 if all went as it should, 1 if not, 2 for wrong use."))
    parser.add_argument("--runs", type=int, metavar="N",
                        help="run N jobs in all; by default each fault, launcher and backend once")
    parser.add_argument("--long", action="store_true", help=f"run {LONG} jobs, beside busy cores")
    parser.add_argument("--load", action="store_true", help="keep every core busy meanwhile")
    parser.add_argument("--jobs", type=int, default=1, metavar="N",
                        help="run N jobs at a time; 1 by default")
    parser.add_argument("--faults", metavar="N,...", help="inject only these faults, by their numbers")
    parser.add_argument("--launchers", metavar="NAME,...",
                        help="inject faults only into jobs of these launchers, of "
                             f"{', '.join(LAUNCHERS)}; situations choose their own")
    parser.add_argument("--backends", metavar="NAME,...",
                        help=f"use only these of {', '.join(trials.BACKENDS)}")
    elastic = parser.add_mutually_exclusive_group()
    elastic.add_argument("--elastic", action="store_true", default=None,
                         help="inject faults only into elastic jobs")
    elastic.add_argument("--static", dest="elastic", action="store_false",
                         help="inject faults only into jobs that are not elastic")
    parser.add_argument("--slack", type=float, default=0, metavar="SECONDS",
                        help="let jobs end so much later than they should; 0 by default")
    parser.add_argument("--seed", type=int, metavar="N",
                        help="from which the faults of elastic jobs follow; the output has each "
                             "job's: with --elastic --faults N --runs 1, it repeats that job. The "
                             "times and calls of other faults follow from it with --jobs 1. By "
                             "default another one each time")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--lockstep", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--victim", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--elastic-program", required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    try:
        options.faults = [int(number) for number in (options.faults or "").split(",") if number]
    except ValueError:
        parser.error(f"--faults {options.faults}: numbers of docs/faults.md, such as 2,17")
    options.launchers = chosen(parser, "--launchers", options.launchers, tuple(LAUNCHERS))
    options.backends = chosen(parser, "--backends", options.backends, trials.BACKENDS)
    if options.seed is None:
        options.seed = random.randrange(SEEDS)
    if options.long:
        options.load = True
        options.runs = options.runs or LONG
    return options


def chosen(parser, option, names, known):
    names = names.split(",") if names else known
    for name in names:
        if name not in known:
            parser.error(f"{option}: there is no {name}; there are {', '.join(known)}")
    return names


def attempt(trial, programs, number):
    """An error of the harness is the outcome of one job, too."""
    try:
        return trial.attempt(programs, number)
    except Exception:
        return trials.Outcome(trial, 0, ["the harness failed"], traceback.format_exc())


def attempt_all(options, programs, kinds):
    """Each outcome, in turns of the kinds."""
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        # The guilty rank changes from turn to turn.
        jobs = [pool.submit(attempt, kinds[number % len(kinds)], programs,
                            number + number // len(kinds))
                for number in range(options.runs or len(kinds))]
        for number, job in enumerate(jobs):
            outcome = job.result()
            report.progress(number + 1, len(jobs), outcome)
            yield outcome


def main():
    options = arguments()
    verdict.slack = options.slack
    random.seed(options.seed)
    programs = Programs(options.lockstep, options.victim, options.elastic_program, options.seed)
    kinds = trials.possible(programs, options.faults, options.launchers, options.backends,
                            options.elastic)
    if not kinds:
        print("scripts/chaos: no fault is left to try", file=sys.stderr)
        return 2
    load = busy_cores(options.load)
    try:
        outcomes = list(attempt_all(options, programs, kinds))
    finally:
        for process in load:
            process.kill()
    report.table(outcomes, options.markdown)
    report.failures(outcomes)
    return 1 if any(outcome.complaints for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
