// SPDX-License-Identifier: BSD-3-Clause
// Models train over the backend's groups as a single process trains on the whole batch.
#include <algorithm>

#include "comm/conformance/conformance.h"
#include "comm/conformance/expect_error.h"
#include "support/limits.h"
#include "tests/parallel/models.h"
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/memory_loader.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/model_checks.h"
#include "lockstep/parallel/sync_batch_norm.h"

namespace lockstep::testing {
namespace {

constexpr int kSteps = 4;

// Where nets are: autograd does not know the tests' own GPUs, so theirs take tensors of the CPU.
at::Device net_device(const ProcessGroup& group) {
  return at::hasCUDA() ? group.device() : at::Device(at::kCPU);
}

// Starting weights that are the same in every run, moved away from them on ranks other than 0: to
// wrap the model is to give all ranks rank 0's.
Mlp make_net(int rank) {
  Mlp net;
  const torch::NoGradGuard no_grad;
  double salt = 0;
  for (at::Tensor& parameter : net->parameters()) {
    parameter.copy_(values(parameter.sizes(), ++salt) / 3 + rank);
  }
  return net;
}

at::Tensor batch_of(int stage) {
  return values({12, 6}, 100 + stage);
}

at::Tensor loss_of(const at::Tensor& output) {
  return output.square().mean();
}

void take_step(torch::nn::Module& net) {
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : net.parameters()) parameter.sub_(parameter.grad(), 0.1);
}

// What a single process on the CPU makes of the same batches.
Mlp train_alone() {
  Mlp net = make_net(0);
  for (int stage = 0; stage < kSteps; ++stage) {
    reset_gradients(*net);
    loss_of(net->forward(batch_of(stage))).backward();
    take_step(*net);
  }
  return net;
}

void expect_trained(const torch::nn::Module& net, ProcessGroup& group) {
  const auto expected = train_alone()->named_parameters();
  for (const auto& item : net.named_parameters()) {
    const at::Tensor actual = item.value().detach().clone();
    expect_close(actual.cpu(), expected[item.key()].detach(), item.key());
    const at::Tensor of_rank_0 = actual.clone();
    group.broadcast(of_rank_0, 0).wait();
    EXPECT_TRUE(torch::equal(actual.cpu(), of_rank_0.cpu())) << item.key() << " differs by rank";
  }
}

TEST_P(TrainingConformance, DdpReducesLargeGradients) {
  run([&](Rank& rank) {
    const auto group = join(rank);
    Wide net;
    net->to(net_device(*group));
    DistributedDataParallel model(net, group);
    Wide reference;
    copy_state(*reference, *net);
    const at::Tensor x = values({12, 6});
    for (int stage = 0; stage < 3; ++stage) {
      reset_gradients(*net);
      reset_gradients(*reference);
      loss_of(model(part(x, rank.rank(), group->size()).to(net_device(*group)))).backward();
      loss_of(reference->forward(x)).backward();
      for (const auto& item : net->named_parameters()) {
        expect_close(item.value().grad().cpu(), reference->named_parameters()[item.key()].grad(),
                     item.key());
      }
    }
  });
}

// Beside one that gets the same means and is not sharded. NCCL may round a divided mean in another
// way than a whole one.
template <class Optimizer, class Options>
void expect_same_bits_sharded(const std::shared_ptr<ProcessGroup>& group, const Options& options) {
  Mlp reference = make_net(0);
  Mlp whole_net = make_net(0);
  Mlp divided_net = make_net(0);
  for (Mlp net : {reference, whole_net, divided_net}) net->to(net_device(*group));
  DistributedDataParallel model(reference, group);
  DistributedDataParallel whole_model(whole_net, group);
  DistributedDataParallel divided_model(divided_net, group, {.whole_gradients = false});
  Optimizer optimizer(reference->parameters(), options);
  Optimizer sharded(whole_model, options);
  Optimizer divided(divided_model, options);
  const bool adds_alike = group->device().is_cpu();
  for (int stage = 0; stage < kSteps; ++stage) {
    const at::Tensor x = part(batch_of(stage), group->rank(), group->size()).to(net_device(*group));
    const auto take_step = [&](auto& net, auto& wrapper, auto& by) {
      reset_gradients(*net);
      loss_of(wrapper(x)).backward();
      by.step();
    };
    take_step(reference, model, optimizer);
    take_step(whole_net, whole_model, sharded);
    take_step(divided_net, divided_model, divided);
  }
  for (const auto& item : reference->named_parameters()) {
    const at::Tensor& expected = item.value();
    EXPECT_TRUE(torch::equal(whole_net->named_parameters()[item.key()], expected)) << item.key();
    const at::Tensor other = divided_net->named_parameters()[item.key()];
    EXPECT_TRUE(adds_alike ? torch::equal(other, expected)
                           : torch::allclose(other, expected, 1e-4, 1e-6))
        << item.key();
  }
}

TEST_P(TrainingConformance, AShardedOptimizerHasTheBitsOfOneThatIsNot) {
  run([&](Rank& rank) {
    const auto group = join(rank);
    expect_same_bits_sharded<optim::SGD>(group, torch::optim::SGDOptions(0.01).momentum(0.9));
    expect_same_bits_sharded<optim::Adam>(group, torch::optim::AdamOptions(0.01));
    expect_same_bits_sharded<optim::AdamW>(group, torch::optim::AdamWOptions(0.01));
  });
}

TEST_P(TrainingConformance, DdpTrainsAsOneProcessDoes) {
  for (const auto& options : {kOneBucket, kManyBuckets}) {
    run([&](Rank& rank) {
      const auto group = join(rank);
      Mlp net = make_net(rank.rank());
      net->to(net_device(*group));
      DistributedDataParallel model(net, group, options);
      for (int stage = 0; stage < kSteps; ++stage) {
        if (stage % 2) {
          zero_gradients(*net);
        } else {
          reset_gradients(*net);
        }
        const at::Tensor mine = part(batch_of(stage), rank.rank(), group->size());
        loss_of(model(mine.to(net_device(*group)))).backward();
        take_step(*net);
      }
      expect_trained(*net, *group);
    });
  }
}

TEST_P(TrainingConformance, ABatchMayBeLargerThanARanksData) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    Mlp net = make_net(rank.rank());
    net->to(net_device(group));
    DistributedDataParallel model(net, group.shared_from_this());
    for (int stage = 0; stage < kSteps; ++stage) {
      zero_gradients(*net);
      const at::Tensor samples = batch_of(stage);
      MemoryLoader loader(samples, at::zeros({samples.size(0)}),
                          DistributedSampler(12, group, {.shuffle = false}), {.batch_size = 1000});
      int batches = 0;
      for (const auto& batch : loader) {
        ++batches;
        EXPECT_EQ(batch.data.size(0), samples.size(0) / group.size());
        loss_of(model(batch.data.to(net_device(group)))).backward();
      }
      EXPECT_EQ(batches, 1);
      take_step(*net);
    }
    expect_trained(*net, group);
  });
}

