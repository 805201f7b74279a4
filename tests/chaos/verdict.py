# SPDX-License-Identifier: BSD-3-Clause
"""Judges a job that was started into a fault."""

import time

TIMEOUT = 5  # seconds, of the victim's group on one host
START = 30  # seconds in which a job has started beside busy cores
slack = 0  # seconds that a job may take longer than it should


def expect(job, since, within, code, *says):
    """Waits for the job's end and judges it."""
    ended = job.end(within + slack + START)
    seconds = (ended or time.monotonic()) - since
    complaints = []
    if not ended:
        complaints.append(f"did not end within {seconds:.0f} s")
    elif seconds > within + slack:
        complaints.append(f"took {seconds:.1f} s, more than {within} s")
    if ended and (job.code == 0) != (code == 0):
        complaints.append(f"exit code {job.code}")
    complaints += [f"nothing says {pattern!r}" for pattern in says if not job.find(pattern)]
    return complaints + job.left_behind(), seconds, job.text
