// SPDX-License-Identifier: BSD-3-Clause
// The compression hooks round gradients between hosts, and nowhere else.
#include "lockstep/hooks/comm_hooks.h"

#include <limits>
#include <string>
#include <vector>

#include "comm/conformance/conformance.h"
#include "comm/conformance/expect_error.h"
#include "tests/parallel/models.h"
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep::testing {
namespace {

struct CompressHook {
  const char* name;
  CommHook (*make)(GroupArgument);
  at::ScalarType type;
};
const CompressHook kCompressHooks[] = {{"fp16", fp16_compress_hook, at::kHalf},
                                       {"bf16", bf16_compress_hook, at::kBFloat16}};

at::Device device_of_nets(const ProcessGroup& group) {
  return at::hasCUDA() ? group.device() : at::Device(at::kCPU);
}

bool rounds_nowhere(const std::string& backend, int size) {
  if (backend == "hierarchical") return size <= 2;  // two ranks are one host
  return backend != "gloo" && backend != "mpi";
}

// The ranks between which nothing is rounded, in the order in which they add up.
std::vector<std::vector<int>> exact_parts(const std::string& backend, int size) {
  std::vector<std::vector<int>> parts(1);
  for (int rank = 0; rank < size; ++rank) {
    const bool first_of_host = backend != "hierarchical" || rank % 2 == 0;
    if (rank > 0 && first_of_host) parts.emplace_back();
    parts.back().push_back(rank);
  }
  return parts;
}

at::Tensor mean_with_rounding(const at::Tensor& of_ranks,
                              const std::vector<std::vector<int>>& parts, at::ScalarType type) {
  at::Tensor mean = at::zeros_like(of_ranks[0]);
  for (const auto& part : parts) {
    at::Tensor sum = of_ranks[part.front()].clone();
    for (std::size_t i = 1; i < part.size(); ++i) sum += of_ranks[part[i]];
    mean += (sum * (1.0 / static_cast<double>(of_ranks.size(0)))).to(type).to(at::kFloat);
  }
  return mean.to(type).to(at::kFloat);
}

TEST_P(TrainingConformance, CompressHooksRoundBetweenHostsOnly) {
  const std::string& name = backend().name;
  run_in_group([&](Rank& rank, ProcessGroup& group) {
    const at::Tensor mine = values({4, 6}, rank.rank()).to(device_of_nets(group));
    Wide alone;
    alone->to(device_of_nets(group));
    set_weights(*alone, 1);
    alone->forward(mine).square().mean().backward();
    for (const CompressHook& hook : kCompressHooks) {
      Wide net;
      net->to(device_of_nets(group));
      copy_state(*net, *alone);
      DistributedDataParallel model(net, group.shared_from_this());
      model->register_comm_hook(hook.make(group));
      for (int step = 0; step < 2; ++step) {
        reset_gradients(*net);
        model(mine).square().mean().backward();
      }
      for (const auto& item : net->named_parameters()) {
        const at::Tensor own = alone->named_parameters()[item.key()].grad();
        const std::string what = std::string(hook.name) + ": " + item.key();
        if (rounds_nowhere(name, group.size())) {
          const at::Tensor mean = own.clone();
          group.all_reduce(mean, ReduceOp::mean).wait();
          if (backend().sums_by_a_library) {
            expect_close(item.value().grad().cpu(), mean.cpu(), what);
          } else {
            EXPECT_TRUE(torch::equal(item.value().grad(), mean)) << what;
          }
        } else {
          std::vector<std::int64_t> sizes = own.sizes().vec();
          sizes.insert(sizes.begin(), group.size());
          const at::Tensor of_ranks = at::empty(sizes);
          group.all_gather_into_tensor(of_ranks, own).wait();
          const at::Tensor mean =
              mean_with_rounding(of_ranks, exact_parts(name, group.size()), hook.type);
          EXPECT_TRUE(torch::equal(item.value().grad().cpu(), mean)) << what;
        }
      }
    }
  });
}

// Each half type has numbers that the other one rounds or cannot hold.
TEST_P(TrainingConformance, CompressHooksLeaveHalfTypesAsTheyAre) {
  struct Case {
    at::ScalarType type;
    double value;
    double tolerance;  // relative
  };
  run_in_group([](Rank& /*rank*/, ProcessGroup& group) {
    for (const Case& c : {Case{at::kBFloat16, 1e5, 1e-2}, Case{at::kHalf, 1 + 3. / 1024, 1e-3}}) {
      for (const CompressHook& hook : kCompressHooks) {
        const at::Tensor tensor =
            at::full({5}, c.value, at::TensorOptions(c.type).device(device_of_nets(group)));
        group.all_reduce_compressed(tensor, hook.type, {.op = ReduceOp::mean}).wait();
        EXPECT_NEAR(tensor[0].item<double>(), c.value, c.tolerance * c.value)
            << c.type << " with " << hook.name;
      }
    }
  });
}

// Where elements are rounded, ranks notice that they do not agree on how: each that differs from
// rank 0, which ends the group.
TEST_P(TrainingConformance, ACompressHookOnOneRankOnlyIsAnError) {
  if (rounds_nowhere(backend().name, size()) || size() == 1) GTEST_SKIP() << "nothing is rounded";
  if (backend().sums_by_a_library) GTEST_SKIP() << "NCCL compares no calls unless asked to";
  run_in_group([&](Rank& rank, ProcessGroup& group) {
    Mlp net;
    DistributedDataParallel model(net, group.shared_from_this());
    const auto backward = [&] { model(values({4, 6})).sum().backward(); };
    const char* const difference = "rank 0 has no communication hook, this rank a communication";
    if (rank.rank() < group.size() - 1) {
      expect_error<PeerLost>("backward", {"ended the group", difference}, backward);
    } else {
      model->register_comm_hook(bf16_compress_hook(group));
      expect_error<UsageError>("backward", {difference}, backward);
    }
  });
}

TEST_P(TrainingConformance, CompressHooksShowGradientsThatAreNotFinite) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (const CompressHook& hook : kCompressHooks) {
      torch::nn::Linear net(3, 1);
      net->to(device_of_nets(group));
      DistributedDataParallel model(net, group.shared_from_this());
      model->register_comm_hook(hook.make(group));
      const bool last = rank.rank() == group.size() - 1;
      const float infinite = last ? std::numeric_limits<float>::infinity() : 1;
      const float missing = last ? std::numeric_limits<float>::quiet_NaN() : 1;
      model(at::tensor({infinite, missing, 1.F}).view({1, 3}).to(device_of_nets(group)))
          .sum()
          .backward();
      const at::Tensor gradient = net->weight.grad().cpu();
      EXPECT_TRUE(gradient[0][0].isinf().item<bool>()) << hook.name;
      EXPECT_TRUE(gradient[0][1].isnan().item<bool>()) << hook.name;
      EXPECT_NEAR(gradient[0][2].item<double>(), 1, 0.01) << hook.name;
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
