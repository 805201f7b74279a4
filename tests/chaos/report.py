# SPDX-License-Identifier: BSD-3-Clause
"""Judges how a job ended, and prints the table of all jobs."""

import sys

import faults
import verdict


def complaints(trial, job, guilty, seconds, ended):
    """In words, all that is not as the fault's outcome should be."""
    fault = trial.fault
    found = []
    if not ended:
        found.append(f"did not end within {seconds:.0f} s")
    elif seconds > fault.within + trial.launcher.slowness + verdict.slack:
        found.append(f"took {seconds:.1f} s, more than {fault.within} s")
    if ended and trial.launcher.name in faults.OURS:
        expected = fault.code
        if trial.launcher.name == "spawn":
            # The exception that it throws is caught, as in most programs; a signal it raises again.
            expected = 1 if fault.blames or fault.victim else _killed_by(expected)
        if expected is faults.ANY_CODE and job.code == 0 or expected not in (faults.ANY_CODE,
                                                                           job.code):
            found.append(f"exit code {job.code} instead of {expected or 'any but 0'}")
    elif ended and job.code == 0:
        found.append("exit code 0")
    blamed = trial.launcher.blamed(job)
    # Of two that were killed at once either may be the first.
    right = {guilty, faults.other_victim(guilty)} if fault.number == 25 else {guilty}
    if fault.blames and not (blamed and set(blamed) <= right):
        found.append(f"blamed {blamed or 'nobody'} instead of rank {guilty}")
    says = fault.says.format(rank=guilty)
    if says and not job.find(says):
        found.append(f"nothing says {says!r}")
    found += job.left_behind()
    return found


def _killed_by(code):
    """What Python calls the end of a process that a shell gives this exit code."""
    return 128 - code if code and code > 128 else code


def progress(number, runs, outcome):
    trial = outcome.trial
    state = "; ".join(outcome.complaints) or f"ok, {outcome.seconds:.2f} s"
    if outcome.missing:
        state = f"not tried: this machine lacks {outcome.missing}"
    if outcome.seed is not None:
        state += f" (seed {outcome.seed})"
    print(f"{number}/{runs} fault {trial.fault.number} ({trial.fault.name}), "
          f"{trial.under}, {trial.backend}: {state}", file=sys.stderr, flush=True)
    if outcome.complaints:
        print("\n".join(f"    {line}" for line in outcome.text.splitlines()), file=sys.stderr)


def failures(outcomes):
    """How to repeat those of elastic jobs, and how often others failed."""
    failed = [outcome for outcome in outcomes if outcome.complaints]
    for outcome in failed:
        if outcome.seed is not None:
            print(f"failed: scripts/chaos -- --elastic --faults {outcome.trial.fault.number} "
                  f"--seed {outcome.seed} --runs 1", file=sys.stderr)
    print(f"{len(failed)} of {len(outcomes)} jobs failed", file=sys.stderr)


def table(outcomes, markdown):
    """A row for each fault, with what the launchers and backends have in common."""
    by_fault = {}
    for outcome in outcomes:
        by_fault.setdefault(outcome.trial.fault, []).append(outcome)
    rows = [("fault", "what was done", "under", "over", "runs", "passed", "slowest")]
    for fault, tried in sorted(by_fault.items(), key=lambda entry: entry[0].number):
        done = [outcome for outcome in tried if not outcome.missing]
        under, over = (", ".join(dict.fromkeys(names)) for names in (
            [outcome.trial.under for outcome in tried], [outcome.trial.backend for outcome in tried]))
        rows.append((str(fault.number), fault.name, under, over, str(len(done)),
                     str(sum(not outcome.complaints for outcome in done)),
                     f"{max((outcome.seconds for outcome in done), default=0):.1f} s"))
    if markdown:
        rows.insert(1, ("---",) * len(rows[0]))
        for row in rows:
            print(f"| {' | '.join(row)} |")
        return
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
