// SPDX-License-Identifier: BSD-3-Clause
// Backward with whole_gradients = false, as optimizers see it.
#include <cmath>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/optim/ranks.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>

#include "lockstep/amp/grad_scaler.h"
#include "lockstep/core/error.h"
#include "lockstep/hooks/comm_hooks.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/join.h"
#include "lockstep/parallel/model_checks.h"

namespace lockstep::optim {
namespace {

using ::testing::HasSubstr;
using testing::message_of;
using testing::Mlp;
using testing::OnRank;
using testing::run_on_two_hosts;
using testing::run_processes;
using testing::run_threads;

// How ranks run: as threads, whose gradients are reduced in backward, or as processes that share
// memory, where the optimizer reduces them in its step. Processes may have one copy of the
// parameters, or one on each of two hosts, with two ranks there whatever a test asks for: only
// hosts that are alike add up whole and divided gradients in one order.
struct Ranks {
  std::string name;
  std::function<void(int size, const OnRank& function)> run;
  bool one_copy = false;
};

void PrintTo(const Ranks& ranks, std::ostream* stream) {
  *stream << ranks.name;
}

class DividedGradients : public ::testing::TestWithParam<Ranks> {
 protected:
  void run(int size, const OnRank& function) { GetParam().run(size, function); }

  // With a bucket for each parameter.
  DistributedDataParallelOptions options() const {
    return {.bucket_cap_mb = 0,
            .first_bucket_mb = 0,
            .whole_gradients = false,
            .one_copy_per_host = GetParam().one_copy};
  }
};

INSTANTIATE_TEST_SUITE_P(
    Ranks, DividedGradients,
    ::testing::Values(Ranks{"threads", run_threads}, Ranks{"processes", run_processes},
                      Ranks{"one_copy", run_processes, true},
                      Ranks{"one_copy_on_each_host",
                            [](int, const OnRank& function) { run_on_two_hosts(4, function); },
                            true}),
    [](const auto& info) { return info.param.name; });

// A layer that only some ranks use, one that none uses, and one in channels_last.
struct BranchingImpl : torch::nn::Module {
  BranchingImpl() {
    register_module("conv", conv);
    register_module("sometimes", sometimes);
    register_module("never", never);
    conv->to(at::kFloat);
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  at::Tensor forward(const at::Tensor& x, bool branch) {
    const at::Tensor y = conv(x).mean({2, 3});
    return branch ? sometimes(y) : y;
  }

  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 4, 3)};
  torch::nn::Linear sometimes{4, 4};
  torch::nn::Linear never{5, 3};
};
TORCH_MODULE(Branching);

template <class Net>
void expect_same(const Net& one, const Net& other) {
  for (const auto& item : other->named_parameters()) {
    EXPECT_TRUE(at::equal(one->named_parameters()[item.key()], item.value())) << item.key();
  }
}

// A net trained with divided gradients by a sharded optimizer, beside its copy that is trained with
// whole ones by an optimizer that is not.
template <class Net>
struct Both {
  Both(const std::shared_ptr<ProcessGroup>& group, const DistributedDataParallelOptions& options)
      : whole_model(whole, group, testing::kManyBuckets) {
    testing::copy_state(*divided, *whole);
    model = DistributedDataParallel<Net>(divided, group, options);
    optimizer = std::make_unique<Adam>(model, 0.01);
    whole_optimizer = std::make_unique<Adam>(whole->parameters(), 0.01);
  }

  // Calls `work` with each model and its optimizer.
  template <class Work>
  void each(const Work& work) {
    work(model, *optimizer);
    work(whole_model, *whole_optimizer);
  }

  // A step of each; `change(model)` comes between backward and the optimizer.
  template <class Change>
  void take_step(const at::Tensor& x, const Change& change) {
    each([&](auto& wrapped, Adam& by) {
      by.zero_grad();
      wrapped(x).square().mean().backward();
      change(wrapped);
      by.step();
    });
  }
  void take_step(const at::Tensor& x) {
    take_step(x, [](auto&) {});
  }

