// SPDX-License-Identifier: BSD-3-Clause
// MPI's C interface, loaded when it is first needed: the library that Lockstep was built with, or
// the one that LOCKSTEP_MPI_LIBRARY names. Lockstep itself is not linked to it.
#pragma once

#include <mpi.h>

namespace lockstep {

struct MpiFunctions {
  // Thread-safe. BackendError if the library cannot be loaded, or is of another MPI.
  static const MpiFunctions& get();

  decltype(&::MPI_Get_library_version) get_library_version;
  decltype(&::MPI_Initialized) initialized;
  decltype(&::MPI_Finalized) finalized;
  decltype(&::MPI_Init_thread) init_thread;
  decltype(&::MPI_Query_thread) query_thread;
  decltype(&::MPI_Finalize) finalize;
  decltype(&::MPI_Error_string) error_string;
  decltype(&::MPI_Comm_rank) comm_rank;
  decltype(&::MPI_Comm_size) comm_size;
  decltype(&::MPI_Comm_group) comm_group;
  decltype(&::MPI_Comm_get_attr) comm_get_attr;
  decltype(&::MPI_Comm_set_errhandler) comm_set_errhandler;
  decltype(&::MPI_Comm_split_type) comm_split_type;
  decltype(&::MPI_Comm_create_group) comm_create_group;
  decltype(&::MPI_Comm_free) comm_free;
  decltype(&::MPI_Group_incl) group_incl;
  decltype(&::MPI_Group_free) group_free;
  decltype(&::MPI_Bcast) bcast;
  decltype(&::MPI_Allreduce) allreduce;
  decltype(&::MPI_Isend) isend;
  decltype(&::MPI_Irecv) irecv;
  decltype(&::MPI_Ibcast) ibcast;
  decltype(&::MPI_Testall) testall;

  // The handles of the same names in mpi.h. Use these: Open MPI's are addresses within its library.
  MPI_Comm comm_world;
  MPI_Info info_null;
  MPI_Errhandler errors_return;
  MPI_Datatype byte_type;
  MPI_Datatype char_type;
  MPI_Datatype int_type;
  MPI_Op min_op;
};

}  // namespace lockstep
