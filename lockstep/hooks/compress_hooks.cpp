// SPDX-License-Identifier: BSD-3-Clause
// The hooks that round gradients to 16 bits between hosts.
#include "lockstep/comm/process_group.h"
#include "lockstep/hooks/comm_hooks.h"
#include "lockstep/hooks/hook_group.h"

namespace lockstep {
namespace {

CommHook compress_hook(const HookGroup& group, at::ScalarType type) {
  return [group, type](GradBucket& bucket) {
    return group.for_bucket(bucket).all_reduce_compressed(bucket.buffer(), type,
                                                          {.op = ReduceOp::mean});
  };
}

}  // namespace

CommHook fp16_compress_hook(GroupArgument group) {
  return compress_hook({"fp16_compress_hook", group}, at::kHalf);
}

CommHook bf16_compress_hook(GroupArgument group) {
  return compress_hook({"bf16_compress_hook", group}, at::kBFloat16);
}

}  // namespace lockstep
