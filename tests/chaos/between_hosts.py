# SPDX-License-Identifier: BSD-3-Clause
"""Faults of jobs whose ranks run on two hosts, and of the link between these."""

import contextlib
import pathlib
import random
import signal
import time

from job import Job, NotThere
from launchers import free_port
from machine import two_hosts
from verdict import START, TIMEOUT, expect


@contextlib.contextmanager
def _jobs_on(hosts, programs, backend, folder, *arguments):
    """A launcher on each of two hosts, each with two ranks."""
    port = free_port()
    launchers = [hosts.on(host, [
        programs.lockstep, "run", "-n", "2", "--nnodes", "2", "--node-rank", str(host),
        "--rdzv-endpoint", f"{hosts.address(0)}:{port}", "--", programs.victim,
        f"backend={backend}", "timeout=60", *arguments]) for host in range(2)]
    folders = [pathlib.Path(folder, f"host_{host}") for host in range(2)]
    for each in folders:
        each.mkdir()
    with Job(launchers[0], folders[0]) as first, Job(launchers[1], folders[1]) as second:
        yield first, second


def _expect_of_all(jobs, since, within, code, *says):
    """The complaints about all of them, the time of the slowest, and what they printed."""
    judged = [expect(job, since, within, code, *says) for job in jobs]
    return ([complaint for complaints, _, _ in judged for complaint in complaints],
            max(seconds for _, seconds, _ in judged), "\n".join(text for _, _, text in judged))


def partition(programs, backend, folder):
    with two_hosts() as hosts, _jobs_on(hosts, programs, backend, folder) as jobs:
        jobs[0].wait_for_training()
        since = time.monotonic()
        hosts.cut(1)
        return _expect_of_all(jobs, since, START, 1, r"its connection was lost")


def lost_packets(programs, backend, folder):
    """A queue that is shorter than a message; TCP sends again what does not fit."""
    with two_hosts() as hosts:
        for host in range(2):
            hosts.limit(host, "tbf rate 200mbit burst 20kb limit 30kb")
        with _jobs_on(hosts, programs, backend, folder, "steps=200") as jobs:
            complaints, *rest = _expect_of_all(jobs, time.monotonic(), 2 * START, 0)
        if not hosts.packets_dropped(0):
            complaints.append("no packet was lost")
        return complaints, *rest


def rank_throws(programs, backend, folder):
    return _fault_of_a_rank(programs, backend, folder, "throw")


def rank_is_killed(programs, backend, folder):
    return _fault_of_a_rank(programs, backend, folder, None)


def rank_makes_another_call(programs, backend, folder):
    return _fault_of_a_rank(programs, backend, folder, "other_call", blames=False,
                            says=("called broadcast",))


def _fault_of_a_rank(programs, backend, folder, fault, blames=True, says=()):
    """Without a fault of its own the rank is killed. Both launchers must blame it."""
    rank = random.randrange(4)
    arguments = [f"fault={fault}", f"rank={rank}", "step=20"] if fault else []
    if blames:
        says += (f"lockstep run: rank {rank} of 4",)
    with two_hosts() as hosts, _jobs_on(hosts, programs, backend, folder, *arguments) as jobs:
        since = _strike(jobs, rank, fault)
        return _expect_of_all(jobs, since, 2 * TIMEOUT, 1, *says)


def _strike(jobs, rank, fault):
    """When the fault came."""
    job = jobs[rank // 2]
    if fault:
        said = job.wait_for(r"fault at ([\d.]+)")
        if not said:
            raise NotThere("the victim never came to its fault")
        return float(said[1])
    jobs[0].wait_for_training()
    since = time.monotonic()
    job.signal_rank(rank, signal.SIGKILL)
    return since
