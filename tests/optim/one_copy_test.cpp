// SPDX-License-Identifier: BSD-3-Clause
// One copy of the parameters for all ranks of a host: it trains to the same bits, and what would
// change it once for each rank is found.
#include "lockstep/parallel/one_copy.h"

#include <csignal>
#include <functional>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/optim/ranks.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/temporary_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include "lockstep/checkpoint/checkpoint_folder.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/averaged_model.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/parallel/model_checks.h"

namespace lockstep::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;
using testing::Mlp;
using testing::OnRank;
using testing::run_on_two_hosts;
using testing::run_processes;
using testing::Tied;

const DistributedDataParallelOptions kOneCopy{.one_copy_per_host = true};
const DistributedDataParallelOptions kSharded{.whole_gradients = false};

at::Tensor batch_of(const ProcessGroup& group, int step) {
  return testing::values({4, 6}) + group.rank() + 0.5 * step;
}

template <class Net>
void expect_equal(const Net& one, const Net& other) {
  for (const auto& item : other->named_parameters()) {
    EXPECT_TRUE(at::equal(one->named_parameters()[item.key()], item.value())) << item.key();
  }
}

// Returns the losses.
template <class Model>
std::vector<double> train(Model& model, torch::optim::Optimizer& optimizer, int first, int last) {
  std::vector<double> losses;
  const at::ScalarType type = model->parameters().front().scalar_type();
  for (int step = first; step < last; ++step) {
    optimizer.zero_grad();
    const at::Tensor loss = model(batch_of(*model->group(), step).to(type)).square().mean();
    loss.backward();
    optimizer.step();
    losses.push_back(loss.template item<double>());
  }
  return losses;
}

// Trains one net with one copy, and another with a copy on each rank, both sharded.
template <class Optimizer, class Net, class Options>
void expect_same_training(const std::shared_ptr<ProcessGroup>& group, Net net, Net other,
                          const Options& options) {
  testing::copy_state(*other, *net);
  DistributedDataParallel<Net> model(net, group, kOneCopy);
  DistributedDataParallel<Net> other_model(other, group, kSharded);
  for (const at::Tensor& parameter : net->parameters()) {
    EXPECT_EQ(has_one_copy(parameter), group->size() > 1);
  }
  Optimizer optimizer(model, options);
  Optimizer other_optimizer(other_model, options);
  EXPECT_EQ(train(model, optimizer, 0, 5), train(other_model, other_optimizer, 0, 5));
  expect_equal(net, other);
}

// Where the ranks are. A test that asks for some gets more if they are on two hosts.
struct Place {
  std::string name;
  std::function<void(int size, const OnRank& function)> run;
};

class OneCopyIn : public ::testing::TestWithParam<Place> {
 protected:
  void run(int size, const OnRank& function) { GetParam().run(size, function); }
};

INSTANTIATE_TEST_SUITE_P(Places, OneCopyIn,
                         ::testing::Values(Place{"one_host", run_processes},
                                           Place{"two_hosts",
                                                 [](int size, const OnRank& function) {
                                                   run_on_two_hosts(size + 1, function);
                                                 }}),
                         [](const auto& info) { return info.param.name; });

TEST_P(OneCopyIn, TrainsToTheBitsOfACopyOnEachRank) {
  for (const int ranks : {1, 2, 4}) {
    run(ranks, [](const std::shared_ptr<ProcessGroup>& group) {
      for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
        const auto net = [&] {
          Mlp made(1000, 7);  // a layer that several ranks own
          made->to(type);
          return made;
        };
        expect_same_training<SGD>(group, net(), net(),
                                  torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
        expect_same_training<Adam>(group, net(), net(), torch::optim::AdamOptions(0.01));
        expect_same_training<AdamW>(group, net(), net(), torch::optim::AdamWOptions(0.01));
      }
      expect_same_training<Adam>(group, Tied(), Tied(), torch::optim::AdamOptions(0.01));
    });
  }
}

TEST_P(OneCopyIn, OfAFrozenParameterAndWithWeightsOfRank0) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    testing::set_weights(*net, 1 + group->rank());
    Mlp of_rank_0;
    testing::set_weights(*of_rank_0, 1);
    net->hidden->weight.requires_grad_(false);
    DistributedDataParallel model(net, group, kOneCopy);
    expect_equal(net, of_rank_0);
    Adam optimizer(model, 0.01);
    train(model, optimizer, 0, 2);
    EXPECT_TRUE(has_one_copy(net->hidden->weight));
    EXPECT_TRUE(at::equal(net->hidden->weight, of_rank_0->hidden->weight));
    EXPECT_FALSE(at::equal(net->last->weight, of_rank_0->last->weight));
    check_in_sync(model);
  });
}

