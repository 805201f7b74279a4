# SPDX-License-Identifier: BSD-3-Clause
"""A job that a launcher starts: what it prints and when, its end, and what it leaves behind."""

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import threading
import time
import uuid

MARK = "LOCKSTEP_CHAOS_JOB"
PATIENCE = 60  # seconds for what no fault should delay: the start, and the end of an undisturbed job


class NotThere(Exception):
    """What was to be hurt is not there; the message says what."""


class Job:
    """Runs until end(); nothing of it outlives the `with`."""

    def __init__(self, command, folder, environment=None):
        self._mark = uuid.uuid4().hex
        self._folder = pathlib.Path(folder)
        self._lines = []  # (time, text), of both streams
        self._came = threading.Condition()
        self._ended_at = None
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
                     "TMPDIR": str(folder), **(environment or {}), MARK: self._mark}
        self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                         stderr=subprocess.STDOUT, env=variables,
                                         start_new_session=True, preexec_fn=_heed_interrupts)
        self._readers = [threading.Thread(target=self._read, daemon=True),
                         threading.Thread(target=self._wait, daemon=True)]
        for reader in self._readers:
            reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.remains():
            self.signal_process(pid, signal.SIGKILL)
        self._readers[1].join()

    def _read(self):
        for line in self._process.stdout:
            with self._came:
                self._lines.append((time.monotonic(), line.decode(errors="replace").rstrip()))
                self._came.notify_all()

    def _wait(self):
        self._process.wait()
        with self._came:
            self._ended_at = time.monotonic()
            self._came.notify_all()

    @property
    def pid(self):
        return self._process.pid

    @property
    def code(self):
        return self._process.returncode

    @property
    def text(self):
        with self._came:
            return "\n".join(line for _, line in self._lines)

    def find(self, pattern):
        """The first match in what was printed so far."""
        return re.search(pattern, self.text, re.MULTILINE)

    def wait_for(self, pattern, seconds=PATIENCE):
        """The match, or None if the job ends or the time is over without one."""
        with self._came:
            self._came.wait_for(lambda: self._ended_at or self.find(pattern), seconds)
        self.end(0)  # the last lines may be read after it
        return self.find(pattern)

    def wait_for_training(self):
        if not self.wait_for("training"):
            raise NotThere("the job never trained")

    def end(self, seconds):
        """Waits for the end. When it came, or None if it did not."""
        deadline = time.monotonic() + seconds
        with self._came:
            while not self._ended_at and self._came.wait(max(deadline - time.monotonic(), 0)):
                pass
            ended_at = self._ended_at
        if ended_at:
            self._readers[0].join(10)  # a process that was left behind may hold the pipe
        return ended_at

    def signal(self, number):
        self.signal_process(self.pid, number)

    @staticmethod
    def signal_process(pid, number):
        """Nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    def children(self):
        """The pids of the launcher's."""
        path = pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def rank_pid(self, rank):
        match = self.wait_for(rf"rank {rank} is process (\d+)")
        if not match:
            raise NotThere(f"rank {rank} never joined")
        return int(match[1])

    def signal_rank(self, rank, number):
        self.signal_process(self.rank_pid(rank), number)

    def remains(self):
        """The pids of this job's processes."""
        wanted = f"{MARK}={self._mark}".encode()
        found = []
        for process in pathlib.Path("/proc").iterdir():
            if not process.name.isdigit():
                continue
            try:
                if wanted in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                pass  # it has ended
        return found

    def left_behind(self, seconds=10, files=True):
        """In words, what has not gone in this time: processes, and files in the job's TMPDIR."""
        deadline = time.monotonic() + seconds
        while True:
            found = [f"process {pid}" for pid in self.remains()]
            found += [str(path) for path in (self._folder.iterdir() if files else ())
                      if not path.name.startswith("torchelastic_")]  # torchrun keeps its logs
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.02)


def _heed_interrupts():
    """A shell starts what it runs in the background with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
