#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# Which torch scripts/setup.sh has pip install, and which libtorch it chooses: with a pip, a loader
# and a python3 of the test's own.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
unset LOCKSTEP_PIP_TORCH LOCKSTEP_TORCH_INDEX Torch_DIR CMAKE_PREFIX_PATH
export XDG_CACHE_HOME=$folder/cache
# shellcheck source=scripts/setup.sh disable=SC2119
source "$root/scripts/setup.sh"

calls=$folder/calls
faults=0
expect() {
  [[ $2 == "$3" ]] || { printf '%s:\n  %s\ninstead of\n  %s\n' "$1" "$2" "$3"; faults=1; }
}

# Has pip succeed only if its arguments match `offered`.
in_venv() {
  echo "$*" >>"$calls"
  [[ $* =~ $offered ]]
}
# shellcheck disable=SC2317
command() {
  [[ ${2:-} != nvcc ]] || { [[ $nvcc == yes ]]; return; }
  builtin command "$@"
}

# installs NAME CALLS: what install_pip_torch asks of pip, one call a line.
installs() {
  : >"$calls"
  local outcome=installed
  install_pip_torch >"$folder/output" || outcome=failed
  expect "$1" "$(cat "$calls")
$outcome" "$2"
}

nvcc=no
offered='torch==2.13.0\+cpu'
installs "pip offers a build without CUDA" "torch==2.13.0+cpu
installed"
offered='download.pytorch.org/whl/cpu'
installs "only PyTorch's index has it" "torch==2.13.0+cpu
--extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu
installed"
offered='torch==2.13.0$'
installs "only a build with CUDA is to be had, which nobody asked for" "torch==2.13.0+cpu
--extra-index-url https://download.pytorch.org/whl/cpu torch==2.13.0+cpu
failed"
nvcc=yes
installs "there is nvcc" "torch==2.13.0
installed"
nvcc=no
before=$pip_venv
option --torch-index=https://example.org/simple
installs "the user names an index" "--index-url https://example.org/simple torch==2.13.0
installed"
[[ $pip_venv != "$before" ]] || expect "the folder of another index" "$pip_venv" "another"

# A torch of python3, which the loader finds complete or not.
mkdir -p "$folder/torch/share/cmake/Torch"
touch "$folder/torch/share/cmake/Torch/TorchConfig.cmake"
python3() { echo "$folder/torch/__init__.py"; }
system_has_torch() { true; }
ldd() { printf '%b' "$loader"; }
loader='\tlibc10.so => /here/libc10.so (0x1)\n'
choose_torch
expect "a torch of python3 that can be loaded" "$torch_kind" python
loader+='\tlibcudart.so.13 => not found\n\tlibcupti.so.13 => not found\n'
choose_torch
expect "a torch of python3 that cannot be loaded" "$torch_kind" system
expect "what it lacks" "$(torch_lacks "$passed_over")" "libcudart.so.13 libcupti.so.13"
exit $faults
