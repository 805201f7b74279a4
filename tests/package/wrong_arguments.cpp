// SPDX-License-Identifier: BSD-3-Clause
// Does not compile: each mistake is explained by a static assertion, which wrong_arguments.cmake
// looks for.
#include <memory>
#include <vector>

#include <torch/nn/modules/linear.h>

#include "lockstep/lockstep.h"

void mistakes(const std::shared_ptr<lockstep::ProcessGroup>& group) {
  torch::nn::Linear net(2, 2);
  lockstep::DataParallel replicas_without_a_name(net, 4);
  lockstep::DistributedDataParallel no_group(net, 4);
  lockstep::DistributedDataParallel without_a_group(net);
  lockstep::DistributedDataParallel size_without_a_name(net, group, 25.0);
  lockstep::DataParallel<int> no_module;
  lockstep::DistributedDataParallel model(net, group);
  model.module();
  lockstep::DataParallel(net).eval();
  lockstep::clip_grad_norm_(model->parameters(), 1.0);
  lockstep::clip_grad_value_(model->parameters(), 1.0);
  lockstep::Trainer trainer(net, group);
  const auto loader = std::make_unique<std::vector<at::Tensor>>();
  trainer.fit(loader, [](auto& wrapped, auto& x) { return wrapped(x).sum(); });
  trainer.fit(*loader,
              [](auto& wrapped, auto& x) { return wrapped(x).sum().template item<double>(); });
}