// A run that saves and goes on, beside one that loads. Each kind loads the other's.
TEST_P(OneCopyIn, AndACopyOnEachRankLoadEachOthersCheckpoints) {
  for (const bool one_copy_saves : {true, false}) {
    const testing::TemporaryFolder folder;
    run(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      Mlp saved;
      Mlp loaded;
      testing::set_weights(*loaded, 5);
      DistributedDataParallel saving(saved, group, one_copy_saves ? kOneCopy : kSharded);
      DistributedDataParallel loading(loaded, group, one_copy_saves ? kSharded : kOneCopy);
      Adam saving_optimizer(saving, 0.01);
      Adam loading_optimizer(loading, 0.01);
      {
        CheckpointFolder checkpoints(folder.path(), group);
        train(saving, saving_optimizer, 0, 3);
        checkpoints.save({.module = saved.ptr(), .optimizer = &saving_optimizer}, {.step = 3});
      }
      train(loading, loading_optimizer, 0, 1);
      CheckpointFolder checkpoints(folder.path(), group);
      checkpoints.load({.module = loaded.ptr(), .optimizer = &loading_optimizer});
      expect_equal(loaded, saved);
      EXPECT_EQ(train(loading, loading_optimizer, 3, 6), train(saving, saving_optimizer, 3, 6));
      expect_equal(loaded, saved);
    });
  }
}

TEST(OneCopy, IsSavedAsAnyModelAndLoadedBeforeItIsWrapped) {
  run_processes(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, kOneCopy);
    std::stringstream file;
    torch::save(net, file);
    Mlp plain;
    torch::load(plain, file);
    expect_equal(plain, net);

    file.clear();
    file.seekg(0);
    torch::load(net, file);
    EXPECT_THAT(message_of<UsageError>([&] { model(batch_of(*group, 0)); }),
                AllOf(HasSubstr("parameter hidden.weight has been moved out of the memory"),
                      HasSubstr("by torch::load")));
    const DistributedDataParallel again(net, group, kOneCopy);
    again(batch_of(*group, 0));
    EXPECT_TRUE(has_one_copy(net->hidden->weight));
  });
}

TEST_P(OneCopyIn, BecomesACopyOnEachRankInAnotherWrapper) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    { const DistributedDataParallel model(net, group, kOneCopy); }
    const DistributedDataParallel model(net, group);
    EXPECT_FALSE(has_one_copy(net->hidden->weight));
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    train(model, optimizer, 0, 2);
    check_in_sync(model);
  });
}

TEST_P(OneCopyIn, ChangesOnceInChangeParameters) {
  run(3, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, kOneCopy);
    Adam optimizer(model, 0.01);
    train(model, optimizer, 0, 2);
    const at::Tensor before = net->middle->weight.detach().clone();
    model->change_parameters([&] { net->middle->weight.mul_(2); });
    EXPECT_TRUE(at::equal(net->middle->weight, before * 2));
    train(model, optimizer, 2, 4);

    const at::Tensor trained = net->middle->weight.detach().clone();
    const auto message = message_of<Error>([&] {
      model->change_parameters([&] {
        net->middle->weight.mul_(2);
        throw UsageError("the program's own mistake");
      });
    });
    EXPECT_THAT(message, HasSubstr("the program's own mistake"));
    if (group->rank() != 0) {
      EXPECT_THAT(message, HasSubstr("change_parameters() on rank 0"));
    }
    // What it had changed stays, and nobody complains of it.
    EXPECT_TRUE(at::equal(net->middle->weight, trained * 2));
    train(model, optimizer, 4, 5);
  });
}

// A change that a program makes on every rank, or on one, outside of change_parameters().
struct Misuse {
  std::string name;
  std::function<void(Mlp& net, int rank)> change;
  std::string found;
};

class ChangedOneCopy : public ::testing::TestWithParam<Misuse> {};

