# SPDX-License-Identifier: BSD-3-Clause
"""Finds the programs to compare: Lockstep's release build, both torches of Python, Open MPI."""

import pathlib
import re
import shutil
import sys
from dataclasses import dataclass, replace

import children
import on_hosts as hosts

ROOT = pathlib.Path(__file__).resolve().parent.parent
PEERS = ROOT / "bench" / "peers"
LIMIT = 120  # seconds; importing torch from a cold disk takes long, so does compiling


@dataclass(frozen=True)
class Program:
    name: str
    command: tuple = ()  # what comes before a measurement's arguments
    missing: str = ""  # if it is not there: what brings it
    broken: str = ""  # if it is there and cannot be run: why


def find_lockstep(path):
    """The `lockstep` at the path. Without a path, a release build's, preferably with the libtorch
    of Python's current release. None if there is none."""
    if path:
        found = shutil.which(path)
        return pathlib.Path(found).resolve() if found else None
    builds = [build for build in ROOT.glob("build/release*/tools/cli/lockstep")
              if build.with_name("lockstep-torch").exists()]
    builds.sort(key=lambda build: (build.parts[-4] == "release-pip", build.stat().st_mtime))
    return builds[-1] if builds else None


def on_hosts(program, way, ranks):
    """The program as `ranks` ranks on each of two hosts, which are network namespaces."""
    if missing := program.missing or hosts.why_not():
        return Program(f"{program.name} on 2 hosts", missing=missing)
    start = (sys.executable, str(ROOT / "bench" / "on_hosts.py"), "--ranks", str(ranks), way)
    return Program(program.name, (*start, *program.command), broken=program.broken)


def recovering(program):
    """The program as bench/recovery.py starts it and kills a rank of it."""
    if program.missing or program.broken:
        return program
    return replace(program, command=(sys.executable, str(ROOT / "bench" / "recovery.py"),
                                     *program.command))


def by_mpirun(mpi, program=None):
    """The program, or what is measured of MPI itself, as on_hosts.py has mpirun start it."""
    if not mpi.command:
        return mpi
    started = program.command if program else mpi.command[-1:]
    return replace(program or mpi, command=(mpi.command[0], *started))


def find_peer(name, folder):
    """The peer called pip, system or mpi; what must be compiled for it goes into the folder."""
    return {"pip": pip_torch, "system": system_torch, "mpi": open_mpi}[name](folder)


def pip_torch(_folder):
    show = '''source "$1/scripts/setup.sh"
              echo "$pip_torch"
              [[ ! -e $pip_venv/complete ]] || echo "$pip_venv"'''
    output, _ = children.run(["bash", "-c", show, "bash", str(ROOT)], LIMIT)
    version, *environment = output.splitlines()
    if not environment:
        return Program(f"PyTorch {version}", missing="scripts/install-peers, which asks pip for it")
    return Program(f"PyTorch {version}", (f"{environment[0]}/bin/python",))


def system_torch(_folder):
    python = "/usr/bin/python3"
    try:
        version, _ = children.run([python, "-c", "import torch; print(torch.__version__)"], LIMIT)
    except children.NotRun:
        return Program("the system's PyTorch", missing="apt-get install python3-torch")
    return Program(f"PyTorch {version.strip()}", (python,))


def open_mpi(folder):
    # Debian can have several MPIs at once.
    mpirun, compiler = (shutil.which(f"{name}.openmpi") or shutil.which(name)
                        for name in ("mpirun", "mpicxx"))
    missing = Program("Open MPI", missing="apt-get install openmpi-bin libopenmpi-dev g++")
    if not mpirun or not compiler:
        return missing
    version, _ = children.run([mpirun, "--version"], LIMIT)
    number = re.search(r"\(Open ?(?:MPI|RTE)\) ([\d.]+)", version)
    if not number:
        return missing
    name = f"Open MPI {number[1]}"
    binary = str(folder / "mpi_all_reduce")
    try:
        children.run([compiler, "-std=c++17", "-O2", "-o", binary,
                      str(PEERS / "mpi_all_reduce.cpp")], LIMIT)
    except children.NotRun as error:
        return Program(name, broken=f"{compiler}: {error}")
    # With fewer slots than ranks Open MPI would yield its cores while it waits; the ranks pin
    # themselves.
    return Program(name, (mpirun, "-n", "2", "--host", "localhost:2", "--bind-to", "none", binary))
