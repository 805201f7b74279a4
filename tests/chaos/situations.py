# SPDX-License-Identifier: BSD-3-Clause
"""Faults of the surroundings, by the numbers of docs/faults.md: a job is started into each."""

import contextlib
import dataclasses
import os
import pathlib
import random
import signal
import socket
import struct
import tempfile
import threading
import time
import typing

from job import Job, NotThere
from launchers import free_port, run_command
from machine import Missing, memory_limit, two_hosts

TIMEOUT = 5  # seconds, of the victim's group
START = 30  # seconds in which a job has started beside busy cores
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


@contextlib.contextmanager
def _job(command, folder, environment=None):
    with Job(command, folder, environment) as job:
        yield job


def _expect(job, since, within, code, *says):
    """Waits for the job's end and judges it."""
    ended = job.end(within + START)
    seconds = (ended or time.monotonic()) - since
    complaints = []
    if not ended:
        complaints.append(f"did not end within {seconds:.0f} s")
    elif seconds > within:
        complaints.append(f"took {seconds:.1f} s, more than {within} s")
    if ended and (job.code == 0) != (code == 0):
        complaints.append(f"exit code {job.code}")
    complaints += [f"nothing says {pattern!r}" for pattern in says if not job.find(pattern)]
    return complaints + job.left_behind(), seconds, job.text


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
    with _job(command, folder) as job:
        return _expect(job, time.monotonic(), START, 1, r"rank 1 did not join")


