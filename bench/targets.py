# SPDX-License-Identifier: BSD-3-Clause
"""The targets of Lockstep, and whether it reaches them."""

from dataclasses import dataclass

from measurements import (SIZES, SIZES_ON_HOSTS, Figure, all_reduce, all_reduce_on_hosts, epoch,
                          lockstep_launch, recovery, replicas, step, step_on_hosts, step_with,
                          torchrun_launch)
from rules import AtLeast, AtMost, AtMostOf, Longer, NoTarget, TimesAsFast


@dataclass(frozen=True)
class Target:
    part: str  # for --only
    what: str
    own: Figure
    peer: Figure | None
    rule: object


PARTS = ("all-reduce", "ordinary", "floor", "pytorch", "one-rank", "optimizer", "microbatches",
         "dp", "hosts", "launch", "recovery")


def targets(names):
    """All targets, in the table's order. `names`: the displayed name of each program."""
    return [*_all_reduce(names), *_ordinary(names), *_floor(), *_pytorch(names), *_one_rank(),
            *_optimizer(names), *_microbatches(), *_dp(), *_hosts(names), *_launch(names),
            *_recovery(names)]


def _all_reduce(names):
    part = "all-reduce"
    for size in ("4 MiB", "25 MiB", "100 MiB"):
        yield Target(part, f"all-reduce {size}, of the memory's bound",
                     all_reduce("lockstep", size, "percent_of_bound"), None, AtLeast(80, "%"))
    yield Target(part, "all-reduce 1 KiB", all_reduce("lockstep", "1 KiB"), None, AtMost(3, "us"))
    yield Target(part, "all-reduce 1 KiB, 4 ranks on 2 cores",
                 all_reduce("lockstep", "1 KiB", ranks=4), None, AtMost(10 * 3, "us"))
    for peer in ("pip", "system"):
        for size in SIZES:
            yield Target(part, f"all-reduce {size}; Gloo of {names[peer]}",
                         all_reduce("lockstep", size), all_reduce(peer, size), TimesAsFast(8))
    for size in SIZES:
        yield Target(part, f"all-reduce {size}; {names['mpi']}", all_reduce("lockstep", size),
                     all_reduce("mpi", size), TimesAsFast(1 if size == "1 KiB" else 3))


def _ordinary(names):
    for peer in ("pip", "system"):
        for size in SIZES:
            yield Target("ordinary", f"all-reduce {size}, ordinary tensor; Gloo of {names[peer]}",
                         all_reduce("lockstep", size, ordinary=True), all_reduce(peer, size),
                         TimesAsFast(3))


def _zeroed(set_to_none):
    return "gradients reset to none" if set_to_none else "gradients zeroed in place"


def _floor():
    for set_to_none, more in ((False, 0), (True, 3)):
        for model, microseconds, percent in (("linear", 4, 0), ("mlp", 0, 5), ("resnet18", 0, 5),
                                             ("mlp25m", 0, 8)):
            yield Target("floor", f"DDP step {model}, {_zeroed(set_to_none)}; the floor",
                         step("lockstep", model, set_to_none),
                         step("lockstep", model, set_to_none, mode="floor"),
                         Longer(microseconds=microseconds, percent=percent + more))
    # The buckets take the place of the gradients; a second copy of these would be a third more.
    yield Target("floor", f"memory at most, DDP step mlp25m, {_zeroed(False)}; without DDP",
                 step("lockstep", "mlp25m", False, field="peak_mb"),
                 step("lockstep", "mlp25m", False, mode="single", field="peak_mb"),
                 Longer(percent=15))


def _pytorch(names):
    wanted = {"linear": TimesAsFast(8), "mlp": TimesAsFast(2.2), "resnet18": NoTarget(),
              "mlp25m": TimesAsFast(1.3)}
    # The targets are about Python's current release.
    for peer, set_to_none in (("pip", False), ("pip", True), ("system", False)):
        for model, rule in wanted.items():
            yield Target("pytorch", f"DDP step {model}, {_zeroed(set_to_none)}; {names[peer]}",
                         step("lockstep", model, set_to_none), step(peer, model, set_to_none),
                         rule if peer == "pip" else NoTarget())


def _one_rank():
    yield Target("one-rank", "DDP step mlp with one rank; without DDP",
                 step("lockstep", "mlp", False, ranks=1),
                 step("lockstep", "mlp", False, mode="single", ranks=1), Longer(percent=2))


