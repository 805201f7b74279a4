# SPDX-License-Identifier: BSD-3-Clause
"""The commands whose output gives the figures, and the figures of all rounds."""

import json
import os
import statistics
from dataclasses import dataclass

import children
from programs import PEERS

LIMIT = 300  # seconds for one command, which should take one minute at most
SIZES = {"1 KiB": 1 << 10, "64 KiB": 64 << 10, "1 MiB": 1 << 20, "4 MiB": 4 << 20,
         "25 MiB": 25 << 20, "100 MiB": 100 << 20}
SIZES_ON_HOSTS = ("1 KiB", "64 KiB", "1 MiB", "25 MiB")


@dataclass(frozen=True)
class Command:
    """A command that prints JSON with rows, or that is one. If `launches` is not 0, its output is not read: it is
    started `launches` times, and the figure is the median of the times."""
    program: str
    arguments: tuple
    launches: int = 0


@dataclass(frozen=True)
class Figure:
    """A field of the row that has these values."""
    command: Command
    field: str
    row: tuple = ()

    def of(self, rows):
        for row in rows:
            if all(row.get(name) == value for name, value in self.row):
                if isinstance(row.get(self.field), (int, float)):
                    return row[self.field]
        raise children.NotRun(f"no {self.field} in a row with {dict(self.row)}")


def all_reduce(program, size, field="time_us_median", ranks=2, ordinary=False):
    row = (("bytes", SIZES[size]),)
    if program != "lockstep":
        script = () if program == "mpi" else (str(PEERS / "gloo_all_reduce.py"),)
        return Figure(Command(program, (*script, *map(str, SIZES.values()))), field, row)
    # More ranks than cores are measured at one size.
    sizes = SIZES if ranks == 2 else [size]
    arguments = ("bench", "all-reduce", "--json", "--ranks", str(ranks), "--sizes",
                 ",".join(name.replace(" ", "") for name in sizes))
    return Figure(Command(program, arguments + (("--ordinary",) if ordinary else ())), field, row)


def step(program, model, set_to_none, mode="ddp", ranks=2, batch=None, field="us_median"):
    options = (model, "--ranks", str(ranks)) + (("--set-to-none",) if set_to_none else ())
    options += ("--batch-size", str(batch)) if batch else ()
    arguments = (("bench", "step", *options, "--json") if program == "lockstep" else
                 (str(PEERS / "ddp_step.py"), *options))
    return Figure(Command(program, arguments), field, (("model", model), ("mode", mode)))


def step_with(optimizer, model, mode="ddp"):
    """A step with one of Lockstep's optimizers, which alternate, or with PyTorch's ("peer")."""
    if optimizer == "peer":
        script = (str(PEERS / "ddp_step.py"), model, "--ranks", "2", "--fused")
        return Figure(Command("pip", script), "us_median", (("model", model), ("mode", mode)))
    arguments = ("bench", "step", model, "--ranks", "2", "--json", "--optimizer",
                 "torch,fused,sharded,divided,one-copy")
    return Figure(Command("lockstep", arguments), "us_median",
                  (("model", model), ("mode", mode), ("optimizer", optimizer)))


def all_reduce_on_hosts(program, size, backend=""):
    """An all-reduce over 2 hosts with a rank each, by a backend of Lockstep or by a peer."""
    started = "lockstep by mpirun" if backend == "mpi" else program
    name = f"{started} on hosts, 1"
    row = (("bytes", SIZES[size]),)
    sizes = [SIZES[name] for name in SIZES_ON_HOSTS]
    if program == "lockstep":
        arguments = ("bench", "all-reduce", "--json", "--backend", backend, "--ordinary",
                     "--sizes", ",".join(map(str, sizes)))
    else:
        script = () if program == "mpi" else (str(PEERS / "gloo_all_reduce.py"), "--ranks", "2")
        arguments = (*script, *map(str, sizes))
    return Figure(Command(name, arguments), "time_us_median", row)


def step_on_hosts(program, model):
    """A DDP step on 2 hosts with 2 ranks each, over the hierarchical group or over Gloo."""
    arguments = (("bench", "step", model, "--backend", "hierarchical", "--json")
                 if program == "lockstep" else
                 (str(PEERS / "ddp_step.py"), model, "--ranks", "4"))
    return Figure(Command(f"{program} on hosts, 2", arguments), "us_median",
                  (("model", model), ("mode", "ddp")))


