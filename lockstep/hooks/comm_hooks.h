// SPDX-License-Identifier: BSD-3-Clause
// Public. Ready-made communication hooks, for register_comm_hook; docs/comm_hooks.md compares them,
// also with torch.distributed.algorithms.ddp_comm_hooks, whose options and constants they have.
//
// Make a hook for each model, with the model's group, and register it on every rank: some hooks
// keep a model's memory and count its iterations. UsageError in backward if the group has another
// size. In the first backward, ranks compare whether they have a hook, and the options of
// power_sgd_hook and post_local_sgd_hook: UsageError on every rank, which ends the group. A hook
// that is registered later, and what a hook of your own does, are not compared.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/parallel/comm_hook.h"

namespace lockstep {

// Gradients travel between hosts as half or bfloat16 numbers, half the bytes of float ones. They
// are divided by the number of ranks and rounded, then added up in float in rank order, and rounded
// again. NCCL adds up the rounded numbers in 16 bits instead, in an order of its own. Every rank
// has the same bits. A mean is infinite or NaN if a gradient is. With fp16_compress_hook, it is
// also infinite or NaN if a rounded value exceeds 65504 in magnitude. A hierarchical group rounds
// the sum of each host. gloo and mpi groups, and nccl groups over several hosts, round the
// gradients of each rank, as PyTorch does. Nothing is rounded in groups of one host: shm, thread,
// self, and nccl on one host.
CommHook fp16_compress_hook(GroupArgument group);
CommHook bf16_compress_hook(GroupArgument group);

struct PowerSGDState {
  GroupArgument group;
  // The rank r of the factors P (n x r) and Q (m x r) that stand for a gradient of n x m elements:
  // the first dimension by all the others.
  int matrix_approximation_rank = 1;
  // The number of first iterations that reduce as without a hook. At least 2 with error feedback or
  // warm start, as in PyTorch.
  int start_powerSGD_iter = 1000;
  // A gradient is compressed only if it has more than this many times the elements of its factors.
  double min_compression_rate = 2;
  // Adds what compression has lost to the gradients of the next iteration. Takes as much memory as
  // the compressed gradients, twice as much if these are of half types, since it is in float.
  bool use_error_feedback = true;
  // Begins with the previous iteration's Q rather than a random one.
  bool warm_start = true;
  // Added to the norm of each column that is orthogonalized.
  double orthogonalization_epsilon = 0;
  // The seed of the random Q. Pass the same on every rank.
  std::uint64_t random_seed = 0;
};

// Gradients become products of two narrow matrices, and only those are reduced (Vogels, Karimireddy
// and Jaggi, "PowerSGD", 2019, arXiv:1905.13727). The result approximates the mean; every rank has
// the same bits. Gradients that are complex, have one dimension or are too small to gain are
// reduced as they are, in one buffer. Half types are compressed in float. If gradients are not
// finite, the result is not either, and error feedback and warm start restart. UsageError for
// options out of range or in contradiction.
CommHook power_sgd_hook(PowerSGDState state);

struct PostLocalSGDState {
  GroupArgument group;
  // The ranks that average gradients after the first iterations. By default the ranks of each host;
  // then post_local_sgd_hook() is a blocking collective call.
  GroupArgument subgroup = nullptr;
  // The number of first iterations that reduce over the whole group, as without a hook.
  int start_localSGD_iter = 0;
  // Otherwise later iterations reduce nothing: each rank keeps its own gradients.
  bool post_local_gradient_allreduce = true;
};

// Post-local SGD (Lin, Stich, Patel and Jaggi, "Don't use large mini-batches, use local SGD", 2018,
// arXiv:1808.07217): after the first iterations ranks train by themselves, or each subgroup does.
// Average the parameters from time to time with a PeriodicModelAverager, with warmup_steps =
// start_localSGD_iter. In between, parameters differ between ranks, as check_in_sync() will say. Do
// not set check_finite, which expects the same gradients on every rank, and do not shard the
// optimizer: each rank's share would train on that rank's gradients only. UsageError in backward if
// a sharded optimizer was made from the model, unless the subgroup is the whole group.
CommHook post_local_sgd_hook(PostLocalSGDState state);

struct PeriodicModelAveragerOptions {
  // Must be given, 1 or more.
  int period = 0;
  int warmup_steps = 0;
};

// Averages parameters over the ranks in every period-th step, the first time after warmup_steps.
class PeriodicModelAverager {
 public:
  // UsageError for options out of range.
  PeriodicModelAverager(PeriodicModelAveragerOptions options, GroupArgument group);

  // Call it after each optimizer step, with the same parameters on every rank. The first call, in
  // which ranks compare their options (UsageError on every rank if they differ), and every
  // period-th one are collective, and block. In the latter each parameter, in place, becomes the
  // mean over the ranks, the same bits on every rank, by one all_reduce per type and device. Takes
  // as much memory again as the parameters. Buffers and the optimizer's state stay as they are.
  // UsageError for an undefined tensor.
  void average_parameters(const std::vector<at::Tensor>& parameters);

 private:
  PeriodicModelAveragerOptions options_;
  std::shared_ptr<ProcessGroup> group_;
  std::int64_t step_ = 0;
};

}  // namespace lockstep
