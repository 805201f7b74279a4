# SPDX-License-Identifier: BSD-3-Clause
"""The kinds of faults of elastic jobs, by the numbers of docs/faults.md: who is hurt, when and how
follows from random numbers. The subject is tests/train/elastic_program.cpp."""

import contextlib
import dataclasses
import functools
import pathlib
import re
import signal
import typing

from job import NotThere
from machine import FakeClock, memory_limit, small_disk

# Of elastic_program: three epochs of five steps.
STEPS = 15
EPOCHS = 3
STEPS_OF_EPOCH = STEPS // EPOCHS
MOST_RANKS = 4  # there are so many microbatches
HANG_TIMEOUT = 5  # seconds
REPLACEMENTS = 3  # by default
IN_STEP = ("before", "loss", "update", "updated", "after")
ANYWHERE = IN_STEP + ("evaluation", "end")
HUNG = "killed by the launcher, since it made no progress"
# What the launcher says of a member that did so to itself.
ENDS = {"kill": "killed by signal 9", "segv": "killed by signal 11", "exit": "exit code 3",
        "throw": "exit code 1", "stop": HUNG, "hang": HUNG,
        "memory": "killed by the kernel: .*out of memory"}
CODES = {"kill": 137, "segv": 139, "exit": 3, "throw": 1}
CHECKPOINTS = "checkpoints={work}/checkpoints"


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A job, and what must come of it. {work}, in its arguments, is a folder that outlives it."""
    ranks: int
    # For elastic_program: what decides the undisturbed result, and what happens to the members.
    faults: tuple
    training: tuple = ()
    # The least number of ranks, and further options of `lockstep run`.
    least: int = 1
    launcher: tuple = ()
    # What must be said, and what must not be, as regular expressions.
    says: tuple = ()
    never_says: tuple = ()
    code: int = 0
    # Whether the training ends, with the undisturbed result.
    completes: bool = True
    # Hurts the job from outside; of the job and its {work}.
    strike: typing.Callable = None
    # A context manager for {work}, which yields what makes of a command one in other surroundings,
    # and variables of its environment.
    surroundings: typing.Callable = None
    # Whether it may leave files.
    leaves_files: bool = False
    # Of what was said: further complaints.
    judge: typing.Callable = lambda text: []


@dataclasses.dataclass(frozen=True)
class Kind:
    number: int
    name: str
    # Of a random.Random: the Schedules of jobs that follow each other.
    schedules: typing.Callable


def _lost(member, how):
    return rf"member {member} \((rank \d+|a newcomer), pid \d+\) was lost: {ENDS[how]}"


def _step(chance, place="loss", first=1, last=STEPS):
    """A step that gets to the place. In an epoch's last one, some ranks may have no samples."""
    return chance.choice([step for step in range(first, last + 1)
                          if place != "loss" or step % STEPS_OF_EPOCH != 0])


def _place(chance, places=ANYWHERE):
    """Such as "loss:7"."""
    place = chance.choice(places)
    return f"{place}:{_step(chance, place) if place in IN_STEP else chance.randrange(EPOCHS)}"


def _one(chance, hows, places=ANYWHERE, member=None, **more):
    """One member comes to grief."""
    ranks = chance.randint(2, MOST_RANKS)
    if member is None:
        member = chance.randrange(ranks)
    how = chance.choice(hows)
    return [Schedule(ranks, (f"die={member}:{_place(chance, places)}:{how}",),
                     says=(_lost(member, how),), **more)]


def _killed(chance):
    """At one of the places, or at any time of some steps; the last one is held until then."""
    if chance.random() < 0.5:
        return _one(chance, ("kill",))
    ranks = chance.randint(2, MOST_RANKS)
    member = chance.randrange(ranks)
    lost = _lost(member, "kill")
    step = chance.randrange(1, STEPS)
    return [Schedule(ranks, (f"die={member}:before:{step}:kill_after_{chance.randrange(5000)}",
                             f"hold={STEPS}:{{work}}/go"), says=(lost,), strike=_let_go_after(lost))]


@contextlib.contextmanager
def _little_memory(_work):
    with memory_limit(1 << 30) as wrapped:
        yield wrapped, {}


def _let_go_after(pattern):
    """Ends the members' wait for {work}/go once this has been said."""
    def strike(job, work):
        _wait_for(job, pattern)
        pathlib.Path(work, "go").touch()

    return strike


