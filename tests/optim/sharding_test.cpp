// SPDX-License-Identifier: BSD-3-Clause
// Sharded optimizers beside those that are not, on ranks that are threads.
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>
#include <torch/types.h>
#include <torch/utils.h>

#include "lockstep/comm/objects.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep::optim {
namespace {

using testing::message_of;
using testing::run_rank_threads;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;
using Parameters = std::vector<at::Tensor>;

const std::vector<std::vector<std::int64_t>> kShapes = {{33, 50},     {7},   {},
                                                        {3, 4, 5, 2}, {400}, {0}};

// Drawn by one thread, since all share libtorch's generator.
std::vector<at::Tensor> drawn(int seed) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  torch::manual_seed(seed);
  std::vector<at::Tensor> tensors;
  for (const auto& shape : kShapes) tensors.push_back(at::randn(shape));
  return tensors;
}

Parameters make_parameters(at::ScalarType type = at::kFloat) {
  Parameters parameters;
  for (const at::Tensor& values : drawn(1)) {
    parameters.push_back(values.to(type, false, true).set_requires_grad(true));
  }
  return parameters;
}

// The same on every rank.
void give_gradients(const Parameters& parameters, int step) {
  const auto gradients = drawn(100 + step);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad() = gradients[i].to(parameters[i].scalar_type(), false, true);
  }
}

void take_steps(torch::optim::Optimizer& optimizer, const Parameters& parameters, int first,
                int last) {
  for (int step = first; step < last; ++step) {
    give_gradients(parameters, step);
    optimizer.step();
  }
}

void expect_same_bits(const Parameters& some, const Parameters& others) {
  for (std::size_t i = 0; i < some.size(); ++i) EXPECT_TRUE(at::equal(some[i], others[i])) << i;
}

// Makes an optimizer of either kind.
struct Maker {
  std::string name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(Parameters)> alone;
  std::function<std::unique_ptr<torch::optim::Optimizer>(Parameters, std::shared_ptr<ProcessGroup>)>
      sharded;
  // Calls consolidate_state() of a sharded optimizer.
  std::function<void(torch::optim::Optimizer&)> consolidate;
};

template <class Optimizer, class Options>
Maker make(std::string name, const Options& options) {
  return {std::move(name),
          [options](Parameters parameters) {
            return std::make_unique<Optimizer>(std::move(parameters), options);
          },
          [options](Parameters parameters, std::shared_ptr<ProcessGroup> group) {
            return std::make_unique<Optimizer>(std::move(parameters), options, std::move(group));
          },
          [](torch::optim::Optimizer& optimizer) {
            dynamic_cast<Optimizer&>(optimizer).consolidate_state();
          }};
}

class ShardedOptimizer : public ::testing::TestWithParam<Maker> {};

TEST_P(ShardedOptimizer, HasTheBitsOfOneThatIsNot) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const Parameters expected = make_parameters(type);
    take_steps(*GetParam().alone(expected), expected, 0, 10);
    for (const int ranks : {1, 2, 3}) {
      run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
        const Parameters parameters = make_parameters(type);
        take_steps(*GetParam().sharded(parameters, group), parameters, 0, 10);
        expect_same_bits(parameters, expected);
      });
    }
  }
}

TEST_P(ShardedOptimizer, GoesOnWithAnotherNumberOfRanks) {
  const Parameters expected = make_parameters();
  take_steps(*GetParam().alone(expected), expected, 0, 10);
  std::string file;
  std::vector<at::Tensor> values;
  run_rank_threads(3, [&](const std::shared_ptr<ProcessGroup>& group) {
    const Parameters parameters = make_parameters();
    const auto optimizer = GetParam().sharded(parameters, group);
    take_steps(*optimizer, parameters, 0, 4);
    GetParam().consolidate(*optimizer);
    if (group->rank() != 0) return;
    std::ostringstream stream;
    torch::save(*optimizer, stream);
    file = stream.str();
    for (const at::Tensor& parameter : parameters) values.push_back(parameter.detach().clone());
  });
  const auto go_on = [&](torch::optim::Optimizer& optimizer, const Parameters& parameters) {
    for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].detach().copy_(values[i]);
    std::istringstream stream(file);
    torch::load(optimizer, stream);
    take_steps(optimizer, parameters, 4, 10);
    expect_same_bits(parameters, expected);
  };
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const Parameters parameters = make_parameters();
    go_on(*GetParam().sharded(parameters, group), parameters);
  });
  const Parameters parameters = make_parameters();
  go_on(*GetParam().alone(parameters), parameters);
}

