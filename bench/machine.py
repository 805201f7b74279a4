# SPDX-License-Identifier: BSD-3-Clause
"""The machine that is measured, and the two cores on which everything runs."""

import os
import pathlib
import platform
import re


def choose_cores(count=2):
    """Restricts this process, and what it starts, to `count` cores, and returns them. If there is a
    choice, they are not hardware threads of one core."""
    allowed = sorted(os.sched_getaffinity(0))
    by_core = {}
    for cpu in allowed:
        by_core.setdefault(_siblings(cpu), cpu)
    cores = list(by_core.values()) if len(by_core) >= count else allowed
    os.sched_setaffinity(0, cores[:count])
    return cores[:count]


def _siblings(cpu):
    path = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return path.read_text() if path.exists() else cpu


def description(cores):
    model = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text())
    name = model[1] if model else platform.machine()
    return (f"{name}, {os.cpu_count()} cores, of which {' and '.join(map(str, cores))} are used; "
            f"{platform.system()} {platform.release()}; "
            f"load {os.getloadavg()[0]:.1f} when it began")