def _two_at_once(chance):
    ranks = chance.randint(3, MOST_RANKS)
    members = chance.sample(range(ranks), 2)
    place = _place(chance, IN_STEP)
    return [Schedule(ranks, tuple(f"die={member}:{place}:kill" for member in members),
                     says=tuple(_lost(member, "kill") for member in members))]


def _replaced(chance, death_of_newcomer=None):
    """The job waits until a replacement trains; or, with such a death, until one has come so far."""
    ranks = chance.randint(2, MOST_RANKS)
    member = chance.randrange(ranks)
    step = _step(chance, last=STEPS - 4)
    wait = chance.randint(step + 2, STEPS - 1)
    faults = [f"die={member}:loss:{step}:kill", f"wait={wait}:2"]
    says = [_lost(member, "kill"), r"member \d+ joins as rank "]
    if death_of_newcomer:
        newcomer = ranks
        faults.append(f"die={newcomer}:{death_of_newcomer}")
        says.append(_lost(newcomer, "kill"))
    return [Schedule(ranks, tuple(faults), says=tuple(says))]


def _replacement_dies(chance):
    """At one of the calls by which it joins the others and gets their state."""
    return _replaced(chance, f"call:{chance.randint(1, 20)}")


def _donor_dies(chance):
    """Once the states have been compared, in the third call of the schedule's function."""
    ranks = chance.randint(3, MOST_RANKS)
    member = chance.randrange(1, ranks)
    return [Schedule(ranks, (f"die={member}:loss:{_step(chance)}:kill", "die=0:schedule:3:kill"),
                     says=(_lost(member, "kill"), _lost(0, "kill")))]


def _corrupt_donor(chance):
    """One survivor has other weights when a replacement needs them."""
    ranks = chance.randint(3, MOST_RANKS)
    lost, corrupt = chance.sample(range(ranks), 2)
    step = _step(chance, first=2, last=STEPS - 4)
    flip = chance.randint(1, step)
    wait = chance.randint(step + 1, STEPS - 1)
    # Of three survivors, two agree. Of two, rank 0 would be the donor.
    named = corrupt - (lost < corrupt) if ranks > 3 else 1
    return [Schedule(ranks, (f"flip={corrupt}:{flip}", f"die={lost}:loss:{step}:kill",
                             f"wait={wait}:2"),
                     says=(_lost(lost, "kill"), f"member {corrupt} before step {flip}: a bit flips",
                           rf"after step \d+, rank {named} has other weights, buffers or optimizer"),
                     never_says=("^.*hash ", "got the state of"), code=1, completes=False)]


def _crash_loop(chance):
    return chance.choice((_newcomers_crash, _newcomers_crash_as_they_join, _job_crashes))(chance)


def _newcomers_crash(chance):
    """Before they join. The others wait until there is no replacement any more."""
    ranks = chance.randint(2, MOST_RANKS)
    member = chance.randrange(ranks)
    how = chance.choice(("kill", "segv", "exit", "throw"))
    step = _step(chance, last=STEPS - 1)
    newcomers = range(ranks, ranks + REPLACEMENTS)
    return [Schedule(ranks, (f"die={member}:loss:{step}:kill", f"hold={step + 1}:{{work}}/go",
                             *(f"die={newcomer}:start:0:{how}" for newcomer in newcomers)),
                     says=(_lost(member, "kill"), *(_lost(newcomer, how) for newcomer in newcomers)),
                     strike=_let_go_after("and no replacement is left"))]


def _newcomers_crash_as_they_join(chance):
    ranks = chance.randint(2, MOST_RANKS)
    member = chance.randrange(ranks)
    step = _step(chance, last=STEPS - 7)
    newcomers = range(ranks, ranks + REPLACEMENTS)
    # A newcomer is let in once the others have made a step in their generation.
    waits = [wait + turn for turn, wait in
             enumerate(sorted(chance.sample(range(step + 2, STEPS - 2), REPLACEMENTS)))]
    return [Schedule(ranks, (f"die={member}:loss:{step}:kill",
                             *(f"wait={wait}:{2 * turn}" for turn, wait in enumerate(waits, 1)),
                             *(f"die={newcomer}:schedule:1:kill" for newcomer in newcomers)),
                     says=(_lost(member, "kill"), "and no replacement is left",
                           *(_lost(newcomer, "kill") for newcomer in newcomers)))]