TEST_P(TrainingConformance, NoSyncAddsUpBeforeItReduces) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    Mlp net = make_net(rank.rank());
    net->to(net_device(group));
    DistributedDataParallel model(net, group.shared_from_this());
    for (int stage = 0; stage < kSteps; ++stage) {
      zero_gradients(*net);
      const at::Tensor mine =
          part(batch_of(stage), rank.rank(), group.size()).to(net_device(group));
      const auto half_loss = [&](int half) { return loss_of(model(part(mine, half, 2))) / 2; };
      const auto sent = [&] { return group.bytes_sent(); };
      const auto before = sent();
      {
        const NoSync guard = model->no_sync();
        half_loss(0).backward();
        EXPECT_EQ(sent(), before);
      }
      half_loss(1).backward();
      EXPECT_EQ(sent() > before, group.size() > 1);
      take_step(*net);
    }
    expect_trained(*net, group);
  });
}

TEST_P(TrainingConformance, SubgroupsTrainApart) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    // The first rank by itself, the others together.
    const bool alone = rank.rank() == 0;
    std::vector<int> others;
    for (int other = 1; other < group.size(); ++other) others.push_back(other);
    const auto first = group.split({0});
    const auto rest = others.empty() ? nullptr : group.split(others);
    const auto own = alone ? first : rest;
    ASSERT_NE(own, nullptr);
    Mlp net = make_net(own->rank());
    net->to(net_device(group));
    DistributedDataParallel model(net, own);
    for (int stage = 0; stage < kSteps; ++stage) {
      zero_gradients(*net);
      const at::Tensor mine = part(batch_of(stage), own->rank(), own->size());
      loss_of(model(mine.to(net_device(group)))).backward();
      take_step(*net);
    }
    expect_trained(*net, *own);
    group.barrier().wait();
  });
}

// A group, a model, a loss that waits for its backward, and a work that is under way.
TEST_P(TrainingConformance, EveryOrderOfDestruction) {
  run([&](Rank& rank) {
    std::vector<int> order = {0, 1, 2, 3};
    int round = 0;
    do {
      rank.note(fmt::format("order {}", fmt::join(order, "")));
      auto group = join(rank, {.key = fmt::format("group-{}", round++)});
      Mlp net = make_net(rank.rank());
      net->to(net_device(*group));
      auto model = std::make_unique<DistributedDataParallel<Mlp>>(net, group);
      const at::Tensor batch = batch_of(0).to(net_device(*group));
      loss_of((*model)(batch)).backward();
      at::Tensor loss = loss_of((*model)(batch));
      const at::Tensor tensor = at::ones({3000});
      std::optional<Work> work = group->all_reduce(tensor);
      for (const int which : order) {
        if (which == 0) group.reset();
        if (which == 1) model.reset();
        if (which == 2) loss.reset();
        if (which == 3) work.reset();
      }
      EXPECT_TRUE((tensor == rank.size()).all().item<bool>());
      for (const at::Tensor& parameter : net->parameters()) {
        EXPECT_TRUE(torch::isfinite(parameter.grad()).all().item<bool>());
      }
    } while (std::next_permutation(order.begin(), order.end()));
  });
}

