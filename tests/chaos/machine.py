# SPDX-License-Identifier: BSD-3-Clause
"""What faults need of the machine: control groups, disks, a clock, and hosts that are network
namespaces."""

import contextlib
import os
import pathlib
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).parents[2] / "bench"))
import on_hosts


class Missing(Exception):
    """This machine does not have what a fault needs; the message says what."""


@contextlib.contextmanager
def two_hosts():
    if why_not := on_hosts.why_not():
        raise Missing(why_not)
    hosts = on_hosts.Hosts()
    try:
        hosts.make(2, 1000)
        yield hosts
    finally:
        hosts.remove()


@contextlib.contextmanager
def memory_limit(limit):
    """Yields a function that makes of a command one that runs in a control group of its own, whose
    memory is limited to so many bytes."""
    parent, name = _memory_group()
    group = parent / f"lockstep-chaos-{os.getpid()}-{time.monotonic_ns()}"
    try:
        group.mkdir()
    except OSError as error:
        raise Missing(f"a control group for memory: {error}") from error
    try:
        if not (group / name).exists():
            raise Missing("a control group for memory")
        (group / name).write_text(str(limit))
        yield lambda command: ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(group / "cgroup.procs"),
                               *command]
    finally:
        _remove(group)


def _memory_group():
    """This process's, and what its limit is called there."""
    for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            return pathlib.Path(f"/sys/fs/cgroup/memory{path}"), "memory.limit_in_bytes"
    return pathlib.Path(f"/sys/fs/cgroup{path}"), "memory.max"


def _remove(group):
    for _ in range(100):  # until the last of its processes has gone
        with contextlib.suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.02)


@contextlib.contextmanager
def small_disk(folder, size):
    """Yields a function that makes of a command one for which the folder is on a disk of this size.
    In the end, the folder has its files."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0:
        raise Missing("mount namespaces")
    folder.mkdir()
    script = (f'mount -t tmpfs -o size={size} tmpfs "$0" && "$@"; code=$?; '
              'cp -a "$0" "$0.left"; umount "$0"; mv "$0.left"/* "$0"; exit $code')
    yield lambda command: ["unshare", "-m", "sh", "-c", script, str(folder), *command]


class FakeClock:
    """The wall clock, as processes with this environment see it."""

    def __init__(self, folder):
        self._file = pathlib.Path(folder, "clock")

    def set(self, jump):
        """To such as "+365d" of the right time."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{jump}\n")
        new.rename(self._file)

    def environment(self):
        library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
        if not library:
            raise Missing("libfaketime: apt-get install faketime")
        return {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": self._file,
                "FAKETIME_NO_CACHE": "1", "DONT_FAKE_MONOTONIC": "1"}
