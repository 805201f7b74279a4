# SPDX-License-Identifier: BSD-3-Clause
"""All that can be tried: each fault with each launcher and backend, each situation with each
backend, each kind of fault of elastic jobs."""

import dataclasses
import tempfile
import time

import elastic
import elastic_kinds
import report
import verdict
from faults import FAULTS, RANKS, TIMED_OUT
from job import PATIENCE, Job, NotThere
from launchers import LAUNCHERS
from machine import Missing
from situations import SITUATIONS

BACKENDS = ("shm", "gloo", "hierarchical", "mpi")


@dataclasses.dataclass
class Outcome:
    trial: object
    seconds: float  # from the fault to the job's end
    complaints: list
    text: str = ""
    # What the machine lacks; then nothing was tried.
    missing: str = ""
    # From which the job follows, if it does.
    seed: int = None


@dataclasses.dataclass(frozen=True)
class FaultTrial:
    fault: object
    launcher: object
    backend: str

    @property
    def under(self):
        return self.launcher.name

    def attempt(self, programs, number):
        """Runs one job, with another guilty rank for each number, and judges its end."""
        fault = self.fault
        guilty = number % RANKS
        arguments = [f"backend={self.backend}", f"rank={guilty}", f"step={20 + number % 7}"]
        if fault.victim:
            arguments.append(f"fault={fault.victim}")
        if fault.within != TIMED_OUT:
            arguments.append("timeout=60")  # for busy machines; the fault ends the job sooner
        command = self.launcher.command(programs, RANKS, arguments)
        within = fault.within + self.launcher.slowness + verdict.slack
        with tempfile.TemporaryDirectory(prefix="lockstep-chaos-") as folder:
            with Job(command, folder) as job:
                try:
                    struck = _commit(fault, job, guilty)
                except NotThere as error:
                    return Outcome(self, 0, [str(error)], job.text)
                ended = job.end(within + PATIENCE)
                seconds = (ended or time.monotonic()) - struck
                complaints = report.complaints(self, job, guilty, seconds, ended is not None)
                return Outcome(self, seconds, complaints, job.text)


def _commit(fault, job, guilty):
    """Makes the fault happen, or waits until the victim does it. When it was."""
    if fault.strike:
        job.wait_for_training()
        return fault.strike(job, guilty)
    said = job.wait_for(r"fault at ([\d.]+)")
    if not said:
        raise NotThere("the victim never came to its fault")
    return float(said[1])


@dataclasses.dataclass(frozen=True)
class SituationTrial:
    fault: object
    backend: str

    @property
    def under(self):
        return self.fault.under

    def attempt(self, programs, _number):
        with tempfile.TemporaryDirectory(prefix="lockstep-chaos-") as folder:
            try:
                complaints, seconds, text = self.fault.attempt(programs, self.backend, folder)
            except Missing as error:
                return Outcome(self, 0, [], missing=str(error))
            except NotThere as error:
                return Outcome(self, 0, [str(error)])
            return Outcome(self, seconds, complaints, text)


@dataclasses.dataclass(frozen=True)
class ElasticTrial:
    fault: object
    backend: str = "shm"
    under: str = "run --elastic"

    def attempt(self, programs, number):
        seed = programs.seed + number
        try:
            complaints, seconds, text = elastic.attempt(self.fault, programs, seed)
        except Missing as error:
            return Outcome(self, 0, [], missing=str(error), seed=seed)
        return Outcome(self, seconds, complaints, text, seed=seed)


def possible(programs, numbers, launchers, backends, elastic_or_not):
    """The trials with these faults (all if none is named) that this machine can run; only those of
    elastic jobs, or only others, unless the last argument is None."""
    found = []
    if elastic_or_not is not False and "run" in launchers and ElasticTrial.backend in backends:
        found += [ElasticTrial(kind) for kind in elastic_kinds.KINDS]
    if elastic_or_not is not True:
        found += _of_other_jobs(programs, launchers, backends)
    return [trial for trial in found if not numbers or trial.fault.number in numbers]


def _of_other_jobs(programs, launchers, backends):
    found = []
    for fault in FAULTS:
        for name in fault.launchers:
            if name not in launchers or programs.lacks(name):
                continue
            for backend in backends:
                # MPI can only be used below its own launcher.
                if backend != "mpi" or name == "mpirun":
                    found.append(FaultTrial(fault, LAUNCHERS[name], backend))
    return found + [SituationTrial(situation, backend) for situation in SITUATIONS
                    for backend in situation.backends if backend in backends]
