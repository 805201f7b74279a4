// SPDX-License-Identifier: BSD-3-Clause
// Training with different numbers of batches on the ranks, like torch.distributed.algorithms.join.
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
// have ended. Then every rank has the parameters and buffers of the last rank with batches. As in
// PyTorch by default, gradients are divided by the number of all ranks, also when some have ended.
//
// `follow` is called on a rank whose loop has ended, after each backward of the others, with their
// mean in .grad: let it do what the loop does after backward, usually optimizer.step(). Without it
// the state of this rank's optimizer falls behind, and the next loop's steps differ between ranks.
//
// A synchronized forward or backward costs one exchange of a few bytes more. Gradients that a loop
// has left under no_sync() are dropped. Calls of the group in the loop other than the model's own
// are not followed. Errors are those of forward and backward; if `body` or `follow` throws, the
// group ends for every rank.
void join(DistributedDataParallelBase& model, const std::function<void()>& body,
          const std::function<void()>& follow = {});

}  // namespace lockstep
