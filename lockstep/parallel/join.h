// SPDX-License-Identifier: BSD-3-Clause
// Public. Training with different numbers of batches on the ranks, like
// torch.distributed.algorithms.join.
//
//   lockstep::join(model, [&] {
//     for (auto& batch : loader) step(batch);
//   });
#pragma once

#include <functional>

#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep {

// Collective, blocking. Runs `body`, a loop over this rank's batches. When it has returned, this
// rank takes part in the others' broadcasts and reductions, with gradients of zero, until all loops
// have ended. Then every rank has the parameters and buffers of a rank that took part in the last
// step. As in PyTorch by default, gradients are divided by the number of all ranks, even after some
// loops have ended.
//
// `follow` is called on a rank whose loop has ended, after each backward of the others, with the
// ranks' mean in .grad. It must do what the loop does after backward, usually optimizer.step() and
// zero_grad(). Without it, this rank drops those gradients; the state of its optimizer then falls
// behind, and the next loop's steps differ between ranks. With a sharded optimizer it is required,
// and must contain each collective call that the loop makes after backward, such as
// clip_grad_norm_().
//
// The loop must clear gradients once for each synchronized backward. Gradients that reach
// parameters around the wrapper's outputs are not reduced by themselves (reducer.h): add up a
// step's losses. Gradients accumulated under no_sync() when the loop ends count only if no other
// rank has batches left. Each synchronized backward, and each forward that broadcasts buffers,
// costs one more exchange of a few bytes. Other calls of the group in the loop are not followed.
// Throws what forward and backward throw; if `body` or `follow` throws, the group ends for every
// rank.
void join(DistributedDataParallelBase& model, const std::function<void()>& body,
          const std::function<void()>& follow = {});

}  // namespace lockstep
