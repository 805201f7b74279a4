// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/train/net_in_mode.h"

namespace lockstep {
namespace {

DataParallelOptions replica_options(int replicas, at::Device first) {
  if (!first.is_cuda()) return {.replicas = replicas};
  DataParallelOptions options;
  for (int i = 0; i < replicas; ++i) {
    options.device_ids.emplace_back(at::kCUDA, static_cast<at::DeviceIndex>(first.index() + i));
  }
  return options;
}

}  // namespace

NetInMode::NetInMode(torch::nn::Sequential net, TrainMode mode, int replicas,
                     std::shared_ptr<ProcessGroup> group)
    : net_(std::move(net)), group_(std::move(group)) {
  if (mode == TrainMode::ddp) ddp_.emplace(net_, group_);
  if (mode == TrainMode::dp) dp_.emplace(net_, replica_options(replicas, group_->device()));
}

at::Tensor NetInMode::forward(const at::Tensor& input) {
  if (ddp_) return (*ddp_)(input);
  if (dp_) return (*dp_)(input);
  return net_->forward(input);
}

std::uint64_t NetInMode::bytes_moved() const {
  if (ddp_) return group_->bytes_sent();
  return dp_ ? dp_->bytes_moved() : 0;
}

}  // namespace lockstep
