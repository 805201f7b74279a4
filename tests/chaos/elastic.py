# SPDX-License-Identifier: BSD-3-Clause
"""Runs the elastic jobs of a kind of fault, and judges them: a job goes on, and its weights, buffers
and optimizer state end with the undisturbed run's SHA-256."""

import contextlib
import functools
import pathlib
import random
import re
import subprocess
import tempfile
import time

import samples
from elastic_kinds import EPOCHS
from job import Job, NotThere
from verdict import START

MODELS = ("linear", "mlp", "cnn")
# Half of the jobs have a sharded optimizer.
OPTIMIZERS = ((), ("sharded=sgd",), (), ("sharded=adam",))
WITHIN = 60  # seconds for the whole job, beside busy cores


@functools.lru_cache
def _undisturbed(program, training):
    """The SHA-256 of the training in one process."""
    ended = subprocess.run([program, *training], capture_output=True, text=True, check=True,
                           timeout=WITHIN + START)
    return _hash_in(ended.stdout)


def _hash_in(text):
    found = re.search(r"hash ([0-9a-f]{64})", text)
    return found[1] if found else "none"


def attempt(kind, programs, seed):
    """Runs the jobs that follow from the seed. Returns the complaints, the seconds of the slowest job
    and what was said."""
    chance = random.Random(seed)
    model = chance.choice(MODELS)
    schedules = kind.schedules(chance)
    net = (f"model={model}", *_optimizer(chance, schedules))
    texts, slowest = [], 0
    with tempfile.TemporaryDirectory(prefix="lockstep-chaos-",
                                     ignore_cleanup_errors=True) as work:
        records = [pathlib.Path(work, f"samples_{number}") for number in range(len(schedules))]
        for schedule, record in zip(schedules, records):
            complaints, seconds, text = _run(schedule, programs, net, record, work)
            texts.append(text)
            slowest = max(slowest, seconds)
            if complaints:
                break
        if not complaints and schedules[-1].completes:
            complaints = samples.complaints(records, _epochs(schedules[-1]))
    return complaints, slowest, "\n".join(texts)


def _optimizer(chance, schedules):
    optimizer = chance.choice(OPTIMIZERS)
    faults = [fault for schedule in schedules for fault in schedule.faults]
    # In the update of a sharded optimizer, a rank that hangs has got as far as those that wait; and
    # all ranks have the same weights in memory.
    same_for_all = any(fault.startswith("flip=") or ":update:" in fault and fault.endswith(":hang")
                       for fault in faults)
    return () if same_for_all else optimizer


def _epochs(schedule):
    return next((int(word.split("=")[1]) for word in schedule.training if word.startswith("epochs=")),
                EPOCHS)


def _run(schedule, programs, net, record, work):
    """One job. Returns as attempt() does."""
    folder = pathlib.Path(work, "tmp")
    folder.mkdir(exist_ok=True)
    command = [programs.lockstep, "run", "-n", str(schedule.ranks), "--elastic",
               f"{schedule.least}:{schedule.ranks}", *schedule.launcher, "--", programs.elastic,
               *net, *schedule.training, f"samples={record}",
               *(fault.format(work=work) for fault in schedule.faults)]
    with contextlib.ExitStack() as stack:
        wrapped, environment = command, {}
        if schedule.surroundings:
            wrap, environment = stack.enter_context(schedule.surroundings(work))
            wrapped = wrap(command)
        began = time.monotonic()
        job = stack.enter_context(Job(wrapped, folder, environment))
        try:
            if schedule.strike:
                schedule.strike(job, work)
            ended = job.end(WITHIN + START)
        except NotThere as error:
            return [str(error)], time.monotonic() - began, f"{' '.join(command)}\n{job.text}"
        seconds = (ended or time.monotonic()) - began
        complaints = _complaints(schedule, programs, net, job, ended, seconds)
        return complaints, seconds, f"{' '.join(command)}\n{job.text}"


def _complaints(schedule, programs, net, job, ended, seconds):
    if not ended:
        return [f"did not end within {seconds:.0f} s"]
    found = []
    if job.code != schedule.code:
        found.append(f"exit code {job.code} instead of {schedule.code}")
    if schedule.completes:
        expected = _undisturbed(programs.elastic, (*net, *schedule.training))
        if _hash_in(job.text) != expected:
            found.append(f"SHA-256 {_hash_in(job.text)} instead of {expected}")
    found += [f"nothing says {pattern!r}" for pattern in schedule.says if not job.find(pattern)]
    found += [f"something says {pattern!r}" for pattern in schedule.never_says if job.find(pattern)]
    return found + schedule.judge(job.text) + job.left_behind(files=not schedule.leaves_files)
