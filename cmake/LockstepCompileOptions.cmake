# SPDX-License-Identifier: BSD-3-Clause
# Compile options for every target of this project. Consumers inherit only C++20.

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
  endif()
endif()

# ccache sees through precompiled headers only if it may ignore their time stamps, and shares
# results between build folders only if paths are relative to the sources.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER
      ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${CCACHE_PROGRAM})
endif()

# Builds a target as the project's own: warnings, contraction off (results must not depend on
# which machine fused a multiply-add), sanitizers.
function(lockstep_own_target target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  # -fPIC for programs too: they use the library's precompiled header, which must be compiled with
  # the same flags.
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -ffp-contract=off -fPIC)
  if(CCACHE_PROGRAM AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${target} PRIVATE -fpch-preprocess)
  elseif(CCACHE_PROGRAM)
    target_compile_options(${target} PRIVATE "SHELL:-Xclang -fno-pch-timestamp")
  endif()
  if(LOCKSTEP_SANITIZER STREQUAL "address")
    target_compile_options(${target} PRIVATE -fsanitize=address,undefined -fno-omit-frame-pointer
                                             -fno-sanitize-recover=undefined)
    target_link_options(${target} PRIVATE -fsanitize=address,undefined)
  elseif(LOCKSTEP_SANITIZER STREQUAL "thread")
    target_compile_options(${target} PRIVATE -fsanitize=thread -fno-omit-frame-pointer)
    target_link_options(${target} PRIVATE -fsanitize=thread)
  endif()
  if(NOT LOCKSTEP_SANITIZER)
    return()
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC's manual says that sanitizers cause false warnings; libtorch's headers trigger them.
    target_compile_options(${target} PRIVATE -Wno-maybe-uninitialized)
  else()
    # g++ defines this itself.
    string(TOUPPER ${LOCKSTEP_SANITIZER} sanitizer)
    target_compile_definitions(${target} PRIVATE __SANITIZE_${sanitizer}__=1)
  endif()
endfunction()
