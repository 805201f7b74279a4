# SPDX-License-Identifier: BSD-3-Clause
# Makes folders that look like a libtorch with CUDA from the libtorch without it in TORCH_ROOT, whose
# TorchConfig.cmake fails as the real one does on a machine without the CUDA toolkit. Configures a
# user's project with them, and Lockstep itself.
file(REMOVE_RECURSE ${BINARY})
file(MAKE_DIRECTORY ${BINARY})

# Sets `status` and `out`, the latter in one line, since CMake breaks lines where it likes.
function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE out ERROR_VARIABLE out)
  string(REGEX REPLACE "[ \n]+" " " out "${out}")
  set(status ${status} PARENT_SCOPE)
  set(out "${out}" PARENT_SCOPE)
endfunction()

function(must_run what)
  run(${ARGN})
  if(NOT status EQUAL 0)
    message(FATAL_ERROR "${what}:\n${out}")
  endif()
  set(out "${out}" PARENT_SCOPE)
endfunction()

function(expect part what)
  if(NOT out MATCHES "${part}")
    message(FATAL_ERROR "${what} does not say '${part}':\n${out}")
  endif()
endfunction()

# A library with this name and nothing in it, that needs others.
function(make_library file)
  get_filename_component(name ${file} NAME)
  must_run("cannot link ${name}" ${COMPILER} -shared -o ${file} -Wl,-soname,${name}
    -Wl,--no-as-needed ${ARGN} -Wl,-rpath,$ORIGIN)
endfunction()

# A libtorch in which `library` needs libabsent.so.1, which is nowhere.
function(make_torch root library)
  set(lib ${root}/lib)
  file(MAKE_DIRECTORY ${lib} ${root}/share/cmake/Torch ${root}/share/cmake/Caffe2)
  file(GLOB files ${TORCH_ROOT}/lib/*.so*)
  foreach(file IN LISTS files)
    get_filename_component(name ${file} NAME)
    file(CREATE_LINK ${file} ${lib}/${name} SYMBOLIC)
  endforeach()
  file(CREATE_LINK ${TORCH_ROOT}/include ${root}/include SYMBOLIC)
  foreach(file Torch/TorchConfigVersion.cmake Caffe2/Caffe2Targets.cmake)
    file(COPY_FILE ${TORCH_ROOT}/share/cmake/${file} ${root}/share/cmake/${file})
  endforeach()
  file(WRITE ${root}/share/cmake/Torch/TorchConfig.cmake
    "message(FATAL_ERROR \"Your installed Caffe2 version uses CUDA\")\n")
  make_library(${BINARY}/libabsent.so.1)
  make_library(${lib}/libcudart.so.13)
  make_library(${lib}/libc10_cuda.so ${lib}/libcudart.so.13)
  make_library(${lib}/libtorch_cuda.so ${lib}/libc10_cuda.so)
  if(library)
    file(REMOVE ${lib}/${library})
    make_library(${lib}/${library} ${BINARY}/libabsent.so.1)
  endif()
  file(REMOVE ${BINARY}/libabsent.so.1)
endfunction()

set(configure ${CMAKE_COMMAND} -G Ninja -DCMAKE_CXX_COMPILER=${COMPILER}
              -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
set(consumer ${configure} -S ${CMAKE_CURRENT_LIST_DIR}/cuda_torch)

# With the libraries of the CPU only, as after pip install --no-deps: the package, which was built
# without CUDA, fits it, and the program runs.
make_torch(${BINARY}/cpu libtorch_cuda.so)
must_run("the consumer was not configured" ${consumer} -B ${BINARY}/in_cpu
  -DCMAKE_PREFIX_PATH=${PREFIX} -DTorch_DIR=${BINARY}/cpu/share/cmake/Torch)
must_run("the consumer was not built" ${CMAKE_COMMAND} --build ${BINARY}/in_cpu)
must_run("the consumer failed" ${BINARY}/in_cpu/cuda_torch)
expect("linked 6" "the consumer")

# With all: found by its own version of CUDA, which the package was not built with.
make_torch(${BINARY}/gpu "")
run(${consumer} -B ${BINARY}/in_gpu
  -DCMAKE_PREFIX_PATH=${PREFIX} -DTorch_DIR=${BINARY}/gpu/share/cmake/Torch)
expect("uses libtorch ${TORCH_VERSION} [(]CUDA: 13, C[+][+]11 ABI: 1[)]" "the refusal")

# Programs keep the CUDA part, of which they call nothing.
set(project ${configure} -S ${SOURCE} -B ${BINARY}/project --fresh)
must_run("the project was not configured" ${project} -DLOCKSTEP_BUILD_TESTS=OFF
  -DTorch_DIR=${BINARY}/gpu/share/cmake/Torch)
expect("libtorch ${TORCH_VERSION}, CUDA: 13, in ${BINARY}/gpu" "the project")
file(STRINGS ${BINARY}/project/build.ninja out REGEX "no-as-needed.*/gpu/lib/libtorch_cuda.so")
expect("libtorch_cuda" "the project's build.ninja")

# With nothing that could be loaded: one error with the remedy, in a user's project as in Lockstep's.
make_torch(${BINARY}/broken libtorch_cpu.so)
run(${consumer} -B ${BINARY}/in_broken
  -DCMAKE_PREFIX_PATH=${PREFIX} -DTorch_DIR=${BINARY}/broken/share/cmake/Torch)
expect("cannot be loaded, since this machine lacks libabsent.so.1. Install" "the consumer's error")
run(${project} -DCMAKE_PREFIX_PATH=${BINARY}/broken)
expect("cannot be loaded, since this machine lacks libabsent.so.1. Install" "the project's error")

# Such a torch of python3 is passed over, for the system's if there is one.
file(WRITE ${BINARY}/python3 "#!/bin/sh\necho ${BINARY}/python/torch/__init__.py\n")
file(CHMOD ${BINARY}/python3 PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
make_torch(${BINARY}/python/torch libtorch_cpu.so)
run(${project} -DLOCKSTEP_PYTHON=${BINARY}/python3 -DLOCKSTEP_BUILD_TESTS=OFF)
expect("-- The libtorch in [^ ]*/python/torch/[^ ]* has CUDA and cannot be loaded" "the project")
expect("-- libtorch [0-9.]+, CUDA: none, in /usr/|needs libtorch 1.13 or newer, and found none"
  "the project")

# A folder that is not there is named, and nothing else taken in its place.
run(${project} -DTorch_DIR=${BINARY}/nowhere)
expect("Torch_DIR is [^ ]*/nowhere, where no TorchConfig.cmake is" "the project")

# An archive with the ABI from before C++11, which its TorchConfig.cmake alone tells.
file(APPEND ${BINARY}/gpu/share/cmake/Torch/TorchConfig.cmake
  "set(TORCH_CXX_FLAGS \"-D_GLIBCXX_USE_CXX11_ABI=0\")\n")
run(${project} -DTorch_DIR=${BINARY}/gpu/share/cmake/Torch)
expect("built with the C[+][+] ABI from before C[+][+]11" "the project")

# The libtorch without CUDA is found without a warning.
must_run("the consumer was not configured" ${consumer} -B ${BINARY}/in_plain
  -DCMAKE_PREFIX_PATH=${PREFIX} -DTorch_DIR=${TORCH_ROOT}/share/cmake/Torch)
if(out MATCHES "CMake Warning")
  message(FATAL_ERROR "the consumer was configured with a warning:\n${out}")
endif()
