# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2119,SC2154
# The phases of .ci/run and .ci/full: a function each. To be sourced; the caller sets `root`, the
# repository's folder.

# shellcheck source=scripts/setup.sh disable=SC2119
source "$root/scripts/setup.sh"
cd "$root"

export LOCKSTEP_CMAKE_OPTIONS="-DCMAKE_COMPILE_WARNING_AS_ERROR=ON -DLOCKSTEP_WHOLE_TEST_PROGRAMS=ON"
# The phases name their compilers. Python keeps what it compiled, without which importing torch takes
# twice the time.
unset CC CXX CXXFLAGS PYTHONDONTWRITEBYTECODE
# A test fails here, instead of being skipped, if the machine lacks namespaces or a launcher.
export LOCKSTEP_TESTS_NEED_ALL=1
# No two build folders have an object in common, and cache look-ups take a tenth of a build.
export CCACHE_DISABLE=1
# With this Python, tests check what Lockstep writes.
export LOCKSTEP_PYTHON=$pip_venv/bin/python

# --- running phases --------------------------------------------------------------------------------

after_failure=stop  # or go_on
failures=0
outcomes=()  # seconds, outcome and name of each phase

# phase NAME FUNCTION: runs the function in a shell of its own, so that nothing it sets reaches the
# next phase, and notes how it ended.
phase() {
  local name=$1 start=$SECONDS outcome=passed code
  printf '\n### %s (second %d)\n' "$name" "$start"
  # Not `if (...)` nor `(...) ||`: the shell would ignore errexit within.
  set +e
  (set -e; "$2")
  code=$?
  set -e
  if ((code != 0)); then
    outcome="failed ($code)"
    failures=$((failures + 1))
  fi
  outcomes+=("$(printf '%7d  %-12s %s' $((SECONDS - start)) "$outcome" "$name")")
  ((code == 0)) || [[ $after_failure == go_on ]] || exit "$code"
}

print_outcomes() {
  printf '\nseconds  outcome      phase\n'
  printf '%s\n' "${outcomes[@]}"
}

# Runs the command with clang, and with lld, which links in a quarter of the time of GNU ld.
with_clang() {
  CC=clang-16 CXX=clang++-16 \
    LOCKSTEP_CMAKE_OPTIONS="$LOCKSTEP_CMAKE_OPTIONS -DCMAKE_EXE_LINKER_FLAGS=-fuse-ld=lld" "$@"
}

# Runs the command with g++, which with this option does not search its memory for garbage: a tenth
# of its time.
with_gxx() {
  LOCKSTEP_CMAKE_OPTIONS="$LOCKSTEP_CMAKE_OPTIONS -DCMAKE_CXX_FLAGS=--param=ggc-min-heapsize=4000000" \
    "$@"
}

# Chooses the libtorch of --torch=$1 for `configure` in this phase.
use_torch() {
  torch=$1
  setup_machine
}

# --- the gate's phases -----------------------------------------------------------------------------

# What the tests want of pip: torch; programs and Python's readers of what Lockstep writes;
# safetensors, which saves through numpy; NCCL's and CUDA's headers.
install_with_pip() {
  torch_kind=pip prepare_torch &&
    in_venv tensorboard==2.21.0 kubernetes-validate==1.37.0 optuna==5.0.0 &&
    in_venv --no-deps safetensors==0.8.0 numpy==2.4.6 &&
    in_venv --no-deps nvidia-nccl-cu13==2.32.3 nvidia-cuda-runtime==13.5.37 \
      nvidia-cuda-crt==13.5.37 nvidia-cuda-cccl==13.3.5.0.6
}

set_up() {
  option --yes
  # llvm has what turns addresses in the reports of the sanitizers into names.
  extra_packages=(etcd-server etcd-client clang-16 libclang-rt-16-dev lld-16 llvm clang-format-14 shellcheck chromium
    libmpich-dev mpich munge python3-torch python3-venv slurm-client slurmctld slurmd)
  use_torch system
  mkdir -p build/log
  logged pip install_with_pip
}

check_sources() { scripts/check; }

# What reads files and messages of strangers, and what shares memory between ranks.
address_sanitizer_of_readers() {
  LOCKSTEP_CMAKE_OPTIONS+=" -DLOCKSTEP_SANITIZED_LABELS=^(parsing|mapping)\$"
  LOCKSTEP_CMAKE_OPTIONS+=" -DLOCKSTEP_BUILD_CLI=OFF -DLOCKSTEP_BUILD_EXAMPLES=OFF"
  with_clang scripts/test --yes --torch=system --sanitize=address --label='^(parsing|mapping)$'
}

whole_suite() { with_gxx scripts/test --yes --torch=pip -- -E package/subproject; }
