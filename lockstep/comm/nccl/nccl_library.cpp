// SPDX-License-Identifier: BSD-3-Clause
// Loads libnccl.so.2, and finds its functions.
#include "lockstep/comm/nccl/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"

namespace lockstep::nccl {
namespace {

// Never unloaded: NCCL's threads may run in the library until the process ends.
void* open_library(const std::string& name) {
  void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    throw BackendError(
        fmt::format("NCCL cannot be loaded: {}; it comes with a libtorch that has CUDA, or set "
                    "LOCKSTEP_NCCL_LIBRARY to the path of a libnccl.so.2",
                    ::dlerror()));
  }
  return library;
}

template <class Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr) {
    throw BackendError(
        fmt::format("NCCL has no {}; version 2.14 or later is needed: {}", name, ::dlerror()));
  }
}

NcclLibrary load() {
  void* library = open_library(environment("LOCKSTEP_NCCL_LIBRARY").value_or("libnccl.so.2"));
  NcclLibrary nccl{};
  find(library, "ncclGetVersion", nccl.get_version);
  find(library, "ncclGetUniqueId", nccl.get_unique_id);
  find(library, "ncclCommInitRankConfig", nccl.init_rank);
  find(library, "ncclCommGetAsyncError", nccl.async_error);
  find(library, "ncclGetErrorString", nccl.error_string);
  find(library, "ncclGetLastError", nccl.last_error);
  find(library, "ncclCommFinalize", nccl.finalize);
  find(library, "ncclCommDestroy", nccl.destroy);
  find(library, "ncclCommAbort", nccl.abort);
  find(library, "ncclGroupStart", nccl.group_start);
  find(library, "ncclGroupEnd", nccl.group_end);
  find(library, "ncclAllReduce", nccl.all_reduce);
  find(library, "ncclReduce", nccl.reduce);
  find(library, "ncclBroadcast", nccl.broadcast);
  find(library, "ncclSend", nccl.send);
  find(library, "ncclRecv", nccl.recv);
  find(library, "ncclRedOpCreatePreMulSum", nccl.create_scaled_sum);
  find(library, "ncclRedOpDestroy", nccl.destroy_op);
  return nccl;
}

}  // namespace

const NcclLibrary& NcclLibrary::get() {
  static const NcclLibrary nccl = load();
  return nccl;
}

std::string NcclLibrary::version() const {
  int code = 0;
  get_version(&code);
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

}  // namespace lockstep::nccl
