# SPDX-License-Identifier: BSD-3-Clause
"""What is said of a job's end, and of all of them."""

import sys

import faults


def complaints(trial, job, guilty, seconds, ended):
    """In words, all that is not as the fault's outcome should be."""
    fault = trial.fault
    found = []
    if not ended:
        found.append(f"did not end within {seconds:.0f} s")
    elif seconds > fault.within + trial.launcher.slowness:
        found.append(f"took {seconds:.1f} s, more than {fault.within} s")
    if ended and trial.launcher.name in faults.OURS:
        expected = fault.code
        # The exception that spawn throws is caught, as in most programs.
        if trial.launcher.name == "spawn" and fault.blames:
            expected = 1
        if expected is faults.ANY_CODE and job.code == 0 or expected not in (faults.ANY_CODE,
                                                                           job.code):
            found.append(f"exit code {job.code} instead of {expected or 'any but 0'}")
    elif ended and job.code == 0:
        found.append("exit code 0")
    blamed = trial.launcher.blamed(job)
    if fault.blames and guilty not in blamed or not set(blamed) <= {guilty} and fault.number != 25:
        found.append(f"blamed {blamed or 'nobody'} instead of rank {guilty}")
    if fault.says and not job.find(fault.says):
        found.append(f"nothing says {fault.says!r}")
    found += job.left_behind()
    return found


def progress(number, runs, outcome):
    state = "; ".join(outcome.complaints) or f"ok, {outcome.seconds:.2f} s"
    print(f"{number}/{runs} {outcome.trial}: {state}", file=sys.stderr, flush=True)
    if outcome.complaints:
        print("\n".join(f"    {line}" for line in outcome.text.splitlines()), file=sys.stderr)


def table(outcomes, markdown):
    """A row for each fault, with what the launchers and backends have in common."""
    rows = [("fault", "what was done", "under", "over", "runs", "as it should be", "slowest")]
    by_fault = {}
    for trial, tried in outcomes.items():
        by_fault.setdefault(trial.fault, []).append((trial, tried))
    for fault, entries in by_fault.items():
        tried = [outcome for _, row in entries for outcome in row]
        right = sum(not outcome.complaints for outcome in tried)
        slowest = max(outcome.seconds for outcome in tried)
        launchers = dict.fromkeys(trial.launcher.name for trial, _ in entries)
        backends = dict.fromkeys(trial.backend for trial, _ in entries)
        rows.append((str(fault.number), fault.name, ", ".join(launchers), ", ".join(backends),
                     str(len(tried)), str(right), f"{slowest:.1f} s"))
    if markdown:
        rows.insert(1, ("---",) * len(rows[0]))
        for row in rows:
            print(f"| {' | '.join(row)} |")
        return
    widths = [max(len(cell) for cell in column) for column in zip(*rows)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip())
