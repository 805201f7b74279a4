# SPDX-License-Identifier: BSD-3-Clause
"""Hurts training jobs in every way that docs/faults.md lists, and says what came of each: whether
the right rank was named, how long the job took to end, and whether anything was left behind."""

import argparse
import collections
import concurrent.futures
import dataclasses
import os
import subprocess
import sys
import tempfile
import time

import report
from faults import FAULTS
from job import PATIENCE, Job, NotThere
from launchers import LAUNCHERS, Programs

BACKENDS = ("shm", "gloo", "hierarchical", "mpi")
RANKS = 3
LONG = 1000


@dataclasses.dataclass(frozen=True)
class Trial:
    fault: object
    launcher: object
    backend: str

    def __str__(self):
        return (f"fault {self.fault.number} ({self.fault.name}), {self.launcher.name}, "
                f"{self.backend}")


@dataclasses.dataclass
class Outcome:
    trial: Trial
    seconds: float  # from the fault to the job's end
    complaints: list
    text: str = ""


def trials(options, programs):
    """Every fault with each launcher and backend that it is for and that is here."""
    found = []
    for fault in FAULTS:
        if options.faults and fault.number not in options.faults:
            continue
        for name in fault.launchers:
            if name not in options.launchers or programs.lacks(name):
                continue
            for backend in options.backends:
                # MPI can only be used below its own launcher, which reports no culprit.
                if (backend == "mpi") <= (name == "mpirun"):
                    found.append(Trial(fault, LAUNCHERS[name], backend))
    return found


def commit(fault, job, guilty):
    """Makes the fault happen, or waits until the victim does it. When it was."""
    if fault.strike:
        if not job.wait_for("training"):
            raise NotThere("the job never trained")
        return fault.strike(job, guilty)
    said = job.wait_for(r"fault at ([\d.]+)")
    if not said:
        raise NotThere("the victim never came to its fault")
    return float(said[1])


def attempt(trial, programs, number):
    """Runs one job and judges its end."""
    fault = trial.fault
    guilty = number % RANKS
    arguments = [f"backend={trial.backend}", f"rank={guilty}", f"step={20 + number % 7}"]
    if fault.victim:
        arguments.append(f"fault={fault.victim}")
    with tempfile.TemporaryDirectory(prefix="lockstep-chaos-") as folder:
        with Job(trial.launcher.command(programs, RANKS, arguments), folder) as job:
            try:
                struck = commit(fault, job, guilty)
            except NotThere as error:
                return Outcome(trial, 0, [str(error)], job.text)
            ended = job.end(fault.within + trial.launcher.slowness + PATIENCE)
            seconds = (ended or time.monotonic()) - struck
            complaints = report.complaints(trial, job, guilty, seconds, ended is not None)
            return Outcome(trial, seconds, complaints, job.text)


def busy_cores(wanted):
    """A process for each core that does nothing but compute."""
    count = len(os.sched_getaffinity(0)) if wanted else 0
    return [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]


def arguments():
    parser = argparse.ArgumentParser(prog="scripts/chaos", description=__doc__, epilog=(
        "Exit code 0 if all went as it should, 1 if not, 2 for wrong use."))
    parser.add_argument("--runs", type=int, metavar="N",
                        help="jobs in all; by default each fault, launcher and backend once")
    parser.add_argument("--long", action="store_true", help=f"{LONG} jobs, beside busy cores")
    parser.add_argument("--load", action="store_true", help="keep every core busy meanwhile")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="at a time; 1 by default")
    parser.add_argument("--faults", metavar="N,...", help="by their numbers")
    parser.add_argument("--launchers", metavar="NAME,...", help=f"of {', '.join(LAUNCHERS)}")
    parser.add_argument("--backends", metavar="NAME,...", help=f"of {', '.join(BACKENDS)}")
    parser.add_argument("--markdown", action="store_true", help="the table as docs/faults.md has it")
    parser.add_argument("--lockstep", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--victim", required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.faults = [int(number) for number in (options.faults or "").split(",") if number]
    options.launchers = chosen(parser, "--launchers", options.launchers, tuple(LAUNCHERS))
    options.backends = chosen(parser, "--backends", options.backends, BACKENDS)
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


def main():
    options = arguments()
    programs = Programs(options.lockstep, options.victim)
    kinds = trials(options, programs)
    if not kinds:
        print("scripts/chaos: no fault is left to try", file=sys.stderr)
        return 2
    runs = options.runs or len(kinds)
    outcomes = collections.defaultdict(list)
    load = busy_cores(options.load)
    try:
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            jobs = [pool.submit(attempt, kinds[number % len(kinds)], programs,
                                number // len(kinds) + number)
                    for number in range(runs)]
            for number, job in enumerate(jobs):
                outcome = job.result()
                outcomes[outcome.trial].append(outcome)
                report.progress(number + 1, runs, outcome)
    finally:
        for process in load:
            process.kill()
    report.table(outcomes, options.markdown)
    return 1 if any(outcome.complaints for row in outcomes.values() for outcome in row) else 0


if __name__ == "__main__":
    sys.exit(main())