INSTANTIATE_TEST_SUITE_P(Of, ShardedOptimizer,
                         ::testing::Values(make<SGD>("sgd", SGDOptions(0.1)),
                                           make<SGD>("momentum",
                                                     SGDOptions(0.1).momentum(0.9).nesterov(true)),
                                           make<Adam>("adam", AdamOptions(0.01).weight_decay(0.1)),
                                           make<Adam>("amsgrad", AdamOptions(0.01).amsgrad(true)),
                                           make<AdamW>("adamw", AdamWOptions(0.01))),
                         [](const auto& test) { return test.param.name; });

TEST(Sharding, KeepsAPartOfTheStateOnEachRank) {
  run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor large = at::ones({300, 100}).set_requires_grad(true);
    Adam optimizer({large}, 0.1, group);
    EXPECT_TRUE(optimizer.is_sharded());
    large.mutable_grad() = at::ones_like(large);
    optimizer.step();
    std::int64_t elements = 0;
    for (const auto& [key, state] : optimizer.state()) {
      elements += static_cast<torch::optim::AdamParamState&>(*state).exp_avg().numel();
    }
    EXPECT_LE(elements, 10'500);
    EXPECT_GE(elements, 9'500);
  });
}

class ShardingOfAModel : public ::testing::TestWithParam<bool> {};

TEST_P(ShardingOfAModel, TrainsItsParametersWhichStayTheSameObjects) {
  run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    testing::Mlp net;
    testing::Mlp reference;
    testing::copy_state(*reference, *net);
    DistributedDataParallel model(
        net, group, {.bucket_cap_mb = 0, .first_bucket_mb = 0, .whole_gradients = GetParam()});
    DistributedDataParallel reference_model(reference, group);
    const Parameters before = net->parameters();
    Adam optimizer(model, 0.01);
    Adam whole(reference->parameters(), 0.01);
    const at::Tensor x = testing::values({4, 6}) + group->rank();
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      whole.zero_grad();
      model(x).square().mean().backward();
      reference_model(x).square().mean().backward();
      optimizer.step();
      whole.step();
    }
    expect_same_bits(net->parameters(), reference->parameters());
    for (std::size_t i = 0; i < before.size(); ++i) {
      EXPECT_TRUE(before[i].is_same(net->parameters()[i])) << i;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(With, ShardingOfAModel, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "WholeGradients" : "DividedGradients");
});

TEST(Sharding, AModelsOptimizerLoadsBeforeTheFirstBackward) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    testing::Mlp net;
    DistributedDataParallel model(net, group, {.whole_gradients = false});
    const at::Tensor x = testing::values({4, 6}) + group->rank();
    const auto train = [&](Adam& optimizer) {
      optimizer.zero_grad();
      model(x).square().mean().backward();
      optimizer.step();
    };
    Adam first(model, 0.01);
    train(first);
    std::stringstream file;
    first.consolidate_state();
    if (group->rank() == 0) torch::save(first, file);
    const std::string bytes = broadcast_object(file.str(), 0, *group);
    std::vector<at::Tensor> saved;
    for (const auto& parameter : net->parameters()) saved.push_back(parameter.detach().clone());
    train(first);
    testing::Mlp other;
    DistributedDataParallel other_model(other, group);
    for (std::size_t i = 0; i < saved.size(); ++i) {
      other->parameters()[i].detach().copy_(saved[i]);
    }
    Adam second(other_model, 0.01);  // libtorch 1.13 does not load it
    std::istringstream stream(bytes);
    torch::load(second, stream);
    second.zero_grad();
    other_model(x).square().mean().backward();
    second.step();
    expect_same_bits(other->parameters(), net->parameters());
  });
}

TEST(Sharding, StepNeedsABackwardOfTheModel) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    testing::Mlp net;
    DistributedDataParallel model(net, group);
    Adam optimizer(model, 0.01);
    optimizer.step();  // there is nothing to do
    net->parameters()[0].mutable_grad() = at::ones_like(net->parameters()[0]);
    EXPECT_THAT(message_of<UsageError>([&] { optimizer.step(); }),
                ::testing::HasSubstr("no backward of the wrapped model"));
  });
}

