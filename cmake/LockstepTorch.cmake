# SPDX-License-Identifier: BSD-3-Clause
# Finds libtorch and identifies its build. Used by the build and by the installed package, which
# must find the same libtorch again.

include(${CMAKE_CURRENT_LIST_DIR}/LockstepCudaTorch.cmake)

# Sets `out` to the folder of the TorchConfig.cmake that the user named with Torch_DIR or
# CMAKE_PREFIX_PATH, as variables of CMake or of the environment; to the empty string if none is
# named.
function(lockstep_named_torch out)
  foreach(dir "${Torch_DIR}" "$ENV{Torch_DIR}")
    if(EXISTS "${dir}/TorchConfig.cmake")
      set(${out} ${dir} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  string(REPLACE ":" ";" environment_prefixes "$ENV{CMAKE_PREFIX_PATH}")
  foreach(prefix ${Torch_ROOT} $ENV{Torch_ROOT} ${CMAKE_PREFIX_PATH} ${environment_prefixes})
    foreach(suffix share/cmake lib/cmake lib/${CMAKE_LIBRARY_ARCHITECTURE}/cmake cmake .)
      if(EXISTS ${prefix}/${suffix}/Torch/TorchConfig.cmake)
        get_filename_component(dir ${prefix}/${suffix}/Torch ABSOLUTE)
        set(${out} ${dir} PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
  set(${out} "" PARENT_SCOPE)
endfunction()

# The version of the libtorch in this folder, read without loading it.
function(lockstep_torch_version dir out)
  include(${dir}/TorchConfigVersion.cmake)
  set(${out} ${PACKAGE_VERSION} PARENT_SCOPE)
endfunction()

# Loads the libtorch in this folder, for the whole project. A project that has called
# find_package(Torch) itself keeps what it found. TorchConfig.cmake looks for libc10 in the system's
# folders before its own: with two libtorches on one machine a program would link against both, and
# crash at startup. So its own root goes first.
macro(lockstep_load_torch dir)
  set(Torch_DIR ${dir} CACHE PATH "The folder of TorchConfig.cmake" FORCE)
  get_filename_component(_lockstep_torch_root ${dir}/../../.. ABSOLUTE)
  if(EXISTS ${_lockstep_torch_root}/lib/libtorch_cuda.so AND NOT TARGET torch)
    lockstep_import_cuda_torch(${_lockstep_torch_root})
  else()
    set(_lockstep_prefix_path ${CMAKE_PREFIX_PATH})
    if(EXISTS ${_lockstep_torch_root}/lib/libc10.so)
      list(PREPEND CMAKE_PREFIX_PATH ${_lockstep_torch_root})
      if(c10_LIBRARY AND NOT c10_LIBRARY MATCHES "^${_lockstep_torch_root}/")
        unset(c10_LIBRARY CACHE)
        unset(TORCH_LIBRARY CACHE)
      endif()
      # TorchConfig.cmake warns that it does not find Kineto, which is within libtorch_cpu.so. It looks
      # for nothing that it has been told, and links libc10 anyway.
      if(NOT kineto_LIBRARY)
        set(kineto_LIBRARY ${_lockstep_torch_root}/lib/libc10.so CACHE INTERNAL "")
      endif()
    endif()
    set(_lockstep_targets_global ${CMAKE_FIND_PACKAGE_TARGETS_GLOBAL})
    set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ON)
    find_package(Torch REQUIRED)
    set(CMAKE_FIND_PACKAGE_TARGETS_GLOBAL ${_lockstep_targets_global})
    set(CMAKE_PREFIX_PATH ${_lockstep_prefix_path})
    set(LOCKSTEP_TORCH_HAS_CUDA FALSE)
    if(TARGET torch_cuda)
      set(LOCKSTEP_TORCH_HAS_CUDA TRUE)
    endif()
  endif()
endmacro()

# What code built with the loaded libtorch depends on besides its version: `cuda` is a version, or
# "none"; `abi` is 1 for the C++11 ABI, else 0.
function(lockstep_torch_binding cuda abi)
  set(version none)
  if(LOCKSTEP_TORCH_HAS_CUDA)
    # That of libtorch, whichever toolkit this machine has.
    set(version "${CUDA_VERSION}")
    if(EXISTS ${TORCH_INSTALL_PREFIX}/lib/libc10_cuda.so)
      lockstep_cuda_runtime(${TORCH_INSTALL_PREFIX}/lib version runtime)
    endif()
  endif()
  set(${cuda} "${version}" PARENT_SCOPE)
  set(options "${TORCH_CXX_FLAGS}")
  if(TARGET torch)
    get_target_property(target_options torch INTERFACE_COMPILE_OPTIONS)
    list(APPEND options ${target_options})
  endif()
  set(${abi} 1 PARENT_SCOPE)
  if(options MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
    set(${abi} 0 PARENT_SCOPE)
  endif()
endfunction()
