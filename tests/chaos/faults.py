# SPDX-License-Identifier: BSD-3-Clause
"""The faults, by the numbers of docs/faults.md: how each is made, and what must come of it."""

import dataclasses
import random
import signal
import time
import typing

RANKS = 3
TIMEOUT = 5  # seconds, of the victim's group, if the fault is to be noticed by it
AT_ONCE = 3  # seconds from a death to the job's end, beside busy cores
EVERYWHERE = ("run", "spawn", "torchrun", "mpirun")
OURS = ("run", "spawn")
ANY_CODE = None


@dataclasses.dataclass(frozen=True)
class Fault:
    number: int
    name: str
    # What the victim does to itself; see victim.cpp.
    victim: str = ""
    # Hurts it from outside, once it trains, and returns the time of that.
    strike: typing.Callable = None
    launchers: tuple = EVERYWHERE
    # From the fault to the job's end, in seconds.
    within: float = AT_ONCE
    # The job's exit code under `lockstep run`; any but 0 if it is ANY_CODE.
    code: int = ANY_CODE
    # Whether the launcher must report the guilty rank, and nobody else.
    blames: bool = True
    # What must be said somewhere, as a regular expression; {rank} is the guilty one.
    says: str = ""


def _kill_at_any_time(job, rank):
    """In whatever the rank is doing: a step takes less than a millisecond."""
    time.sleep(random.uniform(0, 0.05))
    return _strike(job, rank, signal.SIGKILL)


def other_victim(rank):
    """The rank that is killed at once with this one."""
    return (rank + 1) % RANKS


def _kill_two(job, rank):
    pids = [job.rank_pid(victim) for victim in (rank, other_victim(rank))]
    when = time.monotonic()
    for pid in pids:
        job.signal_process(pid, signal.SIGKILL)
    return when


def _strike(job, rank, number):
    when = time.monotonic()
    job.signal_rank(rank, number)
    return when


def _stop(job, rank):
    return _strike(job, rank, signal.SIGSTOP)


def _to_launcher(number):
    def strike(job, _rank):
        when = time.monotonic()
        job.signal(number)
        return when
    return strike


def _interrupt_twice(job, _rank):
    when = time.monotonic()
    job.signal(signal.SIGINT)
    time.sleep(0.2)
    job.signal(signal.SIGINT)
    return when


TIMED_OUT = TIMEOUT + AT_ONCE
DAMAGED = "the data of this rank are damaged"

FAULTS = (
    Fault(1, "a rank throws in a step", victim="throw", code=1, says=DAMAGED),
    Fault(1, "a rank throws, and a destructor takes 300 ms", victim="throw_slowly", code=1,
          says=DAMAGED),
    Fault(1, "a rank throws in backward", victim="throw_in_backward", code=1, says=DAMAGED),
    Fault(1, "a rank throws before it joins", victim="throw_before_joining", launchers=OURS, code=1,
          says=DAMAGED),
    Fault(1, "a rank calls exit(3)", victim="exit_3", code=3),
    Fault(1, "a rank calls exit(0)", victim="exit_0", launchers=OURS + ("torchrun",), code=1,
          says="ended with code 0 before the others|died before"),
    # MPI, with which the ranks met, keeps the process until the others have ended too.
    Fault(1, "a rank calls exit(0)", victim="exit_0", launchers=("mpirun",), code=1,
          says="died before|waited .* s for rank {rank} ", within=TIMED_OUT),
    Fault(1, "a rank calls _exit(0)", victim="_exit_0", code=1),
    Fault(2, "SIGKILL at any time", strike=_kill_at_any_time, code=128 + signal.SIGKILL),
    Fault(4, "SIGSEGV", victim="segv", code=128 + signal.SIGSEGV),
    Fault(4, "abort()", victim="abort", code=128 + signal.SIGABRT),
    Fault(5, "SIGTERM to the launcher", strike=_to_launcher(signal.SIGTERM), launchers=OURS,
          code=128 + signal.SIGTERM, blames=False),
    Fault(6, "SIGINT to the launcher", strike=_to_launcher(signal.SIGINT), launchers=OURS,
          code=128 + signal.SIGINT, blames=False),
    Fault(6, "SIGINT to the launcher, twice", strike=_interrupt_twice, launchers=OURS,
          code=128 + signal.SIGINT, blames=False),
    # That ranks differ is nobody's fault: all of them say it, whoever ends first.
    Fault(12, "a rank makes another call", victim="other_call", code=1, blames=False,
          says=r"rank {rank}( \(pid \d+\)| of 3: this rank)? called broadcast .*every rank must"),
    Fault(13, "a rank has fewer batches", victim="fewer_batches", code=1,
          says="left the group before it made this call"),
    Fault(14, "a NaN in one rank's gradients", victim="nan", launchers=OURS,
          code=1, blames=False, says="is not finite on rank {rank}"),
    Fault(15, "SIGKILL to the launcher", strike=_to_launcher(signal.SIGKILL), launchers=OURS,
          code=-signal.SIGKILL, blames=False),
    Fault(17, "SIGSTOP to a rank", strike=_stop, launchers=OURS, within=TIMED_OUT),
    Fault(19, "a rank hangs", victim="hang", launchers=OURS, within=TIMED_OUT),
    Fault(25, "two ranks are killed at once", strike=_kill_two, launchers=OURS,
          code=128 + signal.SIGKILL),
    Fault(40, "a bit of one rank's weights flips", victim="flip", launchers=OURS,
          code=1, blames=False, says="has one value on .*{rank}"),
)