def _death_while_joining(programs, backend, folder):
    """At any of the calls by which a rank connects, sends and receives, if no launcher looks on. A
    rank that dies before it has come to the others is missing only when their time is over."""
    rank = random.randrange(3)
    call = random.randint(1, CALLS_OF_JOINING[backend])
    named = rf"rank {rank}( \(pid \d+( on host \S+)?\))? (died|did not join|no longer listens)"
    if rank == 0:
        named = f"({named}|has rank 0 ended|rank 0, which serves it)"
    while True:
        command = _by_script(programs, _ranks((0, 1, 2), 3, free_port()), backend,
                             "fault=die_while_joining", f"rank={rank}", f"step={call}")
        with _job(command, folder) as job:
            said = job.wait_for(rf"fault at ([\d.]+)|rank {rank} is process")
            if said is None or said.group(1):
                struck = float(said.group(1)) if said else time.monotonic()
                return _expect(job, struck, TIMEOUT + 8, 1,
                               *(rf"rank {other} of 3: .*{named}" for other in {0, 1, 2} - {rank}))
        call = max(1, call // 2)  # it had joined already


def _rank_number_twice(programs, backend, folder):
    command = _by_script(programs, _ranks((0, 1, 1), 3, free_port()), backend)
    with _job(command, folder) as job:
        return _expect(job, time.monotonic(), START, 1, r"rank 1.*pid \d+.*pid \d+")


def _wrong_secret(programs, backend, folder):
    ranks = _ranks((0, 1), 2, free_port())
    with tempfile.TemporaryDirectory() as secrets:
        for rank in ranks:
            secret = pathlib.Path(secrets, f"of_{rank['RANK']}")
            secret.write_text(f"secret of rank {rank['RANK']}, long enough for any rule of length\n")
            secret.chmod(0o600)
            rank["LOCKSTEP_SECRET_FILE"] = secret
        with _job(_by_script(programs, ranks, backend), folder) as job:
            return _expect(job, time.monotonic(), START, 1, "refused this rank's secret|knew another secret")


def _port_taken(programs, backend, folder):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        ranks = _ranks((0, 1), 2, listener.getsockname()[1])
        with _job(_by_script(programs, ranks, backend), folder) as job:
            return _expect(job, time.monotonic(), START, 1, "in use")


def _wrong_interface(programs, backend, folder):
    command = run_command(programs, 2, [f"backend={backend}", f"timeout={TIMEOUT}"])
    with _job(command, folder, {"GLOO_SOCKET_IFNAME": "nope0"}) as job:
        return _expect(job, time.monotonic(), START, 1, r"nope0.*lo")


def _unknown_name(programs, backend, folder):
    ranks = _ranks((0, 1), 2, free_port())
    for rank in ranks:
        rank["MASTER_ADDR"] = "nowhere.invalid"
    with _job(_by_script(programs, ranks, backend), folder) as job:
        return _expect(job, time.monotonic(), START, 1, r"nowhere\.invalid")


def _small_dev_shm(programs, backend, folder):
    command = run_command(programs, 2, [f"backend={backend}", "steps=50"])
    command = ["unshare", "-m", "sh", "-c",
               'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec "$@"', "sh", *command]
    with _job(command, folder) as job:
        if job.end(0.5) and job.find("unshare|mount:"):
            raise Missing("mount namespaces")
        return _expect(job, time.monotonic(), START, 0)


def _leftovers(programs, backend, folder):
    """What a job whose every process was killed leaves does not disturb the next one."""
    port = free_port()
    with _job(_by_script(programs, _ranks((0, 1), 2, port), backend), folder) as job:
        job.wait_for("training")
        for pid in job.remains():
            os.kill(pid, signal.SIGKILL)
        job.end(START)
    with _job(_by_script(programs, _ranks((0, 1), 2, port), backend, "steps=50"), folder) as job:
        return _expect(job, time.monotonic(), START, 0)


def _full_disk(programs, backend, folder):
    """The net takes a megabyte, the disk has 256 KiB."""
    script = ('mount -t tmpfs -o size=256k tmpfs "$0" && "$@" --save "$0/net.pt"; code=$?; '
              'ls -A "$0"; umount "$0"; exit $code')
    command = ["unshare", "-m", "sh", "-c", script, folder, programs.lockstep, "train", "mlp",
               "--epochs", "1", "--ranks", "2", "--backend", backend, "--timeout", str(TIMEOUT)]
    with _job(command, folder) as job:
        return _expect(job, time.monotonic(), 2 * START, 1, r"No space left on device")


def _out_of_memory(programs, backend, folder):
    with memory_limit(1 << 30) as wrapped:
        command = wrapped(run_command(programs, 3, [f"backend={backend}", "fault=memory"]))
        with _job(command, folder) as job:
            said = job.wait_for(r"fault at ([\d.]+)")
            if not said:
                raise NotThere("the victim never came to its fault")
            return _expect(job, float(said[1]), START, 1,
                           r"rank 1 of 3 \(pid \d+\) failed first: .*out of memory")


@contextlib.contextmanager
def _jobs_on(hosts, programs, backend, folder, *arguments):
    """A launcher on each of two hosts, each with two ranks."""
    port = free_port()
    launchers = [hosts.on(host, [
        programs.lockstep, "run", "-n", "2", "--nnodes", "2", "--node-rank", str(host),
        "--rdzv-endpoint", f"{hosts.address(0)}:{port}", "--", programs.victim,
        f"backend={backend}", "timeout=60", *arguments]) for host in range(2)]
    with _job(launchers[0], folder) as first, _job(launchers[1], folder) as second:
        yield first, second


def _expect_of_all(jobs, since, within, code, *says):
    """The complaints about all of them, the time of the slowest, and what they printed."""
    judged = [_expect(job, since, within, code, *says) for job in jobs]
    return ([complaint for complaints, _, _ in judged for complaint in complaints],
            max(seconds for _, seconds, _ in judged), "\n".join(text for _, _, text in judged))


def _partition(programs, backend, folder):
    with two_hosts() as hosts, _jobs_on(hosts, programs, backend, folder) as jobs:
        jobs[0].wait_for("training")
        since = time.monotonic()
        hosts.cut(1)
        return _expect_of_all(jobs, since, START, 1, r"its connection was lost")


def _lost_packets(programs, backend, folder):
    """A queue that is shorter than a message; TCP sends again what does not fit."""
    with two_hosts() as hosts:
        for host in range(2):
            hosts.limit(host, "tbf rate 200mbit burst 20kb limit 30kb")
        with _jobs_on(hosts, programs, backend, folder, "steps=200") as jobs:
            complaints, *rest = _expect_of_all(jobs, time.monotonic(), 2 * START, 0)
        if not hosts.packets_dropped(0):
            complaints.append("no packet was lost")
        return complaints, *rest


def _clock_jumps(programs, backend, folder):
    """Of the wall clock, as ranks and launcher see it, by a year to and fro."""
    library = next(pathlib.Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
    if not library:
        raise Missing("libfaketime: apt-get install faketime")
    with tempfile.TemporaryDirectory() as outside:
        now = pathlib.Path(outside, "now")
        now.write_text("+0\n")
        environment = {"LD_PRELOAD": library, "FAKETIME_TIMESTAMP_FILE": now, "FAKETIME_NO_CACHE": "1",
                       "DONT_FAKE_MONOTONIC": "1"}
        command = run_command(programs, 2, [f"backend={backend}", "steps=3000"])
        with _job(command, folder, environment) as job:
            job.wait_for("training")
            for jump in ("+365d", "-365d", "+0"):
                now.with_suffix(".new").write_text(f"{jump}\n")
                now.with_suffix(".new").rename(now)
                job.end(0.3)
            if job.end(0):
                return [f"exit code {job.code} before the clock was right again"], 0, job.text
            return _expect(job, time.monotonic(), 2 * START, 0)


def _strangers(programs, backend, folder):
    """Connect to all ports of the job while it joins and trains; the job goes on."""
    command = run_command(programs, 2, [f"backend={backend}", "steps=3000"])
    with _job(command, folder) as job:
        stop = threading.Event()
        visits = threading.Thread(target=_visit, args=(job, stop))
        visits.start()
        try:
            return _expect(job, time.monotonic(), START, 0)
        finally:
            stop.set()
            visits.join()


def _visit(job, stop):
    turn = 0
    while not stop.is_set():
        for address in _listeners(job.remains()):
            turn += 1
            with contextlib.suppress(OSError), socket.create_connection(address, 0.2) as visitor:
                if turn % 3 == 0:
                    visitor.send(os.urandom(200))
                if turn % 3 == 1:  # an RST instead of a FIN
                    visitor.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        stop.wait(0.01)


def _listeners(pids):
    """The addresses at which these processes listen."""
    sockets = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    sockets.add(os.readlink(entry))
    found = []
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
            host, port = fields[1].split(":")
            found.append((socket.inet_ntoa(struct.pack("<I", int(host, 16))), int(port, 16)))
    return found


LOCAL = ("shm", "gloo")
NETWORK = ("gloo",)
SITUATIONS = (
    Situation(2, "SIGKILL at any call of a rank that joins", LOCAL, _death_while_joining),
    Situation(3, "a rank takes all memory that a control group allows", LOCAL, _out_of_memory),
    Situation(7, "the port is taken", LOCAL, _port_taken),
    Situation(8, "/dev/shm holds 64 KiB", LOCAL, _small_dev_shm),
    Situation(9, "a job was killed with all its processes before", LOCAL, _leftovers),
    Situation(10, "the disk is full when the net is saved", ("shm",), _full_disk),
    Situation(11, "a rank never joins", LOCAL, _rank_never_joins),
    Situation(33, "an interface that is not there", NETWORK, _wrong_interface),
    Situation(33, "a name of rank 0's host that leads nowhere", LOCAL, _unknown_name),
    Situation(34, "the link between two hosts is cut", ("gloo", "hierarchical"), _partition),
    Situation(35, "the link between two hosts loses packets", ("gloo", "hierarchical"), _lost_packets),
    Situation(36, "strangers connect, reset and send random bytes", NETWORK, _strangers),
    Situation(37, "a rank knows another secret", LOCAL, _wrong_secret),
    Situation(37, "a rank number is there twice", LOCAL, _rank_number_twice),
    Situation(39, "the wall clock jumps by a year, to and fro", LOCAL, _clock_jumps),
)