TEST_P(TrainingConformance, BucketsThatDoNotFitInMemoryAreRefusedOnEveryRank) {
  if (!backend().shares_memory) GTEST_SKIP() << "libtorch's own memory: refused by libtorch";
  constexpr std::int64_t kGradient = 8192 * 4096 * 4;
  run([&](Rank& rank) {
    const auto group = join(rank);
    torch::nn::Linear net(torch::nn::LinearOptions(8192, 4096).bias(false));
    // What else libtorch needs for a stage it has afterwards; its BLAS would wait for ever for it.
    net(torch::ones({1, 8192})).sum().backward();
    reset_gradients(*net);
    DistributedDataParallel model(net, group);
    // A bucket of one rank must not take the memory for the gradient of another.
    net->weight.register_hook([&](const at::Tensor&) { group->barrier().wait(); });
    group->barrier().wait();
    // Enough for this process's gradients, and for all of its buckets but half of one.
    const int ranks_in_process = rank.pid_of(rank.rank()) == 0 ? rank.size() : 1;
    if (!limit_memory(2 * ranks_in_process * kGradient - kGradient / 2)) return;
    group->barrier().wait();
    expect_error<BackendError>("the first backward",
                               {"empty #", "128\\.|its own error has the sizes", "memory"}, [&] {
                                 model(torch::ones({1, 8192})).sum().backward();
                               });
  });
}

TEST_P(TrainingConformance, NonFiniteGradientsAndRanksOutOfSyncAreNamed) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    const int last = group.size() - 1;
    Mlp net = make_net(rank.rank());
    net->to(net_device(group));
    DistributedDataParallel model(net, group.shared_from_this(), {.check_finite = true});
    for (int stage = 0; stage < 3; ++stage) {
      zero_gradients(*net);
      const bool breaks = stage == 1 && rank.rank() == last;
      const at::Tensor x = batch_of(stage).to(net_device(group)) / (breaks ? 0 : 1);
      const at::Tensor loss = loss_of(model(x));
      if (stage != 1) {
        loss.backward();
        take_step(*net);
        continue;
      }
      expect_error<NonFiniteGradient>(
          "backward",
          {"reducing gradients, rank [0-9]+ of [0-9]+: the gradient of hidden",
           fmt::format("not finite on rank {}", last)},
          [&] { loss.backward(); });
    }
    check_in_sync(model, {.gradients = true});
    if (last == 0) return;
    const torch::NoGradGuard no_grad;
    if (rank.rank() == last) net->last->bias.add_(1);
    expect_error<OutOfSync>(
        "check_in_sync",
        {"parameter last.bias has one value on rank", fmt::format("another on rank {}", last)},
        [&] { check_in_sync(model); });
  });
}

TEST_P(TrainingConformance, DataParallelInsideDdp) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    Mlp net = make_net(rank.rank());
    net->to(net_device(group));
    const at::Device device = net_device(group);
    const DataParallelOptions replicas = device.is_cuda()
                                             ? DataParallelOptions{.device_ids = {device, device}}
                                             : DataParallelOptions{.replicas = 2};
    DataParallel parallel(net, replicas);
    DistributedDataParallel model(parallel, group.shared_from_this());
    for (int stage = 0; stage < kSteps; ++stage) {
      zero_gradients(*net);
      const at::Tensor mine = part(batch_of(stage), rank.rank(), group.size());
      loss_of(model(mine.to(net_device(group)))).backward();
      take_step(*net);
    }
    expect_trained(*net, group);
  });
}

TEST_P(TrainingConformance, SyncBatchNormSeesTheBatchesOfAllRanks) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    const auto make = [] {
      torch::nn::Sequential net(torch::nn::Linear(6, 5), torch::nn::BatchNorm1d(5),
                                torch::nn::Tanh(), torch::nn::Linear(5, 3));
      set_weights(*net, 2);
      return net;
    };
    torch::nn::Sequential alone = make();
    torch::nn::Sequential net = make();
    net->to(net_device(group));
    convert_sync_batchnorm(net, group);
    DistributedDataParallel model(net, group);
    for (int stage = 0; stage < kSteps; ++stage) {
      reset_gradients(*alone);
      loss_of(alone->forward(batch_of(stage))).backward();
      take_step(*alone);
      reset_gradients(*net);
      const at::Tensor mine = part(batch_of(stage), rank.rank(), group.size());
      loss_of(model(mine.to(net_device(group)))).backward();
      take_step(*net);
    }
    const auto expected = alone->named_parameters();
    for (const auto& item : net->named_parameters()) {
      expect_close(item.value().detach().cpu(), expected[item.key()].detach(), item.key());
    }
    const auto buffers = alone->named_buffers();
    for (const auto& item : net->named_buffers()) {
      expect_close(item.value().cpu(), buffers[item.key()], item.key());
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