  Net divided;
  Net whole;
  DistributedDataParallel<Net> whole_model;
  DistributedDataParallel<Net> model{nullptr};
  std::unique_ptr<Adam> optimizer;
  std::unique_ptr<Adam> whole_optimizer;
};

TEST_P(DividedGradients, LeaveUnusedParametersAlone) {
  run(3, [this](const std::shared_ptr<ProcessGroup>& group) {
    Both<Branching> both(group, options());
    const at::Tensor x = testing::values({2, 3, 6, 6}) + group->rank();
    for (int step = 0; step < 4; ++step) {
      both.each([&](auto& model, Adam& optimizer) {
        optimizer.zero_grad();
        model(x, step > 0 && group->rank() == 1).square().mean().backward();
        optimizer.step();
      });
    }
    expect_same(both.divided, both.whole);
    EXPECT_THAT(both.model->unused_parameters(),
                ::testing::UnorderedElementsAre("never.weight", "never.bias"));
  });
}

TEST_P(DividedGradients, AccumulateUnderNoSync) {
  run(2, [this](const std::shared_ptr<ProcessGroup>& group) {
    Both<Mlp> both(group, options());
    const at::Tensor x = testing::values({4, 6}) + group->rank();
    for (int step = 0; step < 3; ++step) {
      both.each([&](auto& model, Adam& optimizer) {
        optimizer.zero_grad();
        {
          const auto guard = model->no_sync();
          model(x + 1).square().mean().backward();
        }
        model(x).square().mean().backward();
        optimizer.step();
      });
    }
    expect_same(both.divided, both.whole);
  });
}

TEST_P(DividedGradients, AreClippedLikeWholeOnes) {
  run(2, [this](const std::shared_ptr<ProcessGroup>& group) {
    Both<Mlp> both(group, options());
    const at::Tensor x = testing::values({4, 6}) + group->rank();
    for (int step = 0; step < 4; ++step) {
      std::vector<double> norms;
      both.take_step(x, [&](auto& model) {
        clip_grad_value_(model, 0.5);
        if (step != 2) norms.push_back(clip_grad_norm_(model, 0.1));
      });
      if (step != 2) {
        EXPECT_DOUBLE_EQ(norms[0], norms[1]);
      }
    }
    expect_same(both.divided, both.whole);
  });
}

TEST_P(DividedGradients, AreUnscaledInTheStep) {
  run(2, [this](const std::shared_ptr<ProcessGroup>& group) {
    Both<Mlp> both(group, options());
    const at::Tensor x = testing::values({4, 6}) + group->rank();
    both.each([&](auto& model, Adam& optimizer) {
      GradScaler scaler({.init_scale = 8});
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        // A gradient is infinite on one rank, in the third step.
        const double factor = step == 2 && group->rank() == 1 ? INFINITY : 1;
        scaler.scale(model(x).square().mean() * factor).backward();
        EXPECT_EQ(scaler.step(optimizer), step != 2);
        scaler.update();
      }
    });
    expect_same(both.divided, both.whole);
  });
}

TEST_P(DividedGradients, MayBeReplacedBeforeTheStep) {
  run(2, [this](const std::shared_ptr<ProcessGroup>& group) {
    Both<Mlp> both(group, options());
    const at::Tensor x = testing::values({4, 6}) + group->rank();
    for (int step = 0; step < 3; ++step) {
      both.take_step(x, [](auto& model) {
        const at::NoGradGuard no_grad;
        for (const at::Tensor& parameter : model->parameters()) {
          parameter.mutable_grad() = parameter.grad() * 4;
        }
      });
    }
    expect_same(both.divided, both.whole);
  });
}

TEST_P(DividedGradients, AreMeansAfterTheStep) {
  run(2, [this](const std::shared_ptr<ProcessGroup>& group) {
    Both<Mlp> both(group, options());
    const at::Tensor x = testing::values({4, 6}) + group->rank();
    for (int step = 0; step < 3; ++step) {
      both.take_step(x);
      // Each element is a mean on the rank that owns it.
      for (const auto& item : both.whole->named_parameters()) {
        const at::Tensor mean = item.value().grad();
        const at::Tensor own = both.divided->named_parameters()[item.key()].grad().eq(mean);
        const at::Tensor ranks = own.to(at::kInt);
        group->all_reduce(ranks).wait();
        EXPECT_TRUE(ranks.ge(1).all().item<bool>()) << item.key();
      }
    }
  });
}

TEST_P(DividedGradients, AreWholeWithAHookWhichOneCopyRefuses) {
  run(2, [this](const std::shared_ptr<ProcessGroup>& group) {
    Both<Mlp> both(group, options());
    if (options().one_copy_per_host) {
      EXPECT_THAT(message_of<UsageError>(
                      [&] { both.model->register_comm_hook(bf16_compress_hook(group)); }),
                  HasSubstr("with one_copy_per_host the ranks have one copy"));
      return;
    }
    both.model->register_comm_hook(bf16_compress_hook(group));
    const at::Tensor x = testing::values({4, 6}) + group->rank();
    for (int step = 0; step < 3; ++step) both.take_step(x);
    expect_same(both.divided, both.whole);
  });
}

