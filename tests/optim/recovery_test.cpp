// SPDX-License-Identifier: BSD-3-Clause
// Ranks of a model with one copy per host are killed at random moments of their steps. Survivors
// recover parameters and state with the bits of a training that nobody has disturbed.
//
// LOCKSTEP_KILLS says how many ranks each algorithm loses; --gtest_random_seed repeats a run.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/optim/ranks.h"
#include "tests/parallel/errors.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/adam.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/checkpoint/state_sha256.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/clip_grad.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/distributed_data_parallel.h"
#include "lockstep/tensor/kernels/reduce.h"
#include "lockstep/tensor/reduce_op.h"

namespace lockstep::optim {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::message_of;

// Of many blocks, of a part of one, and of parts that ranks share.
constexpr std::array<std::int64_t, 5> kSizes{150'000, 3, 40'001, 2'048, 1};
constexpr std::int64_t kElements = 192'053;
constexpr double kClip = 0.4;
const DistributedDataParallelOptions kRecoverable{.one_copy_per_host = true};

// From -0.5 to 0.5.
at::Tensor ramp(std::int64_t count) {
  return torch::arange(count, at::kFloat).remainder(1009).div(1009) - 0.5;
}

// The gradients of its parameters, one after another, are its input.
struct LinearInEachImpl : torch::nn::Module {
  LinearInEachImpl() {
    for (const std::int64_t size : kSizes) {
      register_parameter("of_" + std::to_string(size), ramp(size));
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor sum = torch::zeros({});
    std::int64_t begin = 0;
    for (const at::Tensor& parameter : parameters()) {
      sum = sum + (parameter * x.narrow(0, begin, parameter.numel())).sum();
      begin += parameter.numel();
    }
    return sum;
  }
};
TORCH_MODULE(LinearInEach);

// As if from outside: wherever this process is then. By the clock of the thread's time on a core,
// it is not waiting then.
void kill_this_process_in(std::chrono::nanoseconds delay, clockid_t clock = CLOCK_MONOTONIC) {
  sigevent event{};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGKILL;
  timer_t timer{};
  ASSERT_EQ(::timer_create(clock, &event, &timer), 0);
  itimerspec at{};
  at.it_value.tv_nsec = std::clamp<std::int64_t>(delay.count(), 1, 999'999'999);
  ASSERT_EQ(::timer_settime(timer, 0, &at, nullptr), 0);
}

// How a group comes to its end. Every rank draws the same.
struct Plan {
  Plan(std::mt19937& random, const std::vector<int>& living)
      : victim(living[random() % living.size()]),
        last_step(static_cast<int>(random() % 6)),
        moment(std::uniform_real_distribution(0.0, 1.1)(random)),
        repeats(random() % 2 == 0),
        clips(random() % 3 == 0),
        threads(random() % 4 == 0 ? 2 : 1) {
    const int second = living[random() % living.size()];
    const bool dies_too = random() % 3 == 0 && living.size() > 2 && second != victim;
    victim_of_recovery = dies_too ? second : -1;
    moment_of_recovery = std::chrono::microseconds(random() % 2000);
  }

  int victim;
  int last_step;
  double moment;  // in that step, as a part of the duration of the shortest before
  bool repeats;   // steps with the gradients of the first backward, so that little else is done
  bool clips;     // so that the gradients are reduced before the step
  int threads;
  int victim_of_recovery;  // -1 for none
  std::chrono::microseconds moment_of_recovery;
};

// One rank, in one group after another until it is killed, or is the last. Ranks keep their numbers
// here when those of the groups change.
template <class Optimizer, class Options>
class Survivor {
 public:
  Survivor(testing::Rank& rank, const Options& options, const Options& last_options,
           std::uint32_t seed)
      : rank_(rank),
        options_(options),
        last_options_(last_options),
        random_(seed),
        living_(static_cast<std::size_t>(rank.size())),
        undisturbed_(undisturbed_net_->parameters(), options) {
    std::iota(living_.begin(), living_.end(), 0);
  }

  void run() {
    for (join(); living_.size() > 1 && !rank_.failed();) {
      lose(Plan(random_, living_));
      EXPECT_EQ(state_sha256(*net_, *state_), state_sha256(*undisturbed_net_, undisturbed_));
    }
    Optimizer alone(net_->parameters(), options_);
    alone.load_whole(std::move(state_));
    step_with(alone, *net_, gradient(rank_.rank(), steps_));
    step_with(undisturbed_, *undisturbed_net_, gradient(rank_.rank(), steps_));
    EXPECT_EQ(state_sha256(*net_, alone), state_sha256(*undisturbed_net_, undisturbed_));
    rank_.report("last");
  }

 private:
  void join() {
    const auto self = std::ranges::find(living_, rank_.rank());
    group_ = init_process_group({.backend = "shm",
                                 .init_method = rank_.rendezvous_url(std::to_string(groups_++)),
                                 .rank = static_cast<int>(self - living_.begin()),
                                 .world_size = static_cast<int>(living_.size()),
                                 .device = at::kCPU});
    group_->barrier().wait();
  }

  void lose(const Plan& plan) {
    at::set_num_threads(plan.threads);
    DistributedDataParallel<LinearInEach> model(net_, group_, kRecoverable);
    Optimizer optimizer(model, options_);
    if (state_) optimizer.load_whole(std::move(state_));
    const std::int64_t returned = train(model, optimizer, plan);
    const std::vector<int> trained = living_;
    std::erase(living_, plan.victim);
    join();
    if (plan.victim_of_recovery >= 0) {
      if (plan.victim_of_recovery == rank_.rank()) kill_this_process_in(plan.moment_of_recovery);
      const auto recover_and_meet = [&] {
        optimizer.recover(group_);
        if (plan.victim_of_recovery == rank_.rank()) rank_.await_signal();
        group_->barrier().wait();
      };
      EXPECT_THROW(recover_and_meet(), PeerLost);
      std::erase(living_, plan.victim_of_recovery);
      join();
    }
    RecoveredOptimizer recovered = optimizer.recover(group_);
    EXPECT_GE(recovered.steps, returned);
    EXPECT_LE(recovered.steps, returned + 1);
    const std::int64_t first = steps_;
    for (; steps_ < first + recovered.steps; ++steps_) {
      if (steps_ - first == plan.last_step) set_options(undisturbed_, last_options_);
      const at::Tensor mean = mean_gradient(trained, plan.repeats ? first : steps_);
      step_with(undisturbed_, *undisturbed_net_, plan.clips ? mean.clamp(-kClip, kClip) : mean);
    }
    state_ = std::move(recovered.state);
    // They are those of the step that was not taken, on the ranks that have begun it.
    set_options(*state_, options_of(undisturbed_));
  }

  // Returns how many steps have returned when the victim is lost.
  std::int64_t train(DistributedDataParallel<LinearInEach>& model, Optimizer& optimizer,
                     const Plan& plan) {
    std::chrono::duration<double> shortest = std::chrono::milliseconds(1);
    for (std::int64_t step = 0;; ++step) {
      try {
        if (step == 0 || !plan.repeats) {
          optimizer.zero_grad();
          model(gradient(rank_.rank(), steps_ + step)).backward();
          if (plan.clips) clip_grad_value_(model, kClip);
        }
        const auto begin = std::chrono::steady_clock::now();
        if (plan.last_step == step) set_options(optimizer, last_options_);
        if (plan.victim == rank_.rank() && plan.last_step == step) {
          kill_this_process_in(
              std::chrono::duration_cast<std::chrono::nanoseconds>(plan.moment * shortest),
              plan.repeats ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC);
        }
        optimizer.step();
        shortest = std::min<std::chrono::duration<double>>(
            shortest, std::chrono::steady_clock::now() - begin);
      } catch (const PeerLost&) {
        return step;
      }
    }
  }

  at::Tensor gradient(int rank, std::int64_t step) const {
    return values_ * (1 + 0.25 * rank + 0.5 * static_cast<double>(step % 3));
  }

  at::Tensor mean_gradient(const std::vector<int>& ranks, std::int64_t step) const {
    std::vector<at::Tensor> gradients;
    std::vector<const void*> from;
    for (const int rank : ranks) {
      gradients.push_back(gradient(rank, step));
      from.push_back(gradients.back().data_ptr());
    }
    void* const to = gradients.front().data_ptr();
    reduce(from, {&to, 1}, kElements, at::kFloat, ReduceOp::mean,
           scale_over(static_cast<int>(ranks.size()), ReduceOp::mean, 1));
    return gradients.front();
  }

  static const Options& options_of(const torch::optim::Optimizer& optimizer) {
    return static_cast<const Options&>(optimizer.param_groups().front().options());
  }

  static void set_options(torch::optim::Optimizer& optimizer, const Options& options) {
    static_cast<Options&>(optimizer.param_groups().front().options()) = options;
  }

  static void step_with(torch::optim::Optimizer& optimizer, const LinearInEachImpl& net,
                        const at::Tensor& gradient) {
    std::int64_t begin = 0;
    for (const at::Tensor& parameter : net.parameters()) {
      parameter.mutable_grad() = gradient.narrow(0, begin, parameter.numel());
      begin += parameter.numel();
    }
    optimizer.step();
  }

  testing::Rank& rank_;
  Options options_;
  Options last_options_;  // from the last step of the first group on
  std::mt19937 random_;
  std::vector<int> living_;
  std::shared_ptr<ProcessGroup> group_;
  int groups_ = 0;
  at::Tensor values_ = ramp(kElements);
  LinearInEach net_;
  std::unique_ptr<torch::optim::Optimizer> state_;  // of the net, between two groups
  std::int64_t steps_ = 0;                          // that the undisturbed net has taken
  LinearInEach undisturbed_net_;
  Optimizer undisturbed_;
};

int kills() {
  const char* const number = std::getenv("LOCKSTEP_KILLS");
  return number == nullptr ? 20 : std::stoi(number);
}

// `last_options`: those of the step in which the first rank is killed, and of all later ones.
template <class Optimizer, class Options>
void survive_kills(const Options& options, const Options& last_options) {
  const auto given = static_cast<std::uint32_t>(GTEST_FLAG_GET(random_seed));
  const std::uint32_t first_seed = given != 0 ? given : std::random_device()() % 99'999 + 1;
  std::uint32_t seed = first_seed;
  for (int killed = 0; killed < kills() && !::testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("--gtest_random_seed=" + std::to_string(seed));
    const int ranks = 2 + static_cast<int>(seed % 2);
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    const auto outcomes =
        testing::run_ranks(ranks,
                           [&](testing::Rank& rank) {
                             Survivor<Optimizer, Options>(rank, options, last_options, seed).run();
                           },
                           {.may_exit = all});
    const auto is_last = [](const testing::RankOutcome& one) { return one.result == "last"; };
    const auto is_killed = [](const testing::RankOutcome& one) { return one.signal == SIGKILL; };
    EXPECT_EQ(std::ranges::count_if(outcomes, is_last), 1);
    EXPECT_EQ(std::ranges::count_if(outcomes, is_killed), ranks - 1);
    killed += ranks - 1;
  }
}

template <class Optimizer, class Options>
void survive_kills(const Options& options) {
  survive_kills<Optimizer>(options, options);
}

TEST(Recovery, OfSgdWithMomentumFromRandomKills) {
  survive_kills<SGD>(torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
}

TEST(Recovery, OfAdamFromRandomKills) {
  survive_kills<Adam>(torch::optim::AdamOptions(0.01).amsgrad(true));
}

// A rank that has not begun the update yet is killed while others, or itself, have made the memory
// for a state that the update before did not have.
TEST(Recovery, FromKillsInTheFirstStepWithMomentum) {
  survive_kills<SGD>(torch::optim::SGDOptions(0.1),
                     torch::optim::SGDOptions(0.1).momentum(0.9).dampening(0.5));
}

TEST(Recovery, FromKillsInTheFirstStepWithAmsgrad) {
  survive_kills<Adam>(torch::optim::AdamOptions(0.01),
                      torch::optim::AdamOptions(0.01).amsgrad(true));
}

TEST(Recovery, RefusesAGroupThatWasAddedAfterTheLastStep) {
  testing::run_processes(2, [](const std::shared_ptr<ProcessGroup>& group) {
    LinearInEach net;
    DistributedDataParallel<LinearInEach> model(net, group, kRecoverable);
    Adam optimizer(model, 0.01);
    model(ramp(kElements)).backward();
    optimizer.step();
    optimizer.add_param_group(torch::optim::OptimizerParamGroup({ramp(3).requires_grad_()}));
    EXPECT_THAT(message_of<UsageError>([&] { optimizer.recover(group); }),
                AllOf(HasSubstr("a parameter group was added after the parameters"),
                      HasSubstr("give all groups to the constructor")));
    optimizer.param_groups().pop_back();
    EXPECT_EQ(optimizer.recover(group).steps, 1);
  });
}

TEST(Recovery, IsRefusedWhileALostRankLives) {
  testing::run_ranks(3, [](testing::Rank& rank) {
    const auto joined = [&](const std::string& name, int size) {
      return init_process_group({.backend = "shm",
                                 .init_method = rank.rendezvous_url(name),
                                 .rank = rank.rank(),
                                 .world_size = size,
                                 .timeout = std::chrono::milliseconds(size == 3 ? 10'000 : 5'000),
                                 .device = at::kCPU});
    };
    const auto group = joined("all", 3);
    LinearInEach net;
    DistributedDataParallel<LinearInEach> model(net, group, kRecoverable);
    Adam optimizer(model, 0.01);
    model(ramp(kElements)).backward();
    optimizer.step();
    if (rank.rank() < 2) {
      EXPECT_THAT(message_of<UsageError>([&] { optimizer.recover(joined("two", 2)); }),
                  AllOf(HasSubstr("rank 2 is not among the survivors, but has not ended"),
                        HasSubstr("end its process before recover()")));
    } else {
      rank.await(0, "refused");
      rank.await(1, "refused");
    }
    rank.cue("refused");

    // All ranks are survivors: nothing is to be completed.
    const at::Tensor before = net->parameters().front().detach().clone();
    const RecoveredOptimizer recovered = optimizer.recover(joined("all again", 3));
    EXPECT_EQ(recovered.steps, 1);
    EXPECT_TRUE(at::equal(net->parameters().front(), before));
    EXPECT_THAT(message_of<UsageError>([&] { optimizer.step(); }),
                HasSubstr("recover() has moved the parameters"));
  });
}

TEST(Recovery, NeedsOneCopyPerHost) {
  testing::run_processes(2, [](const std::shared_ptr<ProcessGroup>& group) {
    LinearInEach net;
    DistributedDataParallel<LinearInEach> model(net, group);
    Adam optimizer(model, 0.01);
    EXPECT_THAT(message_of<UsageError>([&] { optimizer.recover(group); }),
                AllOf(HasSubstr("for an optimizer of a model with one_copy_per_host"),
                      HasSubstr("continue from a checkpoint")));
  });
}

}  // namespace
}  // namespace lockstep::optim
