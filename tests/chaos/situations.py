# SPDX-License-Identifier: BSD-3-Clause
"""Faults of the surroundings, by the numbers of docs/faults.md: a job is started into each."""

import concurrent.futures
import dataclasses
import pathlib
import random
import signal
import socket
import tempfile
import threading
import time
import typing

import between_hosts
from job import Job, NotThere
from launchers import free_port, run_command
from machine import FakeClock, Missing, memory_limit
from port_scanner import visit
from verdict import START, TIMEOUT, expect

# That a rank makes; the one that serves the store makes more.
CALLS_OF_JOINING = {"shm": 70, "gloo": 160}


@dataclasses.dataclass(frozen=True)
class Situation:
    number: int
    name: str
    backends: tuple
    # Of programs, backend and the job's folder. Returns the complaints and the seconds from the
    # fault, or from the start, to the job's end; Missing if this machine does not have what it needs.
    attempt: typing.Callable
    # What starts the ranks.
    under: str = "run"


def _by_script(programs, variables, backend, *arguments):
    """Ranks that a shell starts, each with what it finds in the environment."""
    lines = [f"{' '.join(f'{name}={value}' for name, value in each.items())} "
             f"{programs.victim} backend={backend} timeout={TIMEOUT} {' '.join(arguments)} & "
             f'pids="$pids $!"' for each in variables]
    return ["sh", "-c", "\n".join(["code=0", *lines, "for pid in $pids; do wait $pid || code=1; done",
                                   "exit $code"])]


