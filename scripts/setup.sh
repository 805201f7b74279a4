# SPDX-License-Identifier: BSD-3-Clause
# shellcheck shell=bash disable=SC2119,SC2120
# Set-up that the scripts share: packages, libtorch, compiler, one configured build folder for each
# libtorch. To be sourced; the caller sets `root`, the repository's folder.

# What `--torch=pip` installs, and from which index if the user names one.
pip_torch=${LOCKSTEP_PIP_TORCH:-2.13.0}
torch_index=${LOCKSTEP_TORCH_INDEX:-}
# PyTorch's own index of builds without CUDA, which the general index does not have.
cpu_index=https://download.pytorch.org/whl/cpu
# name_venv: sets pip_venv, a virtual environment that all clones of one user share. Each index has
# its own, since its builds differ.
name_venv() {
  pip_venv=${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/torch-$pip_torch
  [[ -z $torch_index ]] || pip_venv+=-$(cksum <<<"$torch_index" | cut -d ' ' -f 1)
}
name_venv
data_folder=/usr/share/datasets/fashion-mnist

# The number of test slots (see CMakeLists.txt) that ctest fills at a time.
export CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-6}

extra_packages=()
yes=no         # --yes: install without asking
dependencies=  # --dependencies: the folder that gpu-kit made, instead of packages
torch=auto     # --torch: auto, system, pip, or the folder of an unpacked libtorch
preset=release
cmake=cmake
sudo=sudo
((EUID == 0)) && sudo=
passed_over=
torch_folder=  # of TorchConfig.cmake, once it is known
build=         # the build folder, once it is known

say() { printf '==> %s\n' "$*"; }
fail() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 1; }
wrong_use() { printf '%s: %s\n' "${0##*/}" "$*" >&2; exit 2; }

# logged NAME COMMAND...: runs the command quietly; if it fails, shows the end of its log.
logged() {
  local log=$root/build/log/$1.log
  shift
  mkdir -p "${log%/*}"
  "$@" >"$log" 2>&1 </dev/null || { tail -n 30 "$log" >&2; fail "failed: $*
The whole log is in $log"; }
}

# shown NAME COMMAND...: runs the command, shows what it prints and keeps it in a log.
shown() {
  local log=$root/build/log/$1.log
  shift
  mkdir -p "${log%/*}"
  "$@" 2>&1 </dev/null | tee "$log" || fail "failed: $*
The whole log is in $log"
}

# join_values ARGUMENT...: sets `arguments` to them, with "--name value" written as "--name=value".
join_values() {
  arguments=()
  while (($#)); do
    case $1 in
      --) arguments+=("$@"); return ;;
      --torch | --torch-index | --dependencies | --sanitize | --label | --repeat)
        (($# > 1)) || wrong_use "$1 needs a value"
        arguments+=("$1=$2")
        shift
        ;;
      *) arguments+=("$1") ;;
    esac
    shift
  done
}

# option ARGUMENT: takes an option that most scripts know; false for any other.
option() {
  case $1 in
    --yes | -y) yes=yes ;;
    --torch=?*) torch=${1#--torch=} ;;
    --torch-index=?*)
      torch_index=${1#--torch-index=}
      name_venv
      ;;
    --dependencies=?*)
      dependencies=$(cd "${1#--dependencies=}" 2>/dev/null && pwd) && [[ -d $dependencies/usr ]] ||
        wrong_use "$1: no such folder, or scripts/gpu-kit did not make it"
      ;;
    *) return 1 ;;
  esac
}

# --- packages ------------------------------------------------------------------------------------

# missing PACKAGE...: prints the packages that dpkg does not have.
missing() {
  local package installed
  installed=$(dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null |
    sed -n 's/^installed //p' | tr '\n' ' ' || true)
  for package; do
    [[ " $installed" == *" $package "* ]] || echo "$package"
  done
}

# candidate PACKAGE: the version that apt would install, without its epoch; nothing if none.
# apt-cache treats a name that it does not know (g++ while its lists are empty) as a pattern.
candidate() {
  LC_ALL=C apt-cache policy "$1" 2>/dev/null | awk -v package="$1:" '
    /^[^ ]/ { here = $0 == package }
    here && $1 == "Candidate:" && $2 != "(none)" { sub(/^[0-9]+:/, "", $2); print $2 }' || true
}

# at_least VERSION MINIMUM
at_least() { [[ $(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1) == "$2" ]]; }

lists_are_empty() { [[ -z $(find /var/lib/apt/lists -name '*Packages*' -print -quit 2>/dev/null) ]]; }