def _job_crashes(chance):
    """All ranks are needed, so that each loss ends an attempt of the whole job."""
    ranks = chance.randint(2, MOST_RANKS)
    member = chance.randrange(ranks)
    how = chance.choice(tuple(CODES))
    return [Schedule(ranks, (f"die={member}:{_place(chance)}:{how}",), least=ranks,
                     launcher=("--max-restarts", "1"), code=CODES[how], completes=False,
                     says=("gave up after 2 attempts, since --max-restarts 1 is reached",
                           rf"attempt 1: .*rank {member} .* failed first: {ENDS[how]}"))]


def _not_finite(chance):
    ranks = chance.randint(2, MOST_RANKS)
    guilty = chance.randrange(ranks)
    return [Schedule(ranks, (f"nan={guilty}:{_step(chance)}",), code=1,
                     completes=False, never_says=("^.*hash ",),
                     says=tuple(rf"^\[member {member}\] .*the gradient of \S+ is not finite on "
                                rf"rank {guilty};" for member in range(ranks)))]


def _straggler(chance):
    """A microbatch takes it some ten times as long as the others."""
    ranks = chance.randint(2, 3)
    slow = chance.randrange(ranks)

    def judge(text):
        found = re.findall(rf"rank {slow} computes for .*: shares ([\d ]+)", text)
        # Beside busy cores, another one may be as slow.
        for numbers in (list(map(int, shares.split())) for shares in found):
            if numbers[slow] == min(numbers) < max(numbers):
                return []
        return [f"rank {slow} is slow, and the new shares are {found}"]

    # 16 whole steps are measured, of two in each epoch: the others' cores may be busy once.
    return [Schedule(ranks, (f"slow={slow}",), training=("epochs=17", "microbatches=8"),
                     never_says=("was lost",), judge=judge)]


def _wakes_up(chance):
    """A moment before its time is over, or when it is about to be killed."""
    ranks = chance.randint(2, MOST_RANKS)
    member = chance.randrange(ranks)
    timeout = 5
    until = timeout + chance.uniform(-0.2, 0.6)

    def strike(job, _work):
        pid = int(_wait_for(job, rf"member {member} \(process (\d+)\) at .*: stop")[1])
        job.end(until)
        job.signal_process(pid, signal.SIGCONT)

    return [Schedule(ranks, (f"die={member}:{_place(chance, IN_STEP)}:stop",), strike=strike,
                     launcher=("--hang-timeout", str(timeout)))]


@contextlib.contextmanager
def _fake_clock(work):
    clock = FakeClock(work)
    clock.set("+0")
    yield (lambda command: command), clock.environment()


def _clock_jumps(chance):
    """By a year, forth and back, while a rank is lost and replaced."""
    ranks = chance.randint(2, MOST_RANKS)
    member = chance.randrange(ranks)
    how = chance.choice(("kill", "stop"))
    first, lost, last = sorted(chance.sample([step for step in range(1, STEPS)
                                              if step % STEPS_OF_EPOCH != 0], 3))

    def strike(job, work):
        clock = FakeClock(work)
        for step, jump in ((first, "+365d"), (last, "-365d")):
            _wait_for(job, f"holds before step {step}")
            clock.set(jump)
            pathlib.Path(work, f"go_{step}").touch()

    return [Schedule(ranks, (f"die={member}:loss:{lost}:{how}",
                             *(f"hold={step}:{{work}}/go_{step}" for step in (first, last))),
                     launcher=("--hang-timeout", str(HANG_TIMEOUT)), strike=strike,
                     surroundings=_fake_clock, says=(_lost(member, how),))]


@contextlib.contextmanager
def _small_disk(work):
    with small_disk(pathlib.Path(work, "disk"), "2m") as wrapped:
        yield wrapped, {}


def _full_disk(chance):
    """Some checkpoints fail; those before and after do not."""
    ranks = chance.randint(2, MOST_RANKS)
    first = chance.randint(2, STEPS - 5)
    faults = [f"full_disk={first}:{first + 3}", "checkpoints={work}/disk/checkpoints"]
    says = ["a checkpoint was not written, and older ones stay: .*No space left"]
    if chance.random() < 0.5:
        member = chance.randrange(ranks)
        faults.append(f"die={member}:update:{first}:kill")
        says.append(_lost(member, "kill"))
    return [Schedule(ranks, tuple(faults), surroundings=_small_disk, says=tuple(says)),
            Schedule(1, ("checkpoints={work}/disk/checkpoints",), says=("nothing is left to train",))]