// Ranks would stay equal, and each part would be updated with one rank's gradient.
TEST(Sharding, GradientsThatBypassTheOutputsAreReducedOrRefused) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    testing::Mlp net, reference;
    testing::set_weights(*net, 1);
    testing::copy_state(*reference, *net);
    DistributedDataParallel model(net, group);
    SGD optimizer(model, 0.1);
    SGD reference_optimizer(reference->parameters(), 0.1);
    const auto input = [](int rank) { return testing::values({4, 6}, rank); };
    const auto keep_square = [](testing::Mlp& of, const at::Tensor& x) {
      return of->hidden(x).square().mean();
    };
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      reference_optimizer.zero_grad();
      model(input(group->rank())).mean().backward();
      keep_square(net, input(group->rank())).backward();
      for (int rank = 0; rank < 2; ++rank) {
        ((reference(input(rank)).mean() + keep_square(reference, input(rank))) / 2).backward();
      }
      optimizer.step();
      reference_optimizer.step();
      const auto expected = reference->parameters();
      for (std::size_t i = 0; i < expected.size(); ++i) {
        testing::expect_close(net->parameters()[i], expected[i], std::to_string(i));
      }
    }
    optimizer.zero_grad();
    keep_square(net, input(group->rank())).backward();
    EXPECT_THAT(message_of<UsageError>([&] { optimizer.step(); }),
                ::testing::HasSubstr("has parts that were not reduced"));
  });
}

// Their number shows whether ranks are in the same step.
TEST(Sharding, ParametersChangeEquallyOftenOnEveryRank) {
  run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    testing::Mlp net;
    DistributedDataParallel model(net, group);
    Adam optimizer(model, 0.01);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      model(testing::values({4, 6}, group->rank())).mean().backward();
      optimizer.step();
    }
    for (const at::Tensor& parameter : net->parameters()) {
      const auto version = static_cast<std::int64_t>(parameter._version());
      const at::Tensor first = at::full({1}, version, at::kLong);
      group->broadcast(first, 0).wait();
      EXPECT_EQ(version, first.item<std::int64_t>());
    }
  });
}

TEST(Sharding, ChangesOfOneRankAreNamedInBackward) {
  for (const bool whole : {true, false}) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      testing::Mlp net;
      DistributedDataParallel model(net, group, {.whole_gradients = whole});
      Adam sharded(model, 0.01);
      const at::Tensor x = testing::values({4, 6}, group->rank());
      const auto train = [&] {
        sharded.zero_grad();
        model(x).mean().backward();
      };
      for (int step = 0; step < 3; ++step) {
        train();
        sharded.step();
      }
      EXPECT_THAT(message_of<UsageError>([&] {
                    for (int step = 0; step < 4; ++step) {
                      if (group->rank() == 1) net->last->bias.detach().add_(1);
                      train();
                    }
                  }),
                  ::testing::HasSubstr("the ranks are in different steps"));
    });
  }
}

TEST(Sharding, SavingAPartIsAnErrorThatSaysWhatToDo) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Parameters parameters = make_parameters();
    Adam optimizer(parameters, 0.1, group);
    take_steps(optimizer, parameters, 0, 1);
    std::ostringstream stream;
    EXPECT_THAT(message_of<UsageError>([&] { torch::save(optimizer, stream); }),
                ::testing::HasSubstr("consolidate_state"));
    optimizer.consolidate_state(1);
    EXPECT_EQ(message_of<UsageError>([&] { torch::save(optimizer, stream); }).empty(),
              group->rank() == 1);
    take_steps(optimizer, parameters, 1, 2);
    EXPECT_THAT(message_of<UsageError>([&] { torch::save(optimizer, stream); }),
                ::testing::HasSubstr("consolidate_state"));
  });
}

TEST(Sharding, DifferentOptionsAreNamedOnEveryRank) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    EXPECT_THAT(
        message_of<UsageError>([&] { Adam(make_parameters(), 0.1 + group->rank(), group); }),
        ::testing::AllOf(::testing::HasSubstr("lockstep::optim::Adam"),
                         ::testing::HasSubstr("lr 0.1"), ::testing::HasSubstr("lr 1.1")));
  });
}

TEST(Sharding, ChangedOptionsAreComparedInTheNextStep) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Parameters parameters = make_parameters();
    Adam optimizer(parameters, 0.1, group);
    const auto step_with = [&](double rate) {
      optimizer.param_groups()[0].options().set_lr(rate);
      take_steps(optimizer, parameters, 0, 1);
    };
    step_with(0.2);
    EXPECT_THAT(message_of<UsageError>([&] { step_with(0.3 + group->rank()); }),
                ::testing::AllOf(::testing::HasSubstr("rank 0 has lr 0.3"),
                                 ::testing::HasSubstr("rank 1 has lr 1.3")));
  });
}