# is_offered PACKAGE MINIMUM: whether apt has it in this version. A fresh container's package lists
# are empty: then this assumes that it is offered, and the caller's list is made again after apt-get
# update.
is_offered() {
  local version
  version=$(candidate "$1")
  if [[ -n $version ]]; then at_least "$version" "$2"; else lists_are_empty; fi
}

# Asks before anything is installed, unless --yes was given.
ask_to_install() {
  say "missing packages: $*"
  [[ $yes == no ]] || return 0
  local command="${sudo:+$sudo }apt-get install --no-install-recommends $*"
  if [[ ! -t 0 ]]; then
    wrong_use "there is no terminal to ask on. Pass --yes, or run this first:
  $command"
  fi
  local answer
  read -rp "Run '$command'? [Y/n] " answer
  [[ -z $answer || $answer == [yY]* ]] || wrong_use "nothing was installed"
}

# --- libtorch ------------------------------------------------------------------------------------

# The folder of TorchConfig.cmake under the folder of an unpacked libtorch, or of a Python package.
torch_config_in() {
  local folder
  for folder in "$1/share/cmake/Torch" "$1/Torch" "$1" "$1/lib/$(uname -m)-linux-gnu/cmake/Torch"; do
    if [[ -e $folder/TorchConfig.cmake ]]; then
      (cd "$folder" && pwd)
      return
    fi
  done
}

# The libtorch that the user named in the environment, looked up as by CMake.
named_torch() {
  local prefix prefixes
  if [[ -n ${Torch_DIR:-} ]]; then
    torch_config_in "$Torch_DIR"
    return
  fi
  IFS=: read -ra prefixes <<<"${CMAKE_PREFIX_PATH:-}"
  for prefix in "${prefixes[@]}"; do
    [[ -z $prefix ]] || torch_config_in "$prefix" || true
  done | head -n 1
}

# torch_lacks FOLDER: the libraries that the libtorch of this TorchConfig.cmake needs and the loader
# does not find, as after pip install --no-deps. No program could start with it.
torch_lacks() {
  ldd "$1/../../../lib/libtorch_cpu.so" 2>/dev/null | sed -n 's/^[[:space:]]*\(.*\) => not found$/\1/p' |
    paste -sd ' ' || true
}

# A torch that python3 could import. Finding it takes 0.1 s, importing it far longer.
python_torch() {
  local init
  init=$(python3 -c 'import importlib.util as u; print(u.find_spec("torch").origin)' 2>/dev/null) ||
    return 0
  torch_config_in "${init%/*}"
}

# Whether libtorch-dev is installed or can be, and is new enough.
system_has_torch() {
  local version
  version=$(dpkg-query --show --showformat '${Version}' libtorch-dev 2>/dev/null || true)
  if [[ -n $version ]]; then at_least "$version" 1.13; else is_offered libtorch-dev 1.13; fi
}

# Decides which libtorch to use: sets torch_kind, torch_folder (not yet for what must be installed
# first) and torch_packages, the packages that it needs. passed_over is a torch of python3 that cannot
# be loaded.
choose_torch() {
  torch_packages=()
  passed_over=
  case $torch in
    auto)
      torch_folder=$(named_torch)
      torch_kind=named
      [[ -n $torch_folder || -z ${Torch_DIR:-} ]] ||
        wrong_use "Torch_DIR=$Torch_DIR: no TorchConfig.cmake there"
      if [[ -z $torch_folder ]]; then
        torch_folder=$(python_torch)
        torch_kind=python
        if [[ -n $torch_folder && -n $(torch_lacks "$torch_folder") ]]; then
          passed_over=$torch_folder
          torch_folder=
        fi
      fi
      if [[ -z $torch_folder ]]; then
        torch_kind=system
        system_has_torch || torch_kind=pip
      fi
      ;;
    system | pip) torch_kind=$torch ;;
    *)
      torch_kind=path
      [[ -d $torch ]] || wrong_use "--torch=$torch: it is pip, system, or the folder of a libtorch"
      torch_folder=$(torch_config_in "$torch")
      [[ -n $torch_folder ]] || wrong_use "--torch=$torch: no share/cmake/Torch/TorchConfig.cmake there"
      ;;
  esac
  case $torch_kind in
    # Debian's default BLAS is 25 times slower than this one.
    system) torch_packages=(libtorch-dev libopenblas0-pthread) ;;
    pip) needs_venv ;;
  esac
}

