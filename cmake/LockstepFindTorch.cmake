# SPDX-License-Identifier: BSD-3-Clause
# Finds the libtorch that Lockstep is built with, in this order: what the user named, a torch that
# python3 can import, the system's. Sets what TorchConfig.cmake sets, and LOCKSTEP_TORCH_VERSION,
# LOCKSTEP_TORCH_CUDA and LOCKSTEP_TORCH_ABI.

include(LockstepTorch)

# What the user named and is not there must not be replaced by another.
set(_lockstep_dir "${Torch_DIR}")
if(NOT _lockstep_dir)
  set(_lockstep_dir "$ENV{Torch_DIR}")
endif()
if(_lockstep_dir AND NOT EXISTS "${_lockstep_dir}/TorchConfig.cmake")
  message(FATAL_ERROR
    "Torch_DIR is ${_lockstep_dir}, where no TorchConfig.cmake is. Name the folder of that file, or "
    "unset Torch_DIR (cmake -U Torch_DIR) and use -DCMAKE_PREFIX_PATH=/path/to/libtorch")
endif()
lockstep_named_torch(_lockstep_torch_dir)
if(NOT _lockstep_torch_dir)
  find_program(LOCKSTEP_PYTHON python3)
  if(LOCKSTEP_PYTHON)
    execute_process(
      COMMAND ${LOCKSTEP_PYTHON} -c "import importlib.util as u; print(u.find_spec('torch').origin)"
      OUTPUT_VARIABLE _lockstep_python_torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    get_filename_component(_lockstep_python_torch "${_lockstep_python_torch}" DIRECTORY)
    if(EXISTS "${_lockstep_python_torch}/share/cmake/Torch/TorchConfig.cmake")
      set(_lockstep_torch_dir ${_lockstep_python_torch}/share/cmake/Torch)
      # Nobody named this one, so another will do.
      lockstep_torch_fault(${_lockstep_torch_dir} _lockstep_torch_fault)
      if(_lockstep_torch_fault)
        message(STATUS "${_lockstep_torch_fault}")
        set(_lockstep_torch_dir "")
      endif()
    endif()
  endif()
endif()
if(NOT _lockstep_torch_dir)
  foreach(_lockstep_prefix ${CMAKE_SYSTEM_PREFIX_PATH})
    set(_lockstep_dir ${_lockstep_prefix}/lib/${CMAKE_LIBRARY_ARCHITECTURE}/cmake/Torch)
    if(EXISTS ${_lockstep_dir}/TorchConfig.cmake)
      set(_lockstep_torch_dir ${_lockstep_dir})
      break()
    endif()
  endforeach()
endif()
if(NOT _lockstep_torch_dir)
  message(FATAL_ERROR
    "Lockstep needs libtorch 1.13 or newer, and found none. Install it (Debian: apt-get install "
    "libtorch-dev libopenblas0-pthread; any system: pip install torch), or name an unpacked one: "
    "-DCMAKE_PREFIX_PATH=/path/to/libtorch")
endif()

lockstep_torch_version(${_lockstep_torch_dir} LOCKSTEP_TORCH_VERSION)
if(LOCKSTEP_TORCH_VERSION VERSION_LESS 1.13)
  message(FATAL_ERROR
    "Lockstep needs libtorch 1.13 or newer; ${_lockstep_torch_dir} is ${LOCKSTEP_TORCH_VERSION}. "
    "Name another: -DCMAKE_PREFIX_PATH=/path/to/libtorch")
endif()
lockstep_torch_fault(${_lockstep_torch_dir} _lockstep_torch_fault)
if(_lockstep_torch_fault)
  message(FATAL_ERROR "${_lockstep_torch_fault}")
endif()
lockstep_load_torch(${_lockstep_torch_dir})
lockstep_torch_binding(LOCKSTEP_TORCH_CUDA LOCKSTEP_TORCH_ABI)
if(NOT LOCKSTEP_TORCH_ABI)
  message(FATAL_ERROR
    "The libtorch in ${Torch_DIR} was built with the C++ ABI from before C++11, which this system's "
    "other libraries do not have. Take the archive that says cxx11-abi, or pip's torch 2.7 or newer.")
endif()
message(STATUS
  "libtorch ${LOCKSTEP_TORCH_VERSION}, CUDA: ${LOCKSTEP_TORCH_CUDA}, in ${Torch_DIR}")
if(LOCKSTEP_TORCH_LACKS)
  message(STATUS "libtorch's CUDA part is left out, since this machine lacks ${LOCKSTEP_TORCH_LACKS}")
endif()
