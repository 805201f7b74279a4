# SPDX-License-Identifier: BSD-3-Clause
"""What faults need of the machine: control groups, and hosts that are network namespaces."""

import contextlib
import os
import pathlib
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