# The packages without which python3 cannot make a virtual environment.
needs_venv() {
  [[ ! -e $pip_venv/complete ]] || return 0
  command -v python3 >/dev/null || torch_packages+=(python3)
  python3 -c 'import ensurepip, venv' 2>/dev/null || torch_packages+=(python3-venv)
}

# in_venv PACKAGE...: pip-installs them in the virtual environment.
in_venv() {
  mkdir -p "$pip_venv"
  [[ -e $pip_venv/bin/pip ]] || logged venv python3 -m venv "$pip_venv"
  # Without --no-compile, it would also compile all of torch to byte code, which few tests import.
  "$pip_venv/bin/pip" install --disable-pip-version-check --no-compile "$@"
}

# pip's torch, from the index that the user named. Without one: on a machine with CUDA's compiler the
# build that pip prefers; else the one without CUDA, a fifteenth as large with all that it needs, as
# this machine's pip offers it or as PyTorch's index does.
install_pip_torch() {
  if [[ -n $torch_index ]]; then
    in_venv --index-url "$torch_index" "torch==$pip_torch" && return
  elif [[ $pip_torch == *+* ]] || command -v nvcc >/dev/null; then
    in_venv "torch==$pip_torch" && return
  else
    in_venv "torch==$pip_torch+cpu" && return
    say "this machine's pip offers no torch $pip_torch without CUDA; asking $cpu_index"
    in_venv --extra-index-url "$cpu_index" "torch==$pip_torch+cpu" && return
  fi
  echo "pip did not get torch $pip_torch. Name an index that has it (--torch-index=URL), or another
libtorch (--torch=system or --torch=PATH)."
  return 1
}

# Once the packages are installed: installs pip's torch if wanted, and sets torch_folder.
prepare_torch() {
  if [[ $torch_kind == system ]]; then
    torch_folder=$(torch_config_in /usr)
  elif [[ $torch_kind == pip ]]; then
    if [[ ! -e $pip_venv/complete ]]; then
      say "installing torch $pip_torch in $pip_venv"
      mkdir -p "${pip_venv%/*}"
      (
        flock 9
        [[ -e $pip_venv/complete ]] && exit
        shown pip-install install_pip_torch && touch "$pip_venv/complete"
      ) 9>"$pip_venv.lock"
    fi
    local folder
    for folder in "$pip_venv"/lib/python3*/site-packages/torch; do
      torch_folder=$(torch_config_in "$folder")
    done
  fi
  [[ -n $torch_folder ]] || fail "no libtorch was found for --torch=$torch"
  [[ -z $passed_over ]] ||
    say "not taken: the torch in $passed_over, which lacks $(torch_lacks "$passed_over")"
  local lacks
  lacks=$(torch_lacks "$torch_folder")
  [[ -z $lacks ]] || fail "the libtorch in $torch_folder cannot be loaded: this machine lacks $lacks
Install what it needs (pip install torch, without --no-deps), or choose another (--torch=pip,
--torch=system or --torch=PATH)."
}

# --- compiler and CMake ---------------------------------------------------------------------------

# A C++20 compiler: $CXX, g++ if it is 12 or newer, or one with its version in its name.
choose_compiler() {
  compiler=${CXX:-}
  [[ -z $compiler ]] || return 0
  hash -r
  local name version
  for name in g++ g++-15 g++-14 g++-13 g++-12; do
    version=$("$name" -dumpversion 2>/dev/null) || continue
    if ((${version%%.*} >= 12)); then
      compiler=$name
      return 0
    fi
  done
  return 1
}

choose_cmake() {
  local found
  for found in cmake "$root/build/venv/bin/cmake"; do
    if at_least "$("$found" --version 2>/dev/null | sed -n 's/^cmake version //p' | grep . || echo 0)" \
      3.25; then
      cmake=$found
      return 0
    fi
  done
  return 1
}

# --- all of it ------------------------------------------------------------------------------------

# Sets `packages` to what must be installed, and torch_kind and torch_folder.
list_missing() {
  choose_torch
  local wanted=(libcli11-dev nlohmann-json3-dev libfmt-dev libgtest-dev libgmock-dev zlib1g-dev
    libsodium-dev libgloo-dev libjpeg-dev libpng-dev libopenmpi-dev openmpi-bin iproute2
    dataset-fashion-mnist libjs-chart.js "${torch_packages[@]}" "${extra_packages[@]}")
  packages=()
  if command -v dpkg-query >/dev/null; then
    mapfile -t packages < <(missing "${wanted[@]}")
  else
    say "this is not Debian: make sure that you have what Debian calls ${wanted[*]}"
  fi
  # Programs need not come from packages.
  local program
  for program in git:git ninja:ninja-build ccache:ccache; do
    command -v "${program%:*}" >/dev/null || packages+=("${program#*:}")
  done
  if ! choose_compiler; then
    if is_offered g++ 12; then packages+=(g++); else packages+=(g++-12); fi
  fi
  if ! choose_cmake; then
    if is_offered cmake 3.25; then
      packages+=(cmake)
    elif ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
      packages+=(python3 python3-venv)
    fi
  fi
}

