// SPDX-License-Identifier: BSD-3-Clause
// Loads MPI's library, and finds its functions and handles.
#include "lockstep/rendezvous/mpi_functions.h"

#include <string>
#include <type_traits>
#include <vector>

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/built_with.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

// Never unloaded: MPI's threads and its handlers at exit stay until the process ends. Global, since
// Open MPI's plug-ins look for its functions there.
void* open(const std::string& name, int flags = 0) {
  return ::dlopen(name.c_str(), RTLD_NOW | RTLD_GLOBAL | flags);
}

std::vector<std::string> names_built_with() {
  std::vector<std::string> names{built_with::mpi_library};
  if (names.front() != built_with::mpi_soname) names.emplace_back(built_with::mpi_soname);
  return names;
}

void* open_library() {
  std::vector<std::string> names;
  if (const auto named = environment("LOCKSTEP_MPI_LIBRARY")) {
    names = {*named};
  } else {
    // Prefers the one that the program itself is linked to and may have started.
    if (void* library = open(built_with::mpi_soname, RTLD_NOLOAD)) return library;
    names = names_built_with();
  }
  std::vector<std::string> reasons;
  for (const std::string& name : names) {
    if (void* library = open(name)) return library;
    reasons.emplace_back(::dlerror());
  }
  throw BackendError(fmt::format(
      "MPI cannot be loaded: {}; install the MPI that Lockstep was built with (Debian: apt-get "
      "install openmpi-bin for libmpi, mpich for libmpich), or set LOCKSTEP_MPI_LIBRARY to the "
      "path of its {}",
      fmt::join(reasons, "; "), built_with::mpi_soname));
}

[[noreturn]] void refuse(const std::string& why) {
  throw BackendError(
      fmt::format("{}; Lockstep was built with {}: set LOCKSTEP_MPI_LIBRARY to the path of that "
                  "one, or unset it",
                  why, built_with::mpi_soname));
}

void* find(void* library, const char* name) {
  void* symbol = ::dlsym(library, name);
  if (symbol == nullptr) refuse(fmt::format("this MPI has no {}", name));
  return symbol;
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(find(library, name));
}

// Open MPI's header defines each handle by this macro, as the address of a variable in the library.
// In MPICH's header handles are numbers, and nothing uses the macro.
#undef OMPI_PREDEFINED_GLOBAL
#define OMPI_PREDEFINED_GLOBAL(type, variable) static_cast<type>(find(library, #variable))

MpiFunctions load() {
  void* library = open_library();
  if (!std::is_pointer_v<MPI_Comm> && ::dlsym(library, "ompi_mpi_comm_world") != nullptr) {
    refuse("this MPI is Open MPI");
  }
  MpiFunctions mpi{};
  find(library, "MPI_Get_library_version", mpi.get_library_version);
  find(library, "MPI_Initialized", mpi.initialized);
  find(library, "MPI_Finalized", mpi.finalized);
  find(library, "MPI_Init_thread", mpi.init_thread);
  find(library, "MPI_Query_thread", mpi.query_thread);
  find(library, "MPI_Finalize", mpi.finalize);
  find(library, "MPI_Error_string", mpi.error_string);
  find(library, "MPI_Comm_rank", mpi.comm_rank);
  find(library, "MPI_Comm_size", mpi.comm_size);
  find(library, "MPI_Comm_group", mpi.comm_group);
  find(library, "MPI_Comm_get_attr", mpi.comm_get_attr);
  find(library, "MPI_Comm_set_errhandler", mpi.comm_set_errhandler);
  find(library, "MPI_Comm_split_type", mpi.comm_split_type);
  find(library, "MPI_Comm_create_group", mpi.comm_create_group);
  find(library, "MPI_Comm_free", mpi.comm_free);
  find(library, "MPI_Group_incl", mpi.group_incl);
  find(library, "MPI_Group_free", mpi.group_free);
  find(library, "MPI_Bcast", mpi.bcast);
  find(library, "MPI_Allreduce", mpi.allreduce);
  find(library, "MPI_Isend", mpi.isend);
  find(library, "MPI_Irecv", mpi.irecv);
  find(library, "MPI_Ibcast", mpi.ibcast);
  find(library, "MPI_Testall", mpi.testall);
  mpi.comm_world = MPI_COMM_WORLD;
  mpi.info_null = MPI_INFO_NULL;
  mpi.errors_return = MPI_ERRORS_RETURN;
  mpi.byte_type = MPI_BYTE;
  mpi.char_type = MPI_CHAR;
  mpi.int_type = MPI_INT;
  mpi.min_op = MPI_MIN;
  return mpi;
}

}  // namespace

const MpiFunctions& MpiFunctions::get() {
  static const MpiFunctions mpi = load();
  return mpi;
}

}  // namespace lockstep