TEST(Sharding, OptionsThatOneRankChangesAloneAreAnError) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Parameters parameters = make_parameters();
    Adam optimizer(parameters, 0.1, group);
    if (group->rank() == 1) optimizer.param_groups()[0].options().set_lr(0.2);
    const std::string message =
        message_of<UsageError>([&] { take_steps(optimizer, parameters, 0, 1); });
    EXPECT_THAT(message, ::testing::HasSubstr("all_gather"));
    if (group->rank() == 1) {
      EXPECT_THAT(message, ::testing::HasSubstr("this rank's options have changed, to lr 0.2"));
    }
  });
}

TEST(Sharding, AGroupThatIsAddedTooLateIsAnError) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Adam optimizer(make_parameters(), 0.1, group);
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(make_parameters()));
    EXPECT_THAT(message_of<UsageError>([&] { optimizer.step(); }),
                ::testing::HasSubstr("a parameter group was added"));
  });
}

TEST(Sharding, AStateThatLacksAnAddedGroupIsNotSaved) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Adam optimizer(make_parameters(), 0.1, group);
    optimizer.consolidate_state();
    optimizer.add_param_group(torch::optim::OptimizerParamGroup(make_parameters()));
    EXPECT_THAT(message_of<UsageError>([&] { optimizer.with_whole_state(); }),
                ::testing::HasSubstr("call consolidate_state(to) on every rank"));
  });
}

TEST(Sharding, ParametersInTheSameMemoryAreAnError) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor one = at::ones({3}).set_requires_grad(true);
    const Parameters parameters{one, at::ones({2}), one.detach().set_requires_grad(true)};
    EXPECT_THAT(message_of<UsageError>([&] { Adam optimizer(parameters, 0.1, group); }),
                ::testing::HasSubstr("parameters 0 and 2 are two tensors in the same memory"));
    const Adam updates_all(parameters, 0.1);
  });
}

TEST(Sharding, OneParameterCannotHaveTwoOptimizers) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Parameters parameters = make_parameters();
    Adam first(parameters, 0.1, group);
    Adam second({parameters[3]}, 0.1, group);
    give_gradients(parameters, 0);
    EXPECT_THAT(message_of<UsageError>([&] { first.step(); }),
                ::testing::HasSubstr("parameter 3 has been moved out of the optimizer's memory"));
    second.step();
  });
}

TEST(Sharding, TheFileOfAnotherModelIsRefused) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Parameters larger{at::ones({9}).set_requires_grad(true)};
    Adam other(larger, 0.1);
    larger[0].mutable_grad() = at::ones({9});
    other.step();
    std::stringstream file;
    torch::save(other, file);
    Adam optimizer({at::ones({7}).set_requires_grad(true)}, 0.1, group);
    EXPECT_THAT(message_of<UsageError>([&] { torch::load(optimizer, file); }),
                ::testing::HasSubstr("the file has Float [9] as the state of parameter 0"));
  });
}

TEST(Sharding, WhatSomeRanksHaveLoadedIsCompared) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Parameters parameters = make_parameters();
    Adam optimizer(parameters, 0.1, group);
    take_steps(optimizer, parameters, 0, 1);
    const Parameters own = make_parameters();
    Adam other(own, 0.1);
    take_steps(other, own, 0, 2 + group->rank());
    std::stringstream file;
    torch::save(other, file);
    torch::load(optimizer, file);
    EXPECT_THAT(message_of<UsageError>([&] { optimizer.step(); }),
                ::testing::AllOf(::testing::HasSubstr("updated 2 times"),
                                 ::testing::HasSubstr("updated 3 times")));
  });
}

TEST(Sharding, AParameterThatWasMovedIsNamed) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const Parameters parameters = make_parameters();
    Adam optimizer(parameters, 0.1, group);
    give_gradients(parameters, 0);
    parameters[1].set_data(at::ones({7}));
    EXPECT_THAT(message_of<UsageError>([&] { optimizer.step(); }),
                ::testing::HasSubstr("parameter 1 has been moved"));
  });
}

}  // namespace
}  // namespace lockstep::optim