TEST_P(DividedGradients, FollowTheOthersInJoin) {
  run(3, [this](const std::shared_ptr<ProcessGroup>& group) {
    Both<Mlp> both(group, options());
    const at::Tensor x = testing::values({4, 6}) + group->rank();
    both.each([&](auto& model, Adam& optimizer) {
      const auto follow = [&] {
        optimizer.step();
        optimizer.zero_grad();
      };
      join(
          model,
          [&] {
            for (int step = 0; step < 2 + group->rank(); ++step) {
              model(x).square().mean().backward();
              follow();
            }
          },
          follow);
    });
    expect_same(both.divided, both.whole);
  });
}

TEST_P(DividedGradients, ThatAreNotFiniteAreNamedOnEveryRank) {
  run(3, [this](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallelOptions checked = options();
    checked.check_finite = true;
    DistributedDataParallel model(net, group, checked);
    Adam optimizer(model, 0.01);
    at::Tensor x = testing::values({4, 6});
    model(x).square().mean().backward();
    optimizer.zero_grad();
    if (group->rank() == 1) x[0][0] = std::nan("");
    EXPECT_THAT(message_of<NonFiniteGradient>([&] { model(x).square().mean().backward(); }),
                HasSubstr("is not finite on rank 1"));
  });
}

TEST_P(DividedGradients, RefuseASecondBackwardWithoutZeroGrad) {
  run(2, [this](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, options());
    Adam optimizer(model, 0.01);
    const at::Tensor x = testing::values({4, 6});
    const auto backward = [&] { model(x).square().mean().backward(); };
    backward();
    {
      const auto guard = model->no_sync();
      EXPECT_THAT(message_of<UsageError>(backward), HasSubstr("would add its gradient"));
    }
    optimizer.zero_grad();
    backward();  // the group is usable
    EXPECT_THAT(message_of<UsageError>(backward), HasSubstr("would add its gradient"));
  });
}

TEST_P(DividedGradients, NeedAnOptimizerForThem) {
  run(2, [this](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, options());
    torch::optim::Adam optimizer(net->parameters(), 0.01);
    const auto backward = [&] { model(testing::values({4, 6})).square().mean().backward(); };
    backward();
    optimizer.zero_grad();
    EXPECT_THAT(message_of<UsageError>(backward), HasSubstr("no optimizer was made"));
  });
}

TEST_P(DividedGradients, GroupsKeepTheirOptionsAndAPartOfTheModelCanBeLeftOut) {
  run(2, [this](const std::shared_ptr<ProcessGroup>& group) {
    Both<Mlp> both(group, options());
    const auto groups_of = [](const Mlp& net) {
      const auto parameters = net->parameters();
      std::vector<torch::optim::OptimizerParamGroup> groups;
      groups.emplace_back(std::vector<at::Tensor>{parameters[0]});
      groups.emplace_back(std::vector<at::Tensor>{parameters[1], parameters[2]},
                          std::make_unique<torch::optim::AdamOptions>(
                              torch::optim::AdamOptions(0.1).weight_decay(0.2)));
      return groups;
    };
    both.optimizer = std::make_unique<Adam>(groups_of(both.divided), 0.01, both.model);
    both.whole_optimizer = std::make_unique<Adam>(groups_of(both.whole), 0.01);
    const at::Tensor x = testing::values({4, 6}) + group->rank();
    for (int step = 0; step < 3; ++step) {
      both.each([&](auto& model, Adam& optimizer) {
        for (const at::Tensor& parameter : model->parameters()) parameter.mutable_grad().reset();
        model(x).square().mean().backward();
        optimizer.step();
      });
    }
    expect_same(both.divided, both.whole);
  });
}

TEST_P(DividedGradients, AParameterOfAnotherModelIsRefused) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    Mlp other;
    DistributedDataParallel model(net, group);
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(other->parameters());
    EXPECT_THAT(message_of<UsageError>([&] { Adam(groups, 0.01, model); }),
                HasSubstr("is not one that the wrapped model had"));
  });
}

}  // namespace
}  // namespace lockstep::optim
