# SPDX-License-Identifier: BSD-3-Clause
# Finds libtorch, in this order: what the user named (Torch_DIR, CMAKE_PREFIX_PATH), a torch that
# python3 can import, the system's libtorch-dev. Sets what TorchConfig.cmake sets, and
# LOCKSTEP_TORCH_ROOT, the folder that holds this libtorch.

if(NOT Torch_DIR)
  find_package(Torch QUIET NO_DEFAULT_PATH PATHS ${CMAKE_PREFIX_PATH} $ENV{CMAKE_PREFIX_PATH})
endif()
if(NOT Torch_DIR)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_EXECUTABLE)
    execute_process(
      COMMAND ${Python3_EXECUTABLE} -c "import torch, os; print(os.path.dirname(torch.__file__))"
      OUTPUT_VARIABLE _lockstep_python_torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    if(_lockstep_python_torch)
      set(Torch_DIR ${_lockstep_python_torch}/share/cmake/Torch CACHE PATH "libtorch's CMake files")
    endif()
  endif()
endif()

# TorchConfig.cmake looks for libc10 in the system's folders before its own: with two libtorches on
# one machine a program would link against both, and die at start. Its own root goes first.
if(Torch_DIR)
  get_filename_component(LOCKSTEP_TORCH_ROOT ${Torch_DIR}/../../.. ABSOLUTE)
  if(EXISTS ${LOCKSTEP_TORCH_ROOT}/lib/libc10.so)
    list(PREPEND CMAKE_PREFIX_PATH ${LOCKSTEP_TORCH_ROOT})
  endif()
endif()
find_package(Torch 1.13 REQUIRED)
get_filename_component(LOCKSTEP_TORCH_ROOT ${Torch_DIR}/../../.. ABSOLUTE)
message(STATUS "libtorch ${Torch_VERSION} in ${Torch_DIR}")
