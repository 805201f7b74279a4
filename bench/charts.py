# SPDX-License-Identifier: BSD-3-Clause
"""The charts of docs/benchmarks.md, drawn from the outcomes of runs."""

import math

from measurements import SIZES
from svg import Picture

WIDTH = 780
PARTS = {"all-reduce", "floor", "pytorch", "dp", "hosts"}  # of bench/run, that the charts show


def can_draw(outcome):
    """Whether the run measured everything that the charts show."""
    lines = [line for line in outcome.lines if line.part in PARTS]
    return PARTS == {line.part for line in lines} and all(
        isinstance(figure, (int, float)) or figure is None
        for line in lines for figure in (line.lockstep, line.peer))


def ddp_step(outcome):
    """The time of a step over shared memory, beside PyTorch's DDP and the floor."""
    left, right, top, pitch = 110, 520, 76, 58
    models = ("linear", "mlp", "mlp25m", "resnet18")
    bottom = top + pitch * len(models)
    picture = Picture(WIDTH, bottom + 78, "A DDP step: Lockstep beside PyTorch's DDP",
                      "2 ranks on 2 cores, gradients zeroed in place; shorter is better")
    _percent_axis(picture, left, right, top, bottom,
                  "time per step, where PyTorch's DDP takes 100 %")
    for row, model in enumerate(models):
        what = f"DDP step {model}, gradients zeroed in place;"
        peer = outcome.line(f"{what} PyTorch")
        floor = outcome.line(f"{what} the floor")
        y = top + row * pitch + 6
        share = (right - left) / peer.peer
        picture.text(left - 12, y + 25, model, anchor="end", weight=600)
        picture.bar(left, y, peer.lockstep * share, 20, "own")
        picture.bar(left, y + 22, right - left, 20, "peer")
        picture.line(left + floor.peer * share, y - 3, left + floor.peer * share, y + 23, "mark")
        own_end = left + max(peer.lockstep, floor.peer) * share
        picture.text(own_end + 8, y + 15, peer.cells()[1], "own-text", weight=600)
        picture.text(right + 8, y + 37, peer.cells()[2], "muted")
        picture.text(WIDTH - 20, y + 25, f"{peer.ratio} times as fast", anchor="end")
    y = bottom + 64
    picture.bar(left, y - 11, 14, 12, "own")
    picture.text(left + 20, y, "Lockstep")
    picture.bar(left + 100, y - 11, 14, 12, "peer")
    picture.text(left + 120, y, _peer(peer))
    picture.line(left + 252, y - 13, left + 252, y + 3, "mark")
    picture.text(left + 262, y, "the floor: two processes that train alone")
    return picture


def all_reduce(outcome):
    """The time of an all-reduce by size, beside Gloo's and Open MPI's."""
    left, right, top, bottom = 78, 600, 92, 404
    picture = Picture(WIDTH, 464, "An all-reduce over shared memory, Gloo and Open MPI",
                      "2 ranks on 2 cores, float32, summed in place; lower is better. "
                      "Numbers: how many times as fast as Gloo")

    def x_of(size):
        return left + (right - left) * math.log2(size / 1024) / math.log2(100 * 1024)

    def y_of(microseconds):
        return bottom - (bottom - top) * (math.log10(microseconds) + 1) / 6

    for decade, name in enumerate(("0.1 us", "1 us", "10 us", "100 us", "1 ms", "10 ms", "100 ms")):
        y = y_of(10 ** (decade - 1))
        picture.line(left, y, right, y, "axis" if decade == 0 else "grid")
        picture.text(left - 10, y + 4, name, "muted", "end")
    picture.text(20, top - 16, "time per call", "muted")
    for name, size in SIZES.items():
        picture.line(x_of(size), bottom, x_of(size), bottom + 5, "axis")
        picture.text(x_of(size), bottom + 22, name, "muted", "middle")
    picture.text((left + right) / 2, bottom + 46, "size of the tensor", "muted", "middle")
    gloo = [outcome.line(f"all-reduce {name}; Gloo") for name in SIZES]
    mpi = [outcome.line(f"all-reduce {name}; Open MPI") for name in SIZES]
    sizes = list(map(x_of, SIZES.values()))
    picture.path([(x, y_of(line.peer)) for x, line in zip(sizes, mpi)], "other-line")
    picture.text(sizes[1] - 6, y_of(mpi[1].peer) - 8, _peer(mpi[0]), "other", "end")
    picture.path([(x, y_of(line.peer)) for x, line in zip(sizes, gloo)], "peer-line")
    picture.text(right + 14, y_of(gloo[-1].peer) + 4, _peer(gloo[0]))
    points = [(x, y_of(line.lockstep)) for x, line in zip(sizes, gloo)]
    picture.path(points, "own-line")
    for (x, y), line in zip(points, gloo):
        picture.dot(x, y, 4, "own")
        picture.text(x + 5, y + 18, line.ratio, "own-text", size=12)
    picture.text(right + 14, points[-1][1] + 4, "Lockstep", "own-text", weight=600)
    return picture