def _optimizer(names):
    limits = {"mlp": (0.87, 1.05, 3), "mlp25m-adam": (0.8, 0.98, 1.45)}
    for model, (of_torch, of_fused, times) in limits.items():
        for kind, what in (("sharded", "sharded Adam"),
                           ("divided", "sharded Adam, divided gradients")):
            own = step_with(kind, model)
            yield Target("optimizer", f"DDP step {model}, {what}; the floor with libtorch's Adam",
                         own, step_with("torch", model, "floor"), AtMostOf(of_torch))
            yield Target("optimizer", f"DDP step {model}, {what}; the floor with a fused Adam",
                         own, step_with("fused", model, "floor"), AtMostOf(of_fused))
            yield Target("optimizer", f"DDP step {model}, {what}; {names['pip']}, fused=True",
                         own, step_with("peer", model), TimesAsFast(times))
        yield Target("optimizer", f"DDP step {model}, fused Adam, not sharded; its floor",
                     step_with("fused", model), step_with("fused", model, "floor"), NoTarget())
    for model, limit in (("mlp", 0.97), ("mlp25m-adam", 1)):
        yield Target("optimizer", f"DDP step {model}, one copy of the parameters; sharded Adam",
                     step_with("one-copy", model), step_with("sharded", model), AtMostOf(limit))


def _microbatches():
    for recipe in ("mlp", "cnn"):
        yield Target("microbatches", f"epoch {recipe}, a microbatch for each of 2 ranks; ordinary "
                     "batches", epoch(recipe, 2), epoch(recipe, 0), Longer(percent=3))


def _dp():
    for model, batch, times in (("mlp", 512, 1.7), ("mlp", 64, 1), ("cnn", 64, 1.8),
                                ("resnet18", 64, 1.8)):
        own = replicas(model, batch)
        yield Target("dp", f"DP step {model}, batch {batch}, 2 replicas; one thread",
                     own, replicas(model, batch, "single"), TimesAsFast(times))
        yield Target("dp", f"DP step {model}, batch {batch}, 2 replicas; two intra-op threads",
                     own, replicas(model, batch, "single", threads=2), NoTarget())
        yield Target("dp", f"DP step {model}, batch {batch}, 2 replicas; the floor of half that "
                     "batch", own,
                     step("lockstep", model, False, mode="floor", batch=batch // 2), NoTarget())
    yield Target("dp", "DP step cnn, batch 64, 2 replicas; DDP with 2 ranks",
                 replicas("cnn", 64), step("lockstep", "cnn", False, batch=32),
                 Longer(percent=5))


def _hosts(names):
    """The targets between hosts, at 1 Gbit/s."""
    for model in ("mlp", "mlp25m"):
        yield Target("hosts", f"DDP step {model}, 2 hosts x 2 ranks, hierarchical; Gloo of "
                     f"{names['pip']}", step_on_hosts("lockstep", model),
                     step_on_hosts("pip", model), TimesAsFast(2))
    for backend, peer in (("gloo", "pip"), ("mpi", "mpi")):
        for size in SIZES_ON_HOSTS:
            yield Target("hosts", f"all-reduce {size}, 2 hosts x 1 rank, {backend}; "
                         f"{names[peer]}", all_reduce_on_hosts("lockstep", size, backend),
                         all_reduce_on_hosts(peer, size), Longer(percent=5))


def _launch(names):
    yield Target("launch", f"run -n 2 true; torchrun of {names['pip']}", lockstep_launch(),
                 torchrun_launch("pip"), AtMost(30, "ms"))


def _recovery(names):
    for ranks, limit in ((2, 100), (4, 100), (8, 300)):
        own = recovery("lockstep", ranks)
        what = f"{ranks} ranks, one killed: until the others commit a step"
        yield Target("recovery", what, own, None, AtMost(limit, "ms"))
        yield Target("recovery", f"{what}; torchrun of {names['pip']}, a checkpoint at each step",
                     own, recovery("pip", ranks), TimesAsFast(20))
        yield Target("recovery", f"{ranks} ranks, one killed: until as many commit a step; the "
                     "same torchrun", recovery("lockstep", ranks, "all_ms"),
                     recovery("pip", ranks, "all_ms"), NoTarget())
