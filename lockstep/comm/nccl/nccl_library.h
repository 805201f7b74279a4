// SPDX-License-Identifier: BSD-3-Clause
// NCCL's C interface, loaded when it is first needed: the libnccl.so.2 that comes with libtorch, or
// the one that LOCKSTEP_NCCL_LIBRARY names. Lockstep itself is not linked to it.
#pragma once

#include <string>

#include <nccl.h>

namespace lockstep::nccl {

struct NcclLibrary {
  // Thread-safe. BackendError if it cannot be loaded, or lacks a function.
  static const NcclLibrary& get();

  decltype(&::ncclGetVersion) get_version;
  decltype(&::ncclGetUniqueId) get_unique_id;
  decltype(&::ncclCommInitRankConfig) init_rank;
  decltype(&::ncclCommGetAsyncError) async_error;
  decltype(&::ncclGetErrorString) error_string;
  decltype(&::ncclGetLastError) last_error;
  decltype(&::ncclCommFinalize) finalize;
  decltype(&::ncclCommDestroy) destroy;
  decltype(&::ncclCommAbort) abort;
  decltype(&::ncclGroupStart) group_start;
  decltype(&::ncclGroupEnd) group_end;
  decltype(&::ncclAllReduce) all_reduce;
  decltype(&::ncclReduce) reduce;
  decltype(&::ncclBroadcast) broadcast;
  decltype(&::ncclSend) send;
  decltype(&::ncclRecv) recv;
  decltype(&::ncclRedOpCreatePreMulSum) create_scaled_sum;
  decltype(&::ncclRedOpDestroy) destroy_op;

  // "2.27.5"
  std::string version() const;
};

}  // namespace lockstep::nccl
