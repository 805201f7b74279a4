# SPDX-License-Identifier: BSD-3-Clause
"""Runs programs, each within a time limit, and ends all processes that they leave behind."""

import ctypes
import os
import pathlib
import select
import signal
import subprocess
import tempfile
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
GRACE = 5  # seconds in which a program may end its own children
_libc = ctypes.CDLL(None)


class NotRun(Exception):
    """A program that failed, or took too long; the message says how."""


def adopt_orphans():
    """Makes this process adopt what programs leave behind, so that it can end it."""
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


def run(command, limit, environment=None):
    """Runs a program, and returns its standard output and its seconds. NotRun if it fails or takes
    too long."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment,
                start_new_session=True,
                preexec_fn=lambda: _libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM))
        except OSError as error:
            raise NotRun(str(error)) from error
        try:
            ended = _ended_within(process, limit)
            seconds = time.perf_counter() - start
        finally:
            _end(process)
        if not ended:
            raise NotRun(f"not done within {limit} s")
        if process.returncode != 0:
            raise NotRun(f"{_how_it_ended(process.returncode)}: {_last_line(errors)}")
        return _text(output), seconds


def _ended_within(process, seconds):
    # Popen.wait(timeout) polls at intervals that would distort short times.
    descriptor = os.pidfd_open(process.pid)
    try:
        return bool(select.select([descriptor], [], [], seconds)[0])
    finally:
        os.close(descriptor)


def _end(process):
    if process.poll() is None:
        process.terminate()
        if not _ended_within(process, GRACE):
            process.kill()
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    _end_children()


def _end_children():
    patience = time.monotonic() + 1  # most are ending by themselves
    while True:
        if time.monotonic() > patience:
            for pid in _children():
                os.kill(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.01)
        except ChildProcessError:
            return


def _children():
    tasks = pathlib.Path("/proc/self/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def _how_it_ended(code):
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _text(file):
    file.seek(0)
    return file.read().decode(errors="replace")


def _last_line(file):
    lines = _text(file).strip().splitlines()
    return lines[-1] if lines else "it said nothing"
