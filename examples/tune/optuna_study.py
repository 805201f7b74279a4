# SPDX-License-Identifier: BSD-3-Clause
"""Tunes a recipe with Optuna's Python API, and stops bad trials after an epoch.

    pip install optuna==5.0.0
    python3 examples/tune/optuna_study.py [--recipe mlp] [--trials 20] [--ranks 2]

Each trial is a `lockstep train` in a process of its own. The study follows its --metrics file: after
each epoch it reports the mean loss, and the pruner decides whether the trial may continue.
"""
import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time

import optuna

parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
parser.add_argument("--lockstep", default=os.environ.get("LOCKSTEP", "lockstep"))
parser.add_argument("--recipe", default="mlp")
parser.add_argument("--trials", type=int, default=20)
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--ranks", type=int, default=1)
options = parser.parse_args()


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


def objective(trial):
    settings = {
        "lr": trial.suggest_float("lr", 1e-4, 0.3, log=True),
        "batch_size": trial.suggest_categorical("batch_size", [16, 32, 64]),
    }
    with tempfile.TemporaryDirectory() as folder:
        metrics = pathlib.Path(folder, "metrics.jsonl")
        metrics.touch()
        output = pathlib.Path(folder, "result.json")  # a pipe that nobody reads would fill up
        command = [options.lockstep, "train", options.recipe, "--json", f"--metrics={metrics}"]
        command += [f"--epochs={options.epochs}", f"--ranks={options.ranks}"]
        command += [f"--set={key}={value}" for key, value in settings.items()]
        with output.open("w") as out, subprocess.Popen(
            command, stdout=out, stderr=subprocess.DEVNULL
        ) as training:
            for record in epochs_in(metrics, training):
                if record["loss"] is None:  # not a number: training has diverged
                    break
                trial.report(record["loss"], record["epoch"])
                if trial.should_prune():
                    break
            else:
                if training.wait() != 0:
                    raise RuntimeError(f"exit code {training.returncode}: {output.read_text()}")
                result = json.loads(output.read_text())
                trial.set_user_attr("accuracy", result.get("accuracy"))
                return result["loss"]
            training.terminate()  # it ends its ranks and exits with 143
            raise optuna.TrialPruned()


study = optuna.create_study(
    direction="minimize", pruner=optuna.pruners.MedianPruner(n_startup_trials=3)
)
study.optimize(objective, n_trials=options.trials)
pruned = sum(t.state == optuna.trial.TrialState.PRUNED for t in study.trials)
print(f"{len(study.trials)} trials, {pruned} pruned; best loss {study.best_value:.4f} with "
      f"{study.best_params}")