# Takes compiled libraries, headers and data from the folder that gpu-kit made.
use_dependencies() {
  local triplet
  triplet=$(uname -m)-linux-gnu
  export CPATH=$dependencies/usr/include${CPATH:+:$CPATH}
  export LIBRARY_PATH=$dependencies/usr/lib/$triplet${LIBRARY_PATH:+:$LIBRARY_PATH}
  export LD_LIBRARY_PATH=$dependencies/usr/lib/$triplet${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  data_folder=$dependencies$data_folder
  choose_torch
  { [[ $torch_kind != pip || -e $pip_venv/complete ]] &&
    [[ $torch_kind != system || -n $(torch_config_in /usr) ]]; } ||
    fail "no libtorch here; --dependencies installs none: name one with --torch=PATH"
  export CMAKE_PREFIX_PATH=$dependencies/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}
  choose_compiler || fail "no g++ 12 or newer here; set CXX to a C++20 compiler"
  choose_cmake || fail "no CMake 3.25 or newer here"
  command -v ninja >/dev/null || fail "no ninja here"
}

# Ensures that everything is installed; silently does nothing if it already is.
setup_machine() {
  cd "$root"
  if [[ -n $dependencies ]]; then
    use_dependencies
    prepare_torch
    return
  fi
  list_missing
  if ((${#packages[@]})); then
    command -v apt-get >/dev/null || fail "missing: ${packages[*]}
These are the names of Debian's packages; there is no apt-get here to install them with."
    ask_to_install "${packages[@]}"
    say "reading the lists of packages"
    # An unreachable source need not matter; apt-get install reports it if it does.
    $sudo apt-get update --quiet >/dev/null || true
    list_missing
    shown apt-install $sudo env DEBIAN_FRONTEND=noninteractive \
      apt-get install --yes --quiet --no-install-recommends -o Dpkg::Use-Pty=0 "${packages[@]}"
  fi
  choose_compiler || fail "no g++ 12 or newer here; set CXX to a C++20 compiler"
  if ! choose_cmake; then
    say "installing CMake with pip in build/venv: this system's is older than 3.25"
    logged cmake-venv python3 -m venv build/venv
    logged cmake-install build/venv/bin/pip install 'cmake>=3.25,<4'
    choose_cmake || fail "pip's CMake does not run; see build/log/cmake-install.log"
  fi
  prepare_torch
}

# Makes a build folder for this preset, libtorch and compiler, and configures it again only when
# something that this script decides has changed; Ninja handles the rest. LOCKSTEP_CMAKE_OPTIONS are
# added, such as "-DCMAKE_COMPILE_WARNING_AS_ERROR=ON".
configure() {
  local options
  read -ra options <<<"${LOCKSTEP_CMAKE_OPTIONS:-}"
  local name=$torch_kind
  [[ $name != named && $name != path ]] || name=path-$(cksum <<<"$torch_folder" | cut -d ' ' -f 1)
  name=$preset-$name
  [[ $compiler == g++ ]] || name+=-${compiler##*/}
  build=$root/build/$name
  local settings
  settings="$torch_folder $compiler $(command -v "$cmake") $dependencies ${options[*]}"
  if [[ ! -e $build/build.ninja || $(cat "$build/lockstep-settings" 2>/dev/null) != "$settings" ]]; then
    say "configuring ${build#"$root"/} with the libtorch in $torch_folder"
    logged "configure-$name" "$cmake" --fresh --preset "$preset" -B "$build" \
      -DTorch_DIR="$torch_folder" -DCMAKE_CXX_COMPILER="$compiler" "${options[@]}"
    printf '%s\n' "$settings" >"$build/lockstep-settings"
  fi
}

# build_targets [TARGET...]: builds these targets, or all if none is named.
build_targets() {
  if "$cmake" --build "$build" --target "${@:-all}" -- -n | grep -q 'no work to do'; then return; fi
  say "building ${build#"$root"/}: ${*:-everything}"
  shown "build-${build##*/}" "$cmake" --build "$build" --target "${@:-all}"
}
