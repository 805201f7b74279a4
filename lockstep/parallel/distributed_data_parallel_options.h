// SPDX-License-Identifier: BSD-3-Clause
// Public. The options of DistributedDataParallel and of the Reducer under it.
#pragma once

#include <optional>
#include <vector>

#include <c10/core/Device.h>

#include "lockstep/parallel/moved_input.h"

namespace lockstep {

struct DistributedDataParallelOptions {
  // As in PyTorch: this rank's module is on this device, and tensors given to forward are moved
  // there; at most one, such as {0}. If empty, nothing is moved.
  DeviceIds device_ids = {};
  // Tensors that forward returns are moved here; by default they stay.
  std::optional<at::Device> output_device = {};
  // Bucket size in MiB, as in PyTorch: a bucket is closed once its gradients reach this size.
  double bucket_cap_mb = 25;
  // The same for the first bucket, which is small so that reducing starts early.
  double first_bucket_mb = 1;
  // Makes backward end with NonFiniteGradient on every rank if a reduced gradient has infinite or
  // NaN elements. The error names the parameters, and the ranks that contributed such elements, or
  // says that finite ones overflow in the sum. Reads each gradient twice, before and after the
  // reduction: at most 6 % of a step on CPU (docs/decisions/0022-checks-that-name-the-rank.md).
  // With GPUs it waits for them at the end of backward.
  bool check_finite = false;
  // If true, .grad is the mean over the ranks after backward. If false, each rank gets the mean of
  // its own part only, which is what a sharded optimizer of lockstep::optim needs, so that sums
  // travel once instead of twice. In shared memory they do so in the optimizer's step(), or before,
  // when clipping needs the means.
  // The rest of .grad is unspecified. Make such an optimizer from the wrapped model, clear
  // gradients before each synchronized backward, accumulate under no_sync(), and clip by
  // lockstep::clip_grad_norm_ (docs/optimizers.md).
  bool whole_gradients = true;
  // Keeps one copy of the parameters for all ranks of a host, in memory that they map, which saves
  // the memory of the other copies and the time in which they are written. For processes (backend
  // shm, or hierarchical on several hosts); without effect in a group of one rank. Implies
  // whole_gradients = false: an optimizer of lockstep::optim that is made from the wrapped model
  // stores each new value once on each host. Buffers stay with each rank. UsageError in other
  // groups, for parameters on other devices than the CPU, and for communication hooks.
  //
  // Whatever changes a parameter on every rank would change it once for each rank: another
  // optimizer, torch::nn::init, decay by hand. Such a change is a UsageError that names the
  // parameter, in the next forward or step(). Make changes in change_parameters(); load by
  // load_state_dict() or a CheckpointFolder, when no rank computes. A change through data() that
  // leaves the first 64 bytes of a parameter alone is not found (docs/optimizers.md).
  bool one_copy_per_host = false;
  // Before each training forward with gradients enabled, buffers (BatchNorm's statistics) are
  // copied from rank 0. Never in eval(), so that one rank may evaluate alone. If false, they are
  // copied once, when the module is wrapped, except sparse ones, which must be equal on all ranks
  // then.
  bool broadcast_buffers = true;
};

// A Reducer ignores the options about a module: device_ids, output_device, one_copy_per_host,
// broadcast_buffers.
using ReducerOptions = DistributedDataParallelOptions;

}  // namespace lockstep
