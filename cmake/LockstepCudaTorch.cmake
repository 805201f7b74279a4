# SPDX-License-Identifier: BSD-3-Clause
# A libtorch with CUDA as an imported target of our own. Its TorchConfig.cmake demands the whole CUDA
# toolkit, nvcc included, of which neither Lockstep nor a program that uses it needs anything. Used by
# the build and by the installed package.

# Sets `out` to the libraries that this library needs and the loader does not find, with commas
# between them; to the empty string if it finds all.
function(lockstep_missing_libraries library out)
  find_program(LOCKSTEP_LDD ldd)
  mark_as_advanced(LOCKSTEP_LDD)
  set(missing "")
  if(LOCKSTEP_LDD)
    execute_process(COMMAND ${LOCKSTEP_LDD} ${library} OUTPUT_VARIABLE lines ERROR_QUIET)
    string(REGEX MATCHALL "[^ \t\n]+ => not found" missing "${lines}")
    list(TRANSFORM missing REPLACE " => not found" "")
    list(REMOVE_DUPLICATES missing)
    list(JOIN missing ", " missing)
  endif()
  set(${out} "${missing}" PARENT_SCOPE)
endfunction()

# Sets `out` to the error, with its remedy, for a libtorch in which no program could start; to the
# empty string if it can be used. A libtorch with CUDA wants some of CUDA's libraries even where only
# the CPU is used.
function(lockstep_torch_fault dir out)
  set(${out} "" PARENT_SCOPE)
  get_filename_component(lib ${dir}/../../../lib ABSOLUTE)
  if(NOT EXISTS ${lib}/libtorch_cuda.so)
    return()
  endif()
  lockstep_missing_libraries(${lib}/libtorch_cpu.so missing)
  if(missing)
    set(${out}
      "The libtorch in ${dir} has CUDA and cannot be loaded, since this machine lacks ${missing}. \
Install what it needs (pip install torch, without --no-deps), or the build without CUDA (pip install \
torch --index-url https://download.pytorch.org/whl/cpu), or name another libtorch: \
-DCMAKE_PREFIX_PATH=/path/to/libtorch" PARENT_SCOPE)
  endif()
endfunction()

# Sets `out` to the version in the file name of the CUDA runtime that this folder's libtorch loads,
# such as 13; `runtime` to that name.
function(lockstep_cuda_runtime lib out runtime)
  file(STRINGS ${lib}/libc10_cuda.so name LIMIT_COUNT 1 REGEX "^libcudart[^@]*[.]so[.][0-9.]+$")
  string(REGEX REPLACE "^.*[.]so[.]" "" version "${name}")
  set(${out} "${version}" PARENT_SCOPE)
  set(${runtime} "${name}" PARENT_SCOPE)
endfunction()

# Makes the target lockstep_torch from the libtorch with CUDA in the folder `root`, and sets what
# TorchConfig.cmake would: TORCH_LIBRARIES, TORCH_INCLUDE_DIRS, TORCH_INSTALL_PREFIX and
# TORCH_CXX_FLAGS. The CUDA part is left out if the loader does not find the libraries that it needs,
# which LOCKSTEP_TORCH_LACKS then lists. LOCKSTEP_TORCH_HAS_CUDA says whether the part is there.
function(lockstep_import_cuda_torch root)
  set(lib ${root}/lib)
  set(includes ${root}/include ${root}/include/torch/csrc/api/include)
  # These files alone say how the libraries were compiled.
  file(READ ${root}/share/cmake/Caffe2/Caffe2Targets.cmake targets)
  file(READ ${root}/share/cmake/Torch/TorchConfig.cmake config)
  set(flags "")
  if(config MATCHES "-D_GLIBCXX_USE_CXX11_ABI=[01]")
    set(flags ${CMAKE_MATCH_0})
  endif()
  set(parts torch_cpu)
  set(libraries ${lib}/libtorch_cpu.so ${lib}/libc10.so)
  set(has_cuda FALSE)
  lockstep_missing_libraries(${lib}/libtorch_cuda.so missing)
  if(NOT missing)
    set(has_cuda TRUE)
    list(APPEND parts torch_cuda)
    # A program calls nothing of the CUDA part, which registers itself when it is loaded.
    list(APPEND libraries
      "-Wl,--push-state,--no-as-needed,\"${lib}/libtorch_cuda.so\",--pop-state"
      ${lib}/libc10_cuda.so)
    # For programs that call the CUDA runtime themselves: the one that libtorch uses, whether it is
    # in the archive or in a package beside Python's torch.
    lockstep_cuda_runtime(${lib} version runtime)
    if(runtime)
      file(GLOB runtime ${lib}/${runtime} ${root}/../nvidia/*/lib/${runtime})
      list(APPEND libraries ${runtime})
    endif()
    file(GLOB nvidia_packages ${root}/../nvidia/*/include)
    find_path(LOCKSTEP_CUDA_INCLUDE crt/host_config.h
      HINTS ${nvidia_packages} ENV CUDA_HOME PATHS /usr/local/cuda PATH_SUFFIXES include)
    if(LOCKSTEP_CUDA_INCLUDE)
      list(APPEND includes ${LOCKSTEP_CUDA_INCLUDE} ${nvidia_packages})
      list(REMOVE_DUPLICATES includes)
    endif()
  endif()
  set(definitions "")
  foreach(part IN LISTS parts)
    if(targets MATCHES
       "set_target_properties\\(${part} PROPERTIES[^)]*INTERFACE_COMPILE_DEFINITIONS \"([^\"]*)\"")
      list(APPEND definitions ${CMAKE_MATCH_1})
    endif()
  endforeach()
  if(NOT TARGET lockstep_torch)
    add_library(lockstep_torch INTERFACE IMPORTED GLOBAL)
    target_include_directories(lockstep_torch SYSTEM INTERFACE ${includes})
    target_compile_definitions(lockstep_torch INTERFACE ${definitions})
    target_compile_options(lockstep_torch INTERFACE ${flags})
    target_link_libraries(lockstep_torch INTERFACE ${libraries})
  endif()
  set(TORCH_LIBRARIES lockstep_torch PARENT_SCOPE)
  set(TORCH_INCLUDE_DIRS ${includes} PARENT_SCOPE)
  set(TORCH_INSTALL_PREFIX ${root} PARENT_SCOPE)
  set(TORCH_CXX_FLAGS "${flags}" PARENT_SCOPE)
  set(LOCKSTEP_TORCH_HAS_CUDA ${has_cuda} PARENT_SCOPE)
  set(LOCKSTEP_TORCH_LACKS "${missing}" PARENT_SCOPE)
endfunction()
