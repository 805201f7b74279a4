// SPDX-License-Identifier: BSD-3-Clause
// In the place of the others of this folder where there are no headers of NCCL and CUDA.
#include "lockstep/comm/nccl/nccl_group.h"
#include "lockstep/core/error.h"

namespace lockstep {
namespace {

constexpr const char* kWhyNot =
    "backend \"nccl\" is not built into this Lockstep: it needs the headers of NCCL (nccl.h) and "
    "of "
    "CUDA (cuda_runtime.h) when Lockstep is configured, and a libtorch with CUDA";

}  // namespace

bool nccl_built_in() {
  return false;
}

std::string why_not_nccl() {
  return kWhyNot;
}

std::string nccl_version() {
  throw BackendError(kWhyNot);
}

std::shared_ptr<ProcessGroup> make_nccl_group(Membership, GroupOptions,
                                              const std::string& /*name*/) {
  throw BackendError(kWhyNot);
}

}  // namespace lockstep
