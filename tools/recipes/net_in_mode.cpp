// SPDX-License-Identifier: BSD-3-Clause
// Calls the bare net, DataParallel or DistributedDataParallel.
#include "tools/recipes/net_in_mode.h"

#include "lockstep/parallel/check_in_sync.h"
#include "lockstep/parallel/finite_gradients.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep {
namespace {

DataParallelOptions replica_options(int replicas, at::Device first) {
  if (!first.is_cuda()) return {.replicas = replicas};
  DataParallelOptions options;
  for (int i = 0; i < replicas; ++i) {
    options.device_ids.emplace_back(first.index() + i);
  }
  return options;
}

// A rank that updates a part of the parameters needs only that part's gradients, except where ranks
// compare theirs.
bool needs_whole_gradients(bool shards_optimizer, const TrainOptions& options) {
  return !shards_optimizer || options.check_in_sync;
}

}  // namespace

NetInMode::NetInMode(const Recipe& recipe, torch::nn::Sequential net, TrainMode mode,
                     const TrainOptions& options, std::shared_ptr<ProcessGroup> group)
    : net_(std::move(net)),
      group_(std::move(group)),
      shards_optimizer_(recipe.shards_optimizer && mode == TrainMode::ddp),
      check_finite_(options.check_finite),
      check_in_sync_(options.check_in_sync) {
  if (mode == TrainMode::ddp) {
    convert_sync_batchnorm(net_, group_);  // the statistics of the same batch as in one process
    ddp_ = DistributedDataParallel(
        net_, group_,
        {.check_finite = options.check_finite,
         .whole_gradients = needs_whole_gradients(shards_optimizer_, options)});
  }
  if (mode == TrainMode::dp) {
    dp_ = DataParallel(net_, replica_options(options.replicas, group_->device()));
  }
}

Trained NetInMode::trained() {
  return {net_->parameters(), shards_optimizer_ ? ddp_.get() : nullptr};
}

at::Tensor NetInMode::forward(const at::Tensor& input) {
  if (ddp_) return ddp_(input);
  if (dp_) return dp_(input);
  return net_->forward(input);
}

void NetInMode::backward(const at::Tensor& loss) {
  loss.backward();
  if (check_finite_ && !ddp_) check_finite_gradients(*net_);
}

void NetInMode::end_step(std::int64_t step) {
  if (!ddp_ || !check_in_sync_ || step % *check_in_sync_ != 0) return;
  check_in_sync(ddp_, {.gradients = true});
}

std::uint64_t NetInMode::bytes_moved() const {
  if (ddp_) return group_->bytes_sent();
  return dp_ ? dp_->bytes_moved() : 0;
}

}  // namespace lockstep