TEST_P(ChangedOneCopy, IsFoundInForwardAndInTheStep) {
  for (const bool in_step : {true, false}) {
    run_processes(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      Mlp net;
      DistributedDataParallel model(net, group, kOneCopy);
      Adam optimizer(model, 0.01);
      train(model, optimizer, 0, 2);
      optimizer.zero_grad();
      model(batch_of(*group, 2)).square().mean().backward();
      if (!in_step) optimizer.step();
      group->barrier().wait();  // a rank that is still in step() would take the change for its own
      GetParam().change(net, group->rank());
      group->barrier().wait();
      const auto message = message_of<UsageError>([&] {
        if (in_step) {
          optimizer.step();
        } else {
          model(batch_of(*group, 3));
        }
      });
      EXPECT_THAT(message, HasSubstr("parameter middle.weight has"));
      EXPECT_THAT(message, HasSubstr(GetParam().found));
      EXPECT_THAT(message, HasSubstr("model->change_parameters(function)"));
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Misuses, ChangedOneCopy,
                         ::testing::Values(Misuse{"decay_on_each_rank",
                                                  [](Mlp& net, int) {
                                                    const at::NoGradGuard no_grad;
                                                    net->middle->weight.mul_(0.99);
                                                  },
                                                  "been changed in place on this rank"},
                                           Misuse{"decay_on_one_rank",
                                                  [](Mlp& net, int rank) {
                                                    const at::NoGradGuard no_grad;
                                                    if (rank == 1) net->middle->weight.mul_(0.99);
                                                  },
                                                  "been changed "},
                                           Misuse{"init_on_each_rank",
                                                  [](Mlp& net, int) {
                                                    torch::nn::init::constant_(net->middle->weight,
                                                                               0.1);
                                                  },
                                                  "been changed in place on this rank"},
                                           Misuse{"data_on_each_rank",
                                                  [](Mlp& net, int) {
                                                    auto data = net->middle->weight.variable_data();
                                                    data.add_(0.1);
                                                  },
                                                  "been changed by another rank or through data"}),
                         [](const auto& info) { return info.param.name; });

TEST(OneCopy, AnOptimizerThatUpdatesItOnEachRankIsFound) {
  run_processes(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    Adam made_before(net->parameters(), 0.01);
    DistributedDataParallel model(net, group, kOneCopy);
    const auto backward = [&] { model(batch_of(*group, 0)).square().mean().backward(); };
    backward();
    EXPECT_THAT(message_of<UsageError>([&] { made_before.step(); }),
                AllOf(HasSubstr("the ranks have one copy of parameter 0"),
                      HasSubstr("make the optimizer from the wrapped model")));

    torch::optim::SGD sgd(net->parameters(), 0.1);
    sgd.step();
    group->barrier().wait();
    EXPECT_THAT(message_of<UsageError>(backward), HasSubstr(" has been changed "));
  });
}

// One that is made from the parameters and the group takes gradients for whole.
TEST(OneCopy, AnOptimizerThatNeedsWholeGradientsIsFound) {
  run_processes(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, kOneCopy);
    Adam optimizer(net->parameters(), 0.01, group);
    const auto backward = [&] { model(batch_of(*group, 0)).square().mean().backward(); };
    backward();
    optimizer.zero_grad();
    EXPECT_THAT(message_of<UsageError>(backward),
                HasSubstr("make a lockstep::optim optimizer from the wrapped model"));
  });
}

TEST_P(OneCopyIn, AveragesAreNotSwappedIntoIt) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, kOneCopy);
    Adam optimizer(model, 0.01);
    ExponentialMovingAverage average(model);
    train(model, optimizer, 0, 2);
    average.update();
    EXPECT_THAT(message_of<UsageError>([&] { const auto swapped = average.swap_in(); }),
                HasSubstr("evaluate module(), which has memory of its own"));
    average.module()->forward(batch_of(*group, 0));
    train(model, optimizer, 2, 3);
  });
}

TEST(OneCopy, OfRanksThatShareNoMemoryIsRefused) {
  testing::run_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    EXPECT_THAT(
        message_of<UsageError>([&] { DistributedDataParallel model(Mlp(), group, kOneCopy); }),
        AllOf(HasSubstr("one_copy_per_host is for processes that share the memory of their host"),
              HasSubstr("the ranks of this group are threads (backend thread)")));
  });
  testing::run_ranks(2, [](testing::Rank& rank) {
    const auto group = testing::join(rank, {.backend = "gloo", .device = at::kCPU});
    EXPECT_THAT(
        message_of<UsageError>([&] { DistributedDataParallel model(Mlp(), group, kOneCopy); }),
        AllOf(HasSubstr("the ranks of this group exchange messages (backend gloo)"),
              HasSubstr("leave the choice of the backend to init_process_group")));
  });
}