def _ranks(numbers, size, port):
    return [{"RANK": rank, "LOCAL_RANK": place, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            for place, rank in enumerate(numbers)]


def _rank_never_joins(programs, backend, folder):
    command = _by_script(programs, _ranks((0, 2), 3, free_port()), backend)
    with Job(command, folder) as job:
        return expect(job, time.monotonic(), START, 1, r"rank 1 did not join")


def _death_while_joining(programs, backend, folder):
    """At any of the calls by which a rank connects, sends and receives, if no launcher looks on. A
    rank that dies before it has come to the others is missing only when their time is over."""
    rank = random.randrange(3)
    call = random.randint(1, CALLS_OF_JOINING[backend])
    named = rf"rank {rank}( \(pid \d+( on host \S+)?\))? (died|did not join|no longer listens|: its connection was lost)"
    if rank == 0:
        named = f"({named}|has rank 0 ended|rank 0, which serves it)"
    while call:
        command = _by_script(programs, _ranks((0, 1, 2), 3, free_port()), backend,
                             "fault=die_while_joining", f"rank={rank}", f"step={call}")
        with Job(command, folder) as job:
            said = job.wait_for(rf"fault at ([\d.]+)|rank {rank} is process")
            if said is None or said.group(1):
                struck = float(said.group(1)) if said else time.monotonic()
                return expect(job, struck, TIMEOUT + 8, 1,
                               *(rf"rank {other} of 3: .*{named}" for other in {0, 1, 2} - {rank}))
        call //= 2  # it had joined already
    raise NotThere(f"rank {rank} joined without a call")


def _rank_number_twice(programs, backend, folder):
    command = _by_script(programs, _ranks((0, 1, 1), 3, free_port()), backend)
    with Job(command, folder) as job:
        return expect(job, time.monotonic(), START, 1, r"rank 1.*pid \d+.*pid \d+")


def _wrong_secret(programs, backend, folder):
    ranks = _ranks((0, 1), 2, free_port())
    with tempfile.TemporaryDirectory() as secrets:
        for rank in ranks:
            secret = pathlib.Path(secrets, f"of_{rank['RANK']}")
            secret.write_text(f"secret of rank {rank['RANK']}, long enough for any rule of length\n")
            secret.chmod(0o600)
            rank["LOCKSTEP_SECRET_FILE"] = secret
        with Job(_by_script(programs, ranks, backend), folder) as job:
            return expect(job, time.monotonic(), START, 1, "refused this rank's secret|knew another secret")


def _port_taken(programs, backend, folder):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ranks = _ranks((0, 1), 2, listener.getsockname()[1])
        with Job(_by_script(programs, ranks, backend), folder) as job:
            return expect(job, time.monotonic(), START, 1, "in use")


def _wrong_interface(programs, backend, folder):
    command = run_command(programs, 2, [f"backend={backend}", f"timeout={TIMEOUT}"])
    with Job(command, folder, {"GLOO_SOCKET_IFNAME": "nope0"}) as job:
        return expect(job, time.monotonic(), START, 1, r"nope0.*lo")


def _unknown_name(programs, backend, folder):
    ranks = _ranks((0, 1), 2, free_port())
    for rank in ranks:
        rank["MASTER_ADDR"] = "nowhere.invalid"
    with Job(_by_script(programs, ranks, backend), folder) as job:
        return expect(job, time.monotonic(), START, 1, r"nowhere\.invalid")


def _small_dev_shm(programs, backend, folder):
    command = run_command(programs, 2, [f"backend={backend}", "steps=50"])
    command = ["unshare", "-m", "sh", "-c",
               'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"', "sh", *command]
    with Job(command, folder) as job:
        if job.end(0.5) and job.find("unshare|mount:"):
            raise Missing("mount namespaces")
        return expect(job, time.monotonic(), START, 0)


def _leftovers(programs, backend, folder):
    """What a job whose every process was killed leaves does not disturb the next one."""
    port = free_port()
    with Job(_by_script(programs, _ranks((0, 1), 2, port), backend), folder) as job:
        job.wait_for_training()
        for pid in job.remains():
            job.signal_process(pid, signal.SIGKILL)
        job.end(START)
    with Job(_by_script(programs, _ranks((0, 1), 2, port), backend, "steps=50"), folder) as job:
        return expect(job, time.monotonic(), START, 0)


def _full_disk(programs, backend, folder):
    """The net takes a megabyte, the disk has 256 KiB."""
    script = ('mount -t tmpfs -o size=256k tmpfs "$0" && "$@" --save "$0/net.pt"; code=$?; '
              'ls -A "$0"; umount "$0"; exit $code')
    command = ["unshare", "-m", "sh", "-c", script, folder, programs.lockstep, "train", "mlp",
               "--epochs", "1", "--ranks", "2", "--backend", backend, "--timeout", str(TIMEOUT)]
    with Job(command, folder) as job:
        return expect(job, time.monotonic(), 2 * START, 1, r"No space left on device")


def _out_of_memory(programs, backend, folder):
    with memory_limit(1 << 30) as wrapped:
        command = wrapped(run_command(programs, 3, [f"backend={backend}", "fault=memory"]))
        with Job(command, folder) as job:
            said = job.wait_for(r"fault at ([\d.]+)")
            if not said:
                raise NotThere("the victim never came to its fault")
            return expect(job, float(said[1]), START, 1,
                           r"rank 1 of 3 \(pid \d+\) failed first: .*out of memory")


def _clock_jumps(programs, backend, folder):
    """Of the wall clock, as ranks and launcher see it, back and forth by a year."""
    with tempfile.TemporaryDirectory() as outside:
        clock = FakeClock(outside)
        clock.set("+0")
        over = pathlib.Path(outside, "over")
        command = run_command(programs, 2, [f"backend={backend}", f"until={over}"])
        with Job(command, folder, clock.environment()) as job:
            job.wait_for_training()
            for jump in ("+365d", "-365d", "+0"):
                clock.set(jump)
                job.end(0.3)
            if job.end(0):
                return [f"exit code {job.code} before the clock was right again"], 0, job.text
            over.touch()
            return expect(job, time.monotonic(), 2 * START, 0)


def _port_scanners(programs, backend, folder):
    """Connect to all ports of the job while it joins and trains; the job goes on. With a launcher on
    one host there are none to which TCP can connect."""
    command = _by_script(programs, _ranks((0, 1), 2, free_port()), backend, "steps=3000")
    with Job(command, folder) as job, concurrent.futures.ThreadPoolExecutor(1) as pool:
        stop = threading.Event()
        visits = pool.submit(visit, job, stop)
        try:
            complaints, *rest = expect(job, time.monotonic(), START, 0)
        finally:
            stop.set()
        if not visits.result():
            complaints.append("no port of the job was visited")
        return complaints, *rest


LOCAL = ("shm", "gloo")
NETWORK = ("gloo",)
BETWEEN_HOSTS = ("gloo", "hierarchical")
NO_LAUNCHER = "no launcher"
SITUATIONS = (
    Situation(1, "a rank throws, on two hosts", BETWEEN_HOSTS, between_hosts.rank_throws),
    Situation(2, "SIGKILL at any call of a rank that joins", LOCAL, _death_while_joining, NO_LAUNCHER),
    Situation(2, "SIGKILL to a rank, on two hosts", BETWEEN_HOSTS, between_hosts.rank_is_killed),
    Situation(3, "a rank takes all memory that a control group allows", LOCAL, _out_of_memory),
    Situation(7, "the port is taken", LOCAL, _port_taken, NO_LAUNCHER),
    Situation(8, "/dev/shm holds 64 KiB", LOCAL, _small_dev_shm),
    Situation(9, "a job was killed with all its processes before", LOCAL, _leftovers, NO_LAUNCHER),
    Situation(10, "the disk is full when the net is saved", ("shm",), _full_disk, "train"),
    Situation(11, "a rank never joins", LOCAL, _rank_never_joins, NO_LAUNCHER),
    Situation(12, "a rank makes another call, on two hosts", BETWEEN_HOSTS,
              between_hosts.rank_makes_another_call),
    Situation(33, "an interface that is not there", NETWORK, _wrong_interface),
    Situation(33, "a name of rank 0's host that does not resolve", LOCAL, _unknown_name, NO_LAUNCHER),
    Situation(34, "the link between two hosts is cut", BETWEEN_HOSTS, between_hosts.partition),
    Situation(35, "the link between two hosts loses packets", BETWEEN_HOSTS, between_hosts.lost_packets),
    Situation(36, "port scanners connect, reset and send random bytes", NETWORK, _port_scanners,
              NO_LAUNCHER),
    Situation(37, "a rank knows another secret", LOCAL, _wrong_secret, NO_LAUNCHER),
    Situation(37, "a rank number is there twice", LOCAL, _rank_number_twice, NO_LAUNCHER),
    Situation(39, "the wall clock jumps back and forth by a year", LOCAL, _clock_jumps),
)
