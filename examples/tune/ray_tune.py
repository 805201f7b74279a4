# SPDX-License-Identifier: BSD-3-Clause
"""Tunes a recipe with Ray Tune, whose ASHA scheduler stops bad trials after each epoch.

    pip install 'ray[tune]==2.60.0'
    python3 examples/tune/ray_tune.py [--recipe mlp] [--trials 20] [--ranks 2]

Each trial is a `lockstep train` in a process of its own, with as many cores as it has ranks.
"""
import argparse
import json
import os
import pathlib
import shutil
import subprocess
import time

from ray import tune
from ray.tune.schedulers import ASHAScheduler

parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
parser.add_argument("--lockstep", default=os.environ.get("LOCKSTEP", "lockstep"))
parser.add_argument("--recipe", default="mlp")
parser.add_argument("--trials", type=int, default=20)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--ranks", type=int, default=1)
options = parser.parse_args()
program = shutil.which(options.lockstep)
if program is None:
    parser.error(f"--lockstep {options.lockstep}: there is no such program; give its path")
program = os.path.abspath(program)  # trials run in other folders


def epochs_in(metrics, training):
    """The file's epoch records, as they are written, until training has ended."""
    rest = ""
    with metrics.open() as file:
        while True:
            ended = training.poll() is not None  # before the last read
            *lines, rest = (rest + file.read()).split("\n")  # the last line may be half written
            yield from (r for r in map(json.loads, lines) if r["kind"] == "epoch")
            if ended:
                return
            time.sleep(0.05)


def train(settings):
    metrics = pathlib.Path("metrics.jsonl").absolute()  # in the trial's own folder
    metrics.touch()
    command = [program, "train", options.recipe, f"--metrics={metrics}"]
    command += [f"--epochs={options.epochs}", f"--ranks={options.ranks}"]
    command += [f"--set={key}={value}" for key, value in settings.items()]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as training:
        try:
            for record in epochs_in(metrics, training):
                loss = float("inf") if record["loss"] is None else record["loss"]
                tune.report({"loss": loss, "accuracy": record.get("accuracy")})
        finally:
            training.terminate()  # if the scheduler ends the trial
    if training.returncode != 0:
        raise RuntimeError(f"exit code {training.returncode}: {' '.join(command)}")


tuner = tune.Tuner(
    tune.with_resources(train, {"cpu": options.ranks}),
    param_space={
        "lr": tune.loguniform(1e-4, 0.3),
        "batch_size": tune.choice([16, 32, 64]),
    },
    tune_config=tune.TuneConfig(
        metric="loss",
        mode="min",
        num_samples=options.trials,
        scheduler=ASHAScheduler(max_t=options.epochs),
    ),
)
best = tuner.fit().get_best_result()
print(f"best loss {best.metrics['loss']:.4f} with {best.config}")