TEST(OneCopy, OfEachHostIsSeenByItsRanksOnly) {
  run_on_two_hosts(5, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, kOneCopy);
    const at::Tensor weight = net->middle->weight.variable_data();
    const float before = weight[0][0].item<float>();
    group->barrier().wait();
    if (group->rank() == 1) weight[0][0] += 1;
    group->barrier().wait();
    EXPECT_EQ(weight[0][0].item<float>(), before + static_cast<float>(group->rank() % 2));
  });
}

TEST(OneCopy, OfEachHostIsFoundToBeChangedByItsRanks) {
  run_on_two_hosts(4, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, kOneCopy);
    Adam optimizer(model, 0.01);
    train(model, optimizer, 0, 2);
    {
      const at::NoGradGuard no_grad;
      net->middle->weight.mul_(0.99);
    }
    EXPECT_THAT(message_of<UsageError>([&] { model(batch_of(*group, 2)); }),
                HasSubstr("parameter middle.weight has been changed in place on this rank"));
  });
}

// As with microbatches, each rank has the whole gradients.
TEST_P(OneCopyIn, IsUpdatedByAnOptimizerOfWholeGradients) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net, alone;
    testing::copy_state(*alone, *net);
    const DistributedDataParallel model(net, group, kOneCopy);
    Adam optimizer(net->parameters(), 0.01, group);
    Adam optimizer_alone(alone->parameters(), 0.01);
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        const at::Tensor parameter = net->parameters()[i];
        parameter.mutable_grad() = at::full_like(parameter, 0.1 * static_cast<double>(i + 1));
        alone->parameters()[i].mutable_grad() = parameter.grad().clone();
      }
      optimizer.step();
      optimizer_alone.step();
      expect_equal(net, alone);
    }
  });
}

TEST_P(OneCopyIn, OfTwoTensorsInTheSameMemoryIsRefused) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    net->register_parameter("twin", net->last->weight.detach());
    EXPECT_THAT(
        message_of<UsageError>([&] { DistributedDataParallel model(net, group, kOneCopy); }),
        HasSubstr("parameters twin and last.weight are two tensors in the same memory"));
  });
}

TEST(OneCopy, OfEachHostIsLeftWhenARankIsKilledInItsStep) {
  constexpr int kVictim = 2;
  testing::run_ranks(4,
                     [](testing::Rank& rank) {
                       const auto group = testing::join_on_two_hosts(rank);
                       Mlp net;
                       DistributedDataParallel model(net, group, kOneCopy);
                       Adam optimizer(model, 0.01);
                       train(model, optimizer, 0, 1);
                       const auto train_on = [&] {
                         for (int step = 1;; ++step) {
                           if (rank.rank() == kVictim && step == 20) rank.cue("in step");
                           optimizer.step();
                         }
                       };
                       EXPECT_THAT(message_of<PeerLost>(train_on), HasSubstr("rank 2"));
                       for (const at::Tensor& parameter : net->parameters())
                         EXPECT_FALSE(has_one_copy(parameter));
                       EXPECT_THAT(message_of<UsageError>([&] { optimizer.recover(group); }),
                                   AllOf(HasSubstr("recover() is for the ranks of one host"),
                                         HasSubstr("continue from a checkpoint")));
                     },
                     {.signals = {{.rank = kVictim, .cue = "in step", .signal = SIGKILL}}});
}

TEST(OneCopy, IsLeftToItselfWhenARankIsKilledInItsStep) {
  constexpr int kVictim = 2;
  testing::run_ranks(3,
                     [](testing::Rank& rank) {
                       const auto group = init_process_group({.backend = "shm",
                                                              .init_method = rank.rendezvous_url(),
                                                              .rank = rank.rank(),
                                                              .world_size = rank.size(),
                                                              .device = at::kCPU});
                       Mlp net;
                       DistributedDataParallel model(net, group, kOneCopy);
                       Adam optimizer(model, 0.01);
                       train(model, optimizer, 0, 1);
                       const auto train_on = [&] {
                         for (int step = 1;; ++step) {
                           if (rank.rank() == kVictim && step == 20) rank.cue("in step");
                           for (const at::Tensor& parameter : net->parameters()) {
                             parameter.mutable_grad() = at::ones_like(parameter);
                           }
                           optimizer.step();
                         }
                       };
                       EXPECT_THAT(message_of<PeerLost>(train_on), HasSubstr("rank 2"));
                       // No rank that is still in its step can store anything there.
                       for (const at::Tensor& parameter : net->parameters())
                         EXPECT_FALSE(has_one_copy(parameter));
                     },
                     {.signals = {{.rank = kVictim, .cue = "in step", .signal = SIGKILL}}});
}

}  // namespace
}  // namespace lockstep::optim
