# SPDX-License-Identifier: BSD-3-Clause
# Finds the libraries that backends need. built_with.h tells comm/backends.cpp which were found.

foreach(library GLOO MPI NCCL)
  set(LOCKSTEP_BUILT_WITH_${library} false)
endforeach()

# libtorch contains Gloo but does not ship its headers. The system's Gloo library must not be
# linked: libtorch may contain another version of it.
find_path(LOCKSTEP_GLOO_INCLUDE gloo/transport/device.h)
if(LOCKSTEP_GLOO_INCLUDE)
  set(gloo_sources comm/remote/gloo/gloo_backend.cpp comm/remote/gloo/gloo_sockets.cpp)
  # Adding a system include folder again would put it before the compiler's own folders.
  if(NOT LOCKSTEP_GLOO_INCLUDE IN_LIST CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES)
    target_include_directories(lockstep SYSTEM PRIVATE ${LOCKSTEP_GLOO_INCLUDE})
  endif()
  target_sources(lockstep PRIVATE ${gloo_sources})
  set(LOCKSTEP_HAS_GLOO TRUE PARENT_SCOPE)
  set(LOCKSTEP_BUILT_WITH_GLOO true)
endif()
message(STATUS "backend gloo: ${LOCKSTEP_GLOO_INCLUDE}")

# Open MPI or MPICH: the one whose compiler wrapper is mpicc, or is named by MPI_C_COMPILER. It is
# not linked: lockstep/rendezvous/mpi_functions.cpp loads the library of this name.
option(LOCKSTEP_WITH_MPI "Build the backend mpi, if there is an MPI" ON)
set(LOCKSTEP_MPI_SONAME "")
set(LOCKSTEP_MPI_LIBRARY "")
if(LOCKSTEP_WITH_MPI)
  find_package(MPI COMPONENTS C)
  foreach(file IN LISTS MPI_C_LIBRARIES)
    execute_process(COMMAND ${CMAKE_OBJDUMP} -p ${file} OUTPUT_VARIABLE headers ERROR_QUIET)
    if(headers MATCHES "SONAME +(libmpi[^ \n]*)")
      set(LOCKSTEP_MPI_SONAME ${CMAKE_MATCH_1})
      set(LOCKSTEP_MPI_LIBRARY ${LOCKSTEP_MPI_SONAME})
      # A path, if the loader does not search the folder.
      file(REAL_PATH ${file} file)
      get_filename_component(folder ${file} DIRECTORY)
      if(NOT folder IN_LIST CMAKE_CXX_IMPLICIT_LINK_DIRECTORIES)
        set(LOCKSTEP_MPI_LIBRARY ${folder}/${LOCKSTEP_MPI_SONAME})
      endif()
      break()
    endif()
  endforeach()
endif()
if(LOCKSTEP_MPI_SONAME)
  set(mpi_sources comm/remote/mpi/mpi_backend.cpp rendezvous/mpi_functions.cpp
                  rendezvous/mpi_library.cpp)
  # For these files only, so that switching MPI recompiles nothing else. Without the C++ bindings,
  # which MPI has dropped.
  list(TRANSFORM MPI_C_INCLUDE_DIRS PREPEND -isystem OUTPUT_VARIABLE mpi_includes)
  set_source_files_properties(${mpi_sources} PROPERTIES
    COMPILE_OPTIONS "${mpi_includes}"
    COMPILE_DEFINITIONS "OMPI_SKIP_MPICXX;MPICH_SKIP_MPICXX")
  target_sources(lockstep PRIVATE ${mpi_sources})
  target_link_libraries(lockstep PRIVATE ${CMAKE_DL_LIBS})
  set(LOCKSTEP_HAS_MPI TRUE PARENT_SCOPE)
  set(LOCKSTEP_BUILT_WITH_MPI true)
endif()
message(STATUS "backend mpi: ${MPI_C_HEADER_DIR} ${LOCKSTEP_MPI_LIBRARY}")

# A libtorch with CUDA contains NCCL, which is loaded from there; only headers are needed: CUDA's,
# or those of the packages nvidia-nccl, nvidia-cuda-runtime and nvidia-cuda-crt next to Python's torch,
# of which pip installs all but the last with torch.
get_filename_component(python_packages "${TORCH_INSTALL_PREFIX}" DIRECTORY)
file(GLOB nvidia_packages ${python_packages}/nvidia/*/include)
find_path(LOCKSTEP_NCCL_INCLUDE nccl.h HINTS ${nvidia_packages})
# Some folders have cuda_runtime.h but not what it includes.
find_path(LOCKSTEP_CUDA_INCLUDE crt/host_config.h
  HINTS ${CUDAToolkit_INCLUDE_DIRS} ${nvidia_packages} ENV CUDA_HOME PATHS /usr/local/cuda
  PATH_SUFFIXES include)
if(LOCKSTEP_NCCL_INCLUDE AND LOCKSTEP_CUDA_INCLUDE)
  set(nccl_sources comm/nccl/nccl_transport.cpp comm/nccl/nccl_communicator.cpp
                   comm/nccl/nccl_backend.cpp comm/nccl/nccl_library.cpp)
  target_include_directories(lockstep SYSTEM PRIVATE ${LOCKSTEP_NCCL_INCLUDE}
                                                     ${LOCKSTEP_CUDA_INCLUDE})
  target_link_libraries(lockstep PRIVATE ${CMAKE_DL_LIBS})
  target_sources(lockstep PRIVATE ${nccl_sources})
  set(LOCKSTEP_HAS_NCCL TRUE PARENT_SCOPE)
  set(LOCKSTEP_BUILT_WITH_NCCL true)
endif()
message(STATUS "backend nccl: ${LOCKSTEP_NCCL_INCLUDE} ${LOCKSTEP_CUDA_INCLUDE}")

configure_file(built_with.h.in generated/lockstep/built_with.h @ONLY)
target_include_directories(lockstep PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/generated)
