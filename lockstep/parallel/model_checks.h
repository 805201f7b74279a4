// SPDX-License-Identifier: BSD-3-Clause
// Public. Checks that gradients are finite and that all ranks still have the same model. A flipped
// bit, or a change on one rank only, silently makes the models differ.
#pragma once

#include <torch/nn/module.h>

#include "lockstep/comm/group_argument.h"
#include "lockstep/parallel/errors.h"

namespace lockstep {

class DistributedDataParallelBase;

// For training in one process, between backward and the optimizer's step. NonFiniteGradient, naming
// the parameters, if the module has such gradients. With DistributedDataParallel set .check_finite,
// which also names the rank.
void check_finite_gradients(const torch::nn::Module& module);

struct InSyncOptions {
  // Compares all buffers except running_mean and running_var, which are statistics of each rank's
  // own batches until they are broadcast. Set it to false if forward changes other buffers, too.
  bool buffers = true;
  // Compares gradients that every rank has. They are equal after a synchronized backward, until a
  // backward under no_sync() or of the wrapped module itself adds to them; with
  // whole_gradients = false they never are.
  bool gradients = false;
};

// Collective, blocking: compares the bits of parameters and buffers between the ranks by their
// hashes. OutOfSync on every rank if any differ; it names the first one, and the ranks that agree
// on it. Nothing changes, and the group can be used again. UsageError on every rank if the modules
// differ in names, types or shapes.
//
// Reads the model once, at several GB/s per core (a GPU's is copied first), and exchanges two
// hashes if there is no difference.
void check_in_sync(const torch::nn::Module& module, GroupArgument group,
                   const InSyncOptions& options = {});
// The same for a wrapped module, over its wrapper's group.
void check_in_sync(const DistributedDataParallelBase& model, const InSyncOptions& options = {});

}  // namespace lockstep
