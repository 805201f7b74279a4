#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Tunes a recipe with Optuna's command line: each trial asks for settings, trains, and tells the loss.
#
#   pip install optuna==5.0.0
#   examples/tune/study.sh [TRIALS]      TRIALS of `linear`, by default 8, kept in study.db
set -euo pipefail
lockstep=${LOCKSTEP:-lockstep}
export PYTHONWARNINGS=ignore  # the command line is experimental, says Optuna
export OPTUNA_STORAGE=${OPTUNA_STORAGE:-sqlite:///study.db}
space='{"lr": {"name": "FloatDistribution", "attributes": {"low": 1e-4, "high": 0.3, "log": true}},
  "batch_size": {"name": "CategoricalDistribution", "attributes": {"choices": [16, 32, 64]}}}'
as_settings='import json, sys
trial = json.load(sys.stdin)
print(trial["number"], *(f"--set={key}={value}" for key, value in trial["params"].items()))'

optuna -q create-study --study-name linear --direction minimize --skip-if-exists >/dev/null
for _ in $(seq "${1:-8}"); do
  read -ra asked < <(optuna -q ask --study-name linear --search-space "$space" --format json |
    python3 -c "$as_settings")
  result=$("$lockstep" train linear --epochs 2 --device cpu --json --check-finite "${asked[@]:1}" 2>/dev/null) && code=0 || code=$?
  ((code <= 1)) || { echo "$lockstep ended with exit code $code: $result" >&2 && exit 1; }
  told=(--state fail)
  ((code != 0)) || told=(--values "$(python3 -c 'import json, sys; print(json.load(sys.stdin)["loss"])' <<<"$result")")
  optuna -q tell --study-name linear --trial-number "${asked[0]}" "${told[@]}"
  echo "trial ${asked[*]}: ${told[1]}"
done
optuna -q best-trial --study-name linear --format json
