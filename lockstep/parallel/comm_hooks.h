// SPDX-License-Identifier: BSD-3-Clause
// Ready-made communication hooks, for register_comm_hook; docs/comm_hooks.md compares them. Names
// and constants are those of torch.distributed.algorithms.ddp_comm_hooks. A hook takes the model's
// group and is registered on every rank; UsageError in backward if its group has another size.
#pragma once

#include "lockstep/comm/group_argument.h"
#include "lockstep/parallel/comm_hook.h"

namespace lockstep {

// Gradients travel between hosts as half or bfloat16 numbers, half the bytes of float ones. Each
// rank's gradients are divided by the number of ranks and rounded, added up in float, and rounded
// again; every rank has the same bits. Infinite and NaN gradients, and half ones beyond 65504, are
// not finite afterwards. Nothing is rounded in groups of one host (shm, thread, self, and nccl on
// one host), nor within the hosts of a hierarchical group. gloo and mpi groups always round, as
// PyTorch does.
CommHook fp16_compress_hook(GroupArgument group);
CommHook bf16_compress_hook(GroupArgument group);

}  // namespace lockstep