def all_runs(outcomes):
    """The targets that each run met, among those that require to be N times as fast as a peer."""
    groups = (("DDP, beside PyTorch's DDP", "DDP step {}, gradients zeroed in place; PyTorch",
               ("linear", "mlp", "mlp25m")),
              ("DDP on 2 hosts, beside PyTorch's DDP", "DDP step {}, 2 hosts x 2 ranks",
               ("mlp", "mlp25m")),
              ("DataParallel, beside one thread", "DP step {}, 2 replicas; one thread",
               ("mlp, batch 512", "mlp, batch 64", "cnn, batch 64", "resnet18, batch 64")))
    left, right, top, pitch, gap = 160, 590, 64, 26, 36
    rows = sum(len(models) for _, _, models in groups)
    bottom = top + rows * pitch + len(groups) * gap - 8
    picture = Picture(WIDTH, bottom + 78, f"The targets in {len(outcomes)} runs",
                      "each dot is one run; the machines differ, and some were busy")

    def x_of(times):
        return left + (right - left) * math.log(times / 0.8) / math.log(25 / 0.8)

    marks = (1, 2, 3, 5, 10, 20)
    for times in marks:
        picture.text(x_of(times), bottom + 18, str(times), "muted", "middle")
    picture.text((left + right) / 2, bottom + 38, "times as fast as the peer", "muted", "middle")
    y = top
    for heading, what, models in groups:
        picture.text(20, y + 16, heading, weight=600)
        y += gap
        for times in marks:
            picture.line(x_of(times), y - 12, x_of(times), y + pitch * len(models) - 14, "grid")
        for model in models:
            lines = [outcome.line(what.format(model)) for outcome in outcomes]
            target = _times(lines[0].target)
            picture.text(left - 12, y + 4, model, anchor="end")
            picture.line(x_of(target), y - 10, x_of(target), y + 10, "mark")
            for line in lines:
                style = "own" if line.result == "met" else "missed"
                picture.dot(x_of(float(line.ratio)), y, 5, style)
            ratios = sorted((line.ratio for line in lines), key=float)
            picture.text(right + 16, y + 4, f"{ratios[0]} to {ratios[-1]}; target {target:g}",
                         "muted")
            y += pitch
    y = bottom + 62
    picture.dot(left + 6, y - 4, 5, "own")
    picture.text(left + 18, y, "target met")
    picture.dot(left + 112, y - 4, 5, "missed")
    picture.text(left + 124, y, "missed")
    picture.line(left + 196, y - 14, left + 196, y + 4, "mark")
    picture.text(left + 206, y, "target")
    return picture


def _percent_axis(picture, left, right, top, bottom, title):
    for percent in (0, 25, 50, 75, 100):
        x = left + (right - left) * percent / 100
        picture.line(x, top, x, bottom, "grid" if percent else "axis")
        picture.text(x, bottom + 17, f"{percent} %", "muted", "middle")
    picture.text((left + right) / 2, bottom + 35, title, "muted", "middle")


def _peer(line):
    """The name of what the target compares its figure with."""
    return line.what.partition("; ")[2]


def _times(target):
    return 1 if target == "as fast" else float(target.split()[2])