def _stopped_from_outside(chance, strike, how="hang", **more):
    """The job is struck while a member hangs somewhere; the next job resumes."""
    ranks = chance.randint(2, MOST_RANKS)
    fault = f"die={chance.randrange(ranks)}:{_place(chance)}:{how}"

    def strike_then(job, _work):
        _wait_for(job, rf"member \d+ \(process \d+\) at .*: {how}")
        strike(job)

    return [Schedule(ranks, (CHECKPOINTS, fault), strike=strike_then, completes=False,
                     never_says=("^lockstep: member", "failed first"), **more),
            Schedule(chance.randint(1, MOST_RANKS), (CHECKPOINTS,))]


def _signalled(number, code):
    return functools.partial(_stopped_from_outside, strike=lambda job: job.signal(number), code=code)


def _interrupted(chance):
    """Once, or twice because a member ignores it."""
    code = 128 + signal.SIGINT
    if chance.random() < 0.5:
        return _signalled(signal.SIGINT, code)(chance)

    def strike(job):
        job.signal(signal.SIGINT)
        job.end(1)  # two at once are one
        job.signal(signal.SIGINT)

    # Longer than the job may take.
    return _stopped_from_outside(chance, strike, "deaf", code=code, launcher=("--stop-grace", "1000"))


def _launcher_killed(chance):
    """Or its keeper, the parent of the ranks."""
    if chance.random() < 0.5:
        return _signalled(signal.SIGKILL, -signal.SIGKILL)(chance)

    def strike(job):
        for pid in job.children():
            job.signal_process(pid, signal.SIGKILL)

    return _stopped_from_outside(chance, strike, code=1, says=("^lockstep: the keeper .* was lost",))


def _killed_whole(chance):
    """What it leaves does not disturb the next job."""
    def strike(job):
        for pid in job.remains():
            job.signal_process(pid, signal.SIGKILL)

    return _stopped_from_outside(chance, strike, code=-signal.SIGKILL, leaves_files=True)


def _wait_for(job, pattern):
    match = job.wait_for(pattern)
    if not match:
        raise NotThere(f"nothing says {pattern!r}, after which to strike")
    return match


WITH_HANG_TIMEOUT = {"launcher": ("--hang-timeout", str(HANG_TIMEOUT))}
KINDS = (
    Kind(1, "a rank of an elastic job throws, or calls exit(3)",
         functools.partial(_one, hows=("throw", "exit"))),
    Kind(2, "SIGKILL to a rank of an elastic job", _killed),
    Kind(3, "a rank of an elastic job takes all memory that a control group allows",
         functools.partial(_one, hows=("memory",), surroundings=_little_memory)),
    Kind(4, "SIGSEGV in a rank of an elastic job", functools.partial(_one, hows=("segv",))),
    Kind(5, "SIGTERM to the launcher of an elastic job",
         _signalled(signal.SIGTERM, 128 + signal.SIGTERM)),
    Kind(6, "SIGINT to the launcher of an elastic job, once or twice", _interrupted),
    Kind(9, "an elastic job was killed with all its processes before", _killed_whole),
    Kind(10, "the disk is full at a checkpoint of an elastic job", _full_disk),
    Kind(14, "a NaN in the loss of a rank of an elastic job", _not_finite),
    Kind(15, "SIGKILL to the launcher of an elastic job, or to its keeper", _launcher_killed),
    Kind(17, "SIGSTOP to a rank of an elastic job",
         functools.partial(_one, hows=("stop",), **WITH_HANG_TIMEOUT)),
    Kind(18, "SIGCONT to a stopped rank about when it is given up", _wakes_up),
    Kind(19, "a rank of an elastic job hangs",
         functools.partial(_one, hows=("hang",), places=IN_STEP, **WITH_HANG_TIMEOUT)),
    Kind(20, "a rank is slow, with balanced loads", _straggler),
    Kind(21, "SIGKILL to rank 0 of an elastic job",
         functools.partial(_one, hows=("kill",), member=0)),
    Kind(22, "a replacement joins", _replaced),
    Kind(23, "a replacement is killed while it joins", _replacement_dies),
    Kind(24, "the donor of the state is killed", _donor_dies),
    Kind(25, "two ranks of an elastic job are killed at once", _two_at_once),
    Kind(26, "a rank is killed between a step's last collective and its update",
         functools.partial(_one, hows=("kill", "segv"), places=("update",))),
    Kind(30, "replacements, or all ranks, crash in a loop", _crash_loop),
    Kind(39, "the wall clock jumps while a rank of an elastic job is lost", _clock_jumps),
    Kind(40, "a bit of a survivor's weights flips before a replacement joins", _corrupt_donor),
)