def replicas(model, batch, mode="dp", threads=1):
    """A DP step of two replicas with a thread each, or of one process on the same batch."""
    arguments = ("bench", "dp", model, "--ranks", "2", "--batch-size", str(batch), "--json")
    return Figure(Command("lockstep", arguments), "us_median",
                  (("mode", mode), ("threads", threads)))


def epoch(recipe, microbatches):
    """An epoch of a recipe on 2 ranks, in as many microbatches or in ordinary batches."""
    options = ("--microbatches", str(microbatches)) if microbatches else ()
    arguments = ("train", recipe, "--ranks", "2", "--epochs", "1", "--json", *options)
    return Figure(Command("lockstep", arguments), "seconds_per_epoch")


def recovery(program, ranks, field="others_ms"):
    """After a rank was killed: until the others (or all) train on."""
    times = "3" if program == "lockstep" else "1"
    command = Command(f"{program} recovering", ("--ranks", str(ranks), "--times", times))
    return Figure(command, field, (("ranks", ranks),))


def lockstep_launch():
    return Figure(Command("lockstep", ("run", "-n", "2", "true"), launches=10), "ms")


def torchrun_launch(program):
    arguments = ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--no_python", "true")
    return Figure(Command(program, arguments, launches=1), "ms")


def _allocator_settings(lockstep):
    """The variables that `lockstep` sets for its ranks, so that its peers keep freed memory too."""
    output, _ = children.run([*lockstep.command, "run", "-n", "1", "--no-prefix", "env"], LIMIT)
    return dict(line.split("=", 1) for line in output.splitlines() if line.startswith("MALLOC_"))


class Measurements:
    """Runs commands, one round after another, and keeps the wanted figures of their output."""

    def __init__(self, programs, figures, scratch, quick):
        self._programs = programs
        self._quick = quick
        self._rounds = {figure: [] for figure in figures}  # a number for each
        self.failures = {}  # the reason for each command that could not be run
        self.libtorch = "(of unknown version)"  # until a report of Lockstep's tells
        self._environment = {
            **os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo",
            "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(scratch),
            **_allocator_settings(programs["lockstep"])}

    def run(self, command):
        """Runs the command once. A command that has failed is not run again."""
        if command in self.failures:
            return
        if broken := self._programs[command.program].broken:
            self.failures[command] = broken
            return
        try:
            rows = self._launches(command) if command.launches else self._rows(command)
            for figure, numbers in self._rounds.items():
                if figure.command == command:
                    numbers.append(figure.of(rows))
        except children.NotRun as error:
            self.failures[command] = f"{self.title(command)}: {error}"

    def title(self, command):
        arguments = " ".join(command.arguments).replace(f"{PEERS}/", "")
        return f"{self._programs[command.program].name} {arguments}"

    def median(self, figure):
        """The median of a figure over the rounds; None if it was not measured."""
        if figure is None or figure.command in self.failures or not self._rounds[figure]:
            return None
        return statistics.median(self._rounds[figure])

    def _line(self, command):
        line = (*self._programs[command.program].command, *command.arguments)
        if self._quick and not command.program.startswith("lockstep") and not command.launches:
            line += ("--seconds", "0.02")
        return line

    def _launches(self, command):
        seconds = [children.run(self._line(command), LIMIT, self._environment)[1]
                   for _ in range(command.launches)]
        return [{"ms": statistics.median(seconds) * 1e3}]

    def _rows(self, command):
        output, _ = children.run(self._line(command), LIMIT, self._environment)
        try:
            report = json.loads(output)
            rows = report.get("rows", [report])
        except (ValueError, AttributeError) as error:
            raise children.NotRun(f"no JSON: {output[:200].strip()}") from error
        if wrong := sum(row.get("wrong", 0) for row in rows):
            raise children.NotRun(f"{wrong} wrong elements")
        if command.program.startswith("lockstep"):
            self.libtorch = report.get("versions", {}).get("libtorch", self.libtorch)
        return rows
