// SPDX-License-Identifier: BSD-3-Clause
// Ready-made communication hooks, for register_comm_hook; docs/comm_hooks.md compares them. Names
// and constants are those of torch.distributed.algorithms.ddp_comm_hooks. A hook takes the model's
// group and is registered on every rank; UsageError in backward if its group has another size.
#pragma once

#include <cstdint>

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

struct PowerSGDState {
  GroupArgument group;
  // The rank r of the factors P (n x r) and Q (m x r) that stand for a gradient of n x m elements:
  // the first dimension by all the others.
  int matrix_approximation_rank = 1;
  // So many iterations come first that reduce as without a hook. At least 2 with error feedback or
  // warm start, as in PyTorch.
  int start_powerSGD_iter = 1000;
  // A gradient is compressed only if it has more than this many times the elements of its factors.
  double min_compression_rate = 2;
  // Adds what compression has lost to the gradients of the next iteration. Takes as much memory as
  // the compressed gradients.
  bool use_error_feedback = true;
  // Begins with the previous iteration's Q rather than a random one.
  bool warm_start = true;
  // Added to the norm of each column that is orthogonalized.
  double orthogonalization_epsilon = 0;
  // The same on every rank.
  std::uint64_t random_seed = 0;
};

// Gradients become products of two narrow matrices, and only those are reduced (Vogels, Karimireddy
// and Jaggi, "PowerSGD", 2019, arXiv:1905.13727). The result approximates the mean; every rank has
// the same bits. Complex gradients, those of one dimension and those too small to gain are reduced
// as they are, in one buffer. Half types are compressed in float. If gradients are not finite, the
// result is not either, and error feedback and warm start begin anew. UsageError for options out of
// range or in contradiction.
CommHook power_sgd_hook(PowerSGDState state);

}  // namespace lockstep
