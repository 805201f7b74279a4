# SPDX-License-Identifier: BSD-3-Clause
"""Faults of elastic jobs, by the numbers of docs/faults.md: who is hurt, when and how follows from a
seed. The job goes on, and its weights, buffers and optimizer state end with the undisturbed run's
SHA-256. The subject is tests/train/elastic_program.cpp."""

import dataclasses
import functools
import random
import re
import subprocess
import tempfile
import time
import typing

from job import Job
from verdict import START

# Of elastic_program: three epochs of five steps.
STEPS = 15
EPOCHS = 3
STEPS_OF_EPOCH = STEPS // EPOCHS
MODELS = ("linear", "mlp", "cnn")
# Half of the jobs have a sharded optimizer.
OPTIMIZERS = ((), ("sharded=sgd",), (), ("sharded=adam",))
MOST_RANKS = 4  # there are so many microbatches
HANG_TIMEOUT = 5  # seconds
WITHIN = 60  # seconds for the whole job, beside busy cores
# What the launcher says of a member that did so to itself.
ENDS = {"kill": "killed by signal 9", "segv": "killed by signal 11", "exit": "exit code 3",
        "throw": "exit code 1", "stop": "killed by the launcher, since it made no progress",
        "hang": "killed by the launcher, since it made no progress"}
IN_STEP = ("before", "loss", "update", "updated", "after")


@dataclasses.dataclass(frozen=True)
class Schedule:
    ranks: int
    # For elastic_program.
    faults: tuple
    # What the launcher must say, as regular expressions.
    says: tuple


@dataclasses.dataclass(frozen=True)
class Kind:
    number: int
    name: str
    # Of a random.Random: the Schedule.
    schedule: typing.Callable


def _lost(member, how):
    return rf"member {member} \(rank \d+, pid \d+\) was lost: {ENDS[how]}"


def _step(chance, place="loss", last=STEPS):
    """A step that gets to the place. In an epoch's last one, some ranks may have no samples."""
    return chance.choice([step for step in range(1, last + 1)
                          if place != "loss" or step % STEPS_OF_EPOCH != 0])


def _one(chance, hows, places=IN_STEP + ("evaluation", "end")):
    ranks = chance.randint(2, MOST_RANKS)
    member = chance.randrange(ranks)
    how = chance.choice(hows)
    place = chance.choice(places)
    number = _step(chance, place) if place in IN_STEP else chance.randrange(EPOCHS)
    return Schedule(ranks, (f"die={member}:{place}:{number}:{how}",), (_lost(member, how),))


def _before_commit(chance):
    return _one(chance, ("kill", "segv"), ("update",))


def _hangs(chance):
    return _one(chance, ("hang",), IN_STEP)


def _two_at_once(chance):
    ranks = chance.randint(3, MOST_RANKS)
    members = chance.sample(range(ranks), 2)
    place = chance.choice(IN_STEP)
    step = _step(chance, place)
    return Schedule(ranks, tuple(f"die={member}:{place}:{step}:kill" for member in members),
                    tuple(_lost(member, "kill") for member in members))


def _replaced(chance, more=()):
    """The job waits until a replacement trains."""
    ranks = chance.randint(2, MOST_RANKS)
    member = chance.randrange(ranks)
    step = _step(chance, last=STEPS - 4)
    wait = chance.randint(step + 2, STEPS - 1)
    faults = (f"die={member}:loss:{step}:kill", f"wait={wait}:2",
              *(fault.format(newcomer=ranks) for fault in more))
    return Schedule(ranks, faults, (_lost(member, "kill"), r"member \d+ joins as rank "))


def _replacement_dies(chance):
    """At one of the calls by which it joins the others and gets their state."""
    return _replaced(chance, (f"die={{newcomer}}:call:{chance.randint(1, 20)}",))


def _donor_dies(chance):
    """Once the states have been compared, in the third call of the schedule's function."""
    ranks = chance.randint(3, MOST_RANKS)
    member = chance.randrange(1, ranks)
    step = _step(chance)
    return Schedule(ranks, (f"die={member}:loss:{step}:kill", "die=0:schedule:3:kill"),
                    (_lost(member, "kill"), _lost(0, "kill")))


KINDS = (
    Kind(1, "a rank of an elastic job throws, or calls exit(3)",
         functools.partial(_one, hows=("throw", "exit"))),
    Kind(2, "SIGKILL to a rank of an elastic job", functools.partial(_one, hows=("kill",))),
    Kind(4, "SIGSEGV in a rank of an elastic job", functools.partial(_one, hows=("segv",))),
    Kind(17, "SIGSTOP to a rank of an elastic job", functools.partial(_one, hows=("stop",))),
    Kind(19, "a rank of an elastic job hangs", _hangs),
    Kind(22, "a replacement joins", _replaced),
    Kind(23, "a replacement is killed while it joins", _replacement_dies),
    Kind(24, "the donor of the state is killed", _donor_dies),
    Kind(25, "two ranks of an elastic job are killed at once", _two_at_once),
    Kind(26, "a rank is killed between a step's last collective and its update", _before_commit),
)


@functools.lru_cache
def _undisturbed(program, training):
    """The SHA-256 of the training in one process."""
    ended = subprocess.run([program, *training], capture_output=True, text=True, check=True)
    return _hash_in(ended.stdout)


def _hash_in(text):
    found = re.search(r"hash ([0-9a-f]{64})", text)
    return found[1] if found else "none"


@dataclasses.dataclass(frozen=True)
class Verdict:
    seconds: float
    complaints: list
    text: str
    seed: int


def attempt(kind, programs, seed):
    """Runs the job that follows from the seed, and judges its end."""
    chance = random.Random(seed)
    model = chance.choice(MODELS)
    schedule = kind.schedule(chance)
    optimizer = chance.choice(OPTIMIZERS)
    # In the update of a sharded optimizer, a rank that hangs has got as far as those that wait.
    if any(":update:" in fault and fault.endswith(":hang") for fault in schedule.faults):
        optimizer = ()
    training = (f"model={model}", *optimizer)
    expected = _undisturbed(programs.elastic, training)
    command = [programs.lockstep, "run", "-n", str(schedule.ranks), "--elastic",
               f"1:{schedule.ranks}", "--hang-timeout", str(HANG_TIMEOUT), "--", programs.elastic,
               *training, *schedule.faults]
    with tempfile.TemporaryDirectory(prefix="lockstep-chaos-") as folder:
        with Job(command, folder) as job:
            began = time.monotonic()
            ended = job.end(WITHIN + START)
            seconds = (ended or time.monotonic()) - began
            complaints = [] if ended else [f"did not end within {seconds:.0f} s"]
            if ended and job.code != 0:
                complaints.append(f"exit code {job.code}")
            if ended and _hash_in(job.text) != expected:
                complaints.append(f"SHA-256 {_hash_in(job.text)} instead of {expected}")
            complaints += [f"nothing says {pattern!r}" for pattern in schedule.says
                           if not job.find(pattern)]
            complaints += job.left_behind()
            return Verdict(seconds, complaints, f"{' '.join(command)}\n{job.text}", seed)
