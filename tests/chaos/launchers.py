# SPDX-License-Identifier: BSD-3-Clause
"""The ways to start the victim, and where each says which rank was the cause."""

import dataclasses
import re
import shutil
import socket
import typing


@dataclasses.dataclass(frozen=True)
class Launcher:
    name: str
    command: typing.Callable  # of programs, ranks and the victim's arguments
    # What names the cause: the launcher itself, or, where it knows nothing of the ranks' reasons,
    # each surviving rank.
    names_cause: bool
    # That the launcher itself may take to see that a rank has ended, in seconds.
    slowness: float = 0

    def blamed(self, job):
        """The ranks that are named as the cause of the job's end, each once."""
        for pattern in (BLAME,) if self.names_cause else (PEER, ROOT_CAUSE):
            ranks = {int(rank) for rank in re.findall(pattern, job.text, re.MULTILINE)}
            if ranks:
                return sorted(ranks)
        return []


# The first line of the report of `lockstep run` and of spawn's exception.
BLAME = r"^(?:lockstep run|victim: spawn\(\d+\)): rank (\d+)(?: of \d+)? \(pid \d+\)"
# What a surviving rank says of the peer that it lost: the last one, if it learned it from others.
PEER = r"victim: \[.*rank (\d+) \(pid \d+\)"
# What torchrun says if it looks right after the fault, and ends the survivors before they speak.
ROOT_CAUSE = r"^Root Cause \(first observed failure\):(?:\n.*){1,4}?\n *rank +: (\d+)"


def run_command(programs, ranks, arguments):
    return [programs.lockstep, "run", "-n", str(ranks), "--", programs.victim, *arguments]


def _spawn(programs, ranks, arguments):
    return [programs.victim, f"spawn={ranks}", *arguments]


def _torchrun(programs, ranks, arguments):
    # Debian's version fails without redirects, and with those of standard error.
    return [programs.torchrun, "--no_python", f"--nproc_per_node={ranks}",
            f"--master_port={free_port()}", "--redirects=1", "--tee=1",
            programs.victim, *arguments]


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _mpirun(programs, ranks, arguments):
    return [programs.mpirun, "--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "--bind-to", "none",
            "-n", str(ranks), programs.victim, *arguments]


LAUNCHERS = {launcher.name: launcher for launcher in (
    Launcher("run", run_command, True),
    Launcher("spawn", _spawn, True),
    Launcher("torchrun", _torchrun, False, slowness=10),
    Launcher("mpirun", _mpirun, False, slowness=5))}


@dataclasses.dataclass(frozen=True)
class Programs:
    lockstep: str
    victim: str
    # The training that elastic jobs run, and the seed of the first such job.
    elastic: str
    seed: int
    torchrun: str = shutil.which("torchrun") or ""
    mpirun: str = shutil.which("mpirun") or ""

    def lacks(self, launcher):
        return not getattr(self, launcher, "there")
