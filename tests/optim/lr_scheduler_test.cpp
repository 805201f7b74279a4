// SPDX-License-Identifier: BSD-3-Clause
// Schedules beside Python's torch.optim.lr_scheduler, resumed at any step, and with mistakes.
#include "lockstep/optim/lr_scheduler.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/pythons.h"
#include "support/program.h"
#include "support/skip_or_fail.h"
#include "tests/parallel/errors.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include "lockstep/comm/process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizers.h"

namespace lockstep::optim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::message_of;
using torch::optim::OptimizerParamGroup;

constexpr int kSteps = 500;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Two groups with the rates 0.1 and 0.03.
template <class Optimizer, class Options>
std::unique_ptr<torch::optim::Optimizer> optimizer_with(const Options& options) {
  std::vector<OptimizerParamGroup> groups;
  for (const double rate : {0.1, 0.03}) {
    auto own = std::make_unique<Options>(options);
    own->lr(rate);
    groups.emplace_back(std::vector<at::Tensor>{torch::zeros({1}, torch::requires_grad())},
                        std::move(own));
  }
  return std::make_unique<Optimizer>(groups, options);
}

std::unique_ptr<torch::optim::Optimizer> make_sgd() {
  return optimizer_with<torch::optim::SGD>(torch::optim::SGDOptions(1).momentum(0.9));
}

std::unique_ptr<torch::optim::Optimizer> make_adam() {
  return optimizer_with<torch::optim::Adam>(torch::optim::AdamOptions(1));
}

std::vector<double> rates_of(torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

double momentum_of(torch::optim::Optimizer& optimizer) {
  auto& options = optimizer.param_groups()[1].options();
  if (auto* const adam = dynamic_cast<torch::optim::AdamOptions*>(&options)) {
    return std::get<0>(adam->betas());
  }
  return dynamic_cast<torch::optim::SGDOptions&>(options).momentum();
}

// A schedule here and in Python, where `o` is the optimizer.
struct RatesCase {
  std::string python;
  LRSchedule schedule;
  bool adam = false;

  std::unique_ptr<torch::optim::Optimizer> optimizer() const {
    return adam ? make_adam() : make_sgd();
  }
};

std::vector<RatesCase> all_cases() {
  const auto inverse = [](std::int64_t step) { return 1 / (1 + 0.05 * static_cast<double>(step)); };
  const auto stairs = [](std::int64_t step) { return std::pow(0.9, step / 20); };
  const OneCycleLR cycle{.max_lr = {0.4, 0.2}, .total_steps = kSteps};
  const OneCycleLR phases{.max_lr = {0.4},
                          .total_steps = kSteps,
                          .pct_start = 0.25,
                          .anneal_strategy = AnnealStrategy::linear,
                          .base_momentum = 0.8,
                          .max_momentum = 0.9,
                          .div_factor = 10,
                          .final_div_factor = 100,
                          .three_phase = true};
  return {
      {"ConstantLR(o, factor=0.2, total_iters=40)", ConstantLR{.factor = 0.2, .total_iters = 40}},
      {"ConstantLR(o)", ConstantLR{}},
      {"LinearLR(o, start_factor=0.01, end_factor=0.8, total_iters=120)",
       LinearLR{.start_factor = 0.01, .end_factor = 0.8, .total_iters = 120}},
      {"LinearLR(o)", LinearLR{}},
      {"StepLR(o, step_size=30, gamma=0.5)", StepLR{.step_size = 30, .gamma = 0.5}},
      {"StepLR(o, 100)", StepLR{.step_size = 100}},
      {"MultiStepLR(o, [50, 120, 120, 300], gamma=0.3)",
       MultiStepLR{.milestones = {50, 120, 120, 300}, .gamma = 0.3}},
      {"ExponentialLR(o, 0.99)", ExponentialLR{.gamma = 0.99}},
      {"PolynomialLR(o, total_iters=300, power=2)", PolynomialLR{.total_iters = 300, .power = 2}},
      {"PolynomialLR(o)", PolynomialLR{}},
      {"CosineAnnealingLR(o, 500)", CosineAnnealingLR{.T_max = 500}},
      {"CosineAnnealingLR(o, 150, eta_min=0.001)",
       CosineAnnealingLR{.T_max = 150, .eta_min = 0.001}},
      {"LambdaLR(o, lambda s: 1 / (1 + 0.05 * s))", LambdaLR{.lr_lambda = {inverse}}},
      {"LambdaLR(o, [lambda s: 1 / (1 + 0.05 * s), lambda s: 0.9 ** (s // 20)])",
       LambdaLR{.lr_lambda = {inverse, stairs}}},
      {"OneCycleLR(o, [0.4, 0.2], total_steps=500)", cycle},
      {"OneCycleLR(o, [0.4, 0.2], total_steps=500)", cycle, /*adam=*/true},
      {"OneCycleLR(o, 0.4, total_steps=500, pct_start=0.25, anneal_strategy='linear', "
       "base_momentum=0.8, max_momentum=0.9, div_factor=10, final_div_factor=100, "
       "three_phase=True)",
       phases},
      {"SequentialLR(o, [LinearLR(o, 0.01, total_iters=50), CosineAnnealingLR(o, 250, 0.002), "
       "ExponentialLR(o, 0.98)], milestones=[50, 300])",
       SequentialLR{.schedulers = {LinearLR{.start_factor = 0.01, .total_iters = 50},
                                   CosineAnnealingLR{.T_max = 250, .eta_min = 0.002},
                                   ExponentialLR{.gamma = 0.98}},
                    .milestones = {50, 300}}},
      {"ChainedScheduler([ConstantLR(o, 0.1, total_iters=20), ExponentialLR(o, 0.99)])",
       ChainedScheduler{.schedulers = {ConstantLR{.factor = 0.1, .total_iters = 20},
                                       ExponentialLR{.gamma = 0.99}}}},
      {"ChainedScheduler([LinearLR(o, 0.05, total_iters=30), CosineAnnealingLR(o, 600)])",
       ChainedScheduler{.schedulers = {LinearLR{.start_factor = 0.05, .total_iters = 30},
                                       CosineAnnealingLR{.T_max = 600}}}},
  };
}

// Improves, stagnates and gets worse, in turns.
double metric_at(int step) {
  return 2 + std::cos(step * 0.05) + 3.0 / (1 + step / 40);
}

constexpr const char* kBegin = R"(
import json, math, sys, warnings
warnings.simplefilter('ignore')
import torch
from torch.optim.lr_scheduler import *
def make(adam):
    p = [{'params': [torch.nn.Parameter(torch.zeros(1))], 'lr': r} for r in (0.1, 0.03)]
    return torch.optim.Adam(p) if adam else torch.optim.SGD(p, lr=1, momentum=0.9)
def state(o):
    g = o.param_groups
    return [g[0]['lr'], g[1]['lr'], g[1]['betas'][0] if 'betas' in g[1] else g[1]['momentum']]
def metric(step):
    return 2 + math.cos(step * 0.05) + 3.0 / (1 + step // 40)
)";

class BesidePython : public ::testing::Test {
 protected:
  // Calls compare with what the script prints as JSON, for each Python with torch.
  void with_output(const std::string& script,
                   const std::function<void(const nlohmann::json& output)>& compare) {
    const auto pythons = testing::pythons_with("torch");
    if (pythons.empty()) return testing::skip_or_fail("no Python here has torch");
    for (const std::string& python : pythons) {
      SCOPED_TRACE(python);
      testing::Program program({python, "-W", "ignore", "-c", kBegin + script});
      ASSERT_EQ(program.wait(), 0) << program.err();
      compare(nlohmann::json::parse(program.out()));
    }
  }
};

// Python multiplies step by step, and each of its steps rounds.
void expect_near(double actual, double expected, const std::string& what, int step) {
  ASSERT_NEAR(actual, expected, 1e-10 * std::abs(expected) + 1e-15) << what << ", step " << step;
}

void expect_state(torch::optim::Optimizer& optimizer, const nlohmann::json& expected,
                  const std::string& what, int step) {
  const auto rates = rates_of(optimizer);
  expect_near(rates[0], expected[0].get<double>(), what, step);
  expect_near(rates[1], expected[1].get<double>(), what, step);
  expect_near(momentum_of(optimizer), expected[2].get<double>(), what, step);
}

TEST_F(BesidePython, EveryScheduleHasTheSameRatesForFiveHundredSteps) {
  const std::vector<RatesCase> cases = all_cases();
  std::string script = "cases = [";
  for (const RatesCase& one : cases) {
    script += std::string("(") + (one.adam ? "True" : "False") + ", lambda o: " + one.python + "),";
  }
  script += R"(]
output = []
for adam, make_scheduler in cases:
    o = make(adam)
    s = make_scheduler(o)
    rates = [state(o)]
    for _ in range(500):
        o.step()
        s.step()
        rates.append(state(o))
    output.append(rates)
print(json.dumps(output))
)";
  with_output(script, [&](const nlohmann::json& output) {
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const auto optimizer = cases[i].optimizer();
      LRScheduler scheduler(*optimizer, cases[i].schedule);
      expect_state(*optimizer, output[i][0], cases[i].python, 0);
      for (int step = 1; step <= kSteps && !HasFatalFailure(); ++step) {
        scheduler.step();
        expect_state(*optimizer, output[i][static_cast<std::size_t>(step)], cases[i].python, step);
      }
    }
  });
}

TEST_F(BesidePython, PlateausReduceAtTheSameSteps) {
  with_output(
      R"(
output = []
for options in (dict(), dict(mode='max', factor=0.7, patience=3, threshold=0.05,
                             threshold_mode='abs', cooldown=4, min_lr=[0.01, 0.002])):
    o = make(False)
    s = ReduceLROnPlateau(o, **options)
    rates = []
    for step in range(500):
        s.step(metric(step))
        rates.append(state(o))
    output.append(rates)
print(json.dumps(output))
)",
      [](const nlohmann::json& output) {
        const std::vector<ReduceLROnPlateauOptions> options{{},
                                                            {.mode = PlateauMode::max,
                                                             .factor = 0.7,
                                                             .patience = 3,
                                                             .threshold = 0.05,
                                                             .threshold_mode = ThresholdMode::abs,
                                                             .cooldown = 4,
                                                             .min_lr = {0.01, 0.002}}};
        for (std::size_t i = 0; i < options.size(); ++i) {
          const auto optimizer = make_sgd();
          ReduceLROnPlateau plateau(*optimizer, options[i]);
          for (int step = 0; step < kSteps && !HasFatalFailure(); ++step) {
            plateau.step(metric_at(step));
            expect_state(*optimizer, output[i][static_cast<std::size_t>(step)], "plateau", step);
          }
        }
      });
}

TEST_F(BesidePython, AScheduleKeepsWhatSomethingElseChanges) {
  with_output(R"(
o = make(False)
s = LinearLR(o, 0.01, total_iters=100)
p = ReduceLROnPlateau(o, patience=3, factor=0.5)
rates = []
for step in range(500):
    o.step()
    s.step()
    p.step(metric(step))
    if step == 70:
        o.param_groups[1]['lr'] *= 3
    rates.append(state(o))
print(json.dumps(rates))
)",
              [](const nlohmann::json& output) {
                const auto optimizer = make_sgd();
                LRScheduler scheduler(*optimizer,
                                      LinearLR{.start_factor = 0.01, .total_iters = 100});
                ReduceLROnPlateau plateau(*optimizer, {.factor = 0.5, .patience = 3});
                for (int step = 0; step < kSteps && !HasFatalFailure(); ++step) {
                  scheduler.step();
                  plateau.step(metric_at(step));
                  if (step == 70) {
                    auto& options = optimizer->param_groups()[1].options();
                    options.set_lr(options.get_lr() * 3);
                  }
                  expect_state(*optimizer, output[static_cast<std::size_t>(step)], "both", step);
                }
              });
}

TEST(LRScheduler, GoesOnAtAnyStepWithTheSameBits) {
  std::mt19937 random(7);
  for (const RatesCase& one : all_cases()) {
    SCOPED_TRACE(one.python);
    const int stop = std::uniform_int_distribution(0, kSteps - 1)(random);
    const auto optimizer = one.optimizer();
    LRScheduler scheduler(*optimizer, one.schedule);
    for (int step = 0; step < stop; ++step) scheduler.step();

    const auto resumed_optimizer = one.optimizer();
    for (auto& group : resumed_optimizer->param_groups()) group.options().set_lr(0.7);
    LRScheduler resumed(*resumed_optimizer, one.schedule);
    EXPECT_THAT(resumed.load_state_dict(scheduler.state_dict()), IsEmpty());
    EXPECT_EQ(resumed.steps(), stop);
    for (int step = stop; step < kSteps; ++step) {
      ASSERT_EQ(rates_of(*resumed_optimizer), rates_of(*optimizer)) << step;
      ASSERT_EQ(momentum_of(*resumed_optimizer), momentum_of(*optimizer)) << step;
      ASSERT_EQ(resumed.get_last_lr(), rates_of(*resumed_optimizer));
      scheduler.step();
      resumed.step();
    }
  }
}

TEST(LRScheduler, KeepsAChangeThatNoStepHasSeenInItsState) {
  const auto optimizer = make_sgd();
  LRScheduler scheduler(*optimizer, LinearLR{.start_factor = 0.5, .total_iters = 10});
  scheduler.step();
  for (auto& group : optimizer->param_groups())
    group.options().set_lr(group.options().get_lr() / 2);
  const auto resumed_optimizer = make_sgd();
  LRScheduler resumed(*resumed_optimizer, LinearLR{.start_factor = 0.5, .total_iters = 10});
  resumed.load_state_dict(scheduler.state_dict());
  EXPECT_DOUBLE_EQ(rates_of(*resumed_optimizer)[0], rates_of(*optimizer)[0]);
  scheduler.step();
  resumed.step();
  EXPECT_EQ(rates_of(*resumed_optimizer), rates_of(*optimizer));
}

TEST(LRScheduler, SaysWhereItsScheduleDiffersFromTheSavedOne) {
  const auto optimizer = make_sgd();
  LRScheduler saved(*optimizer, SequentialLR{.schedulers = {LinearLR{}, StepLR{.step_size = 9}},
                                             .milestones = {5}});
  const auto other = make_sgd();
  LRScheduler scheduler(
      *other,
      SequentialLR{.schedulers = {LinearLR{}, CosineAnnealingLR{.T_max = 9}}, .milestones = {7}});
  EXPECT_THAT(
      scheduler.load_state_dict(saved.state_dict()),
      ElementsAre("SequentialLR.1.CosineAnnealingLR.T_max is 9 (not in the saved schedule)",
                  "SequentialLR.1.CosineAnnealingLR.eta_min is 0 (not in the saved schedule)",
                  "SequentialLR.milestones.0 is 7 (saved: 5)"));
}

TEST(LRScheduler, RefusesAStateThatDoesNotFit) {
  const auto optimizer = make_sgd();
  LRScheduler scheduler(*optimizer, StepLR{.step_size = 2});
  scheduler.step();
  const auto before = scheduler.state_dict();
  const auto refusal = [&](const std::string& name, double value) {
    auto state = before;
    state[name] = value;
    return message_of<CheckpointError>([&] { scheduler.load_state_dict(state); });
  };
  EXPECT_EQ(message_of<CheckpointError>([&] {
              scheduler.load_state_dict({{"initial_lr.0", 1}});
            }),
            "[LRScheduler] the state has no last_epoch; load what state_dict() of a LRScheduler "
            "returned");
  EXPECT_THAT(refusal("last_epoch", 1.5), HasSubstr("last_epoch is 1.5 in the state"));
  EXPECT_THAT(refusal("last_epoch", -1), HasSubstr("last_epoch is -1 in the state"));
  EXPECT_THAT(refusal("initial_lr.1", kNan), HasSubstr("initial_lr.1 is nan"));
  EXPECT_THAT(refusal("initial_lr.2", 1), HasSubstr("more than 2 parameter groups"));
  EXPECT_EQ(scheduler.state_dict(), before);
}

TEST(LRScheduler, RefusesWhatNoScheduleMeans) {
  const auto refusal = [](LRSchedule schedule) {
    const auto optimizer = make_sgd();
    return message_of<UsageError>([&] { LRScheduler scheduler(*optimizer, schedule); });
  };
  EXPECT_EQ(refusal(CosineAnnealingLR{}), "[CosineAnnealingLR] T_max is 0; it must be positive");
  EXPECT_THAT(refusal(ConstantLR{.factor = 2}), HasSubstr("factor is 2; it must be from 0 to 1"));
  EXPECT_THAT(refusal(LinearLR{.start_factor = 0}), HasSubstr("start_factor is 0"));
  EXPECT_THAT(refusal(StepLR{}), HasSubstr("step_size is 0"));
  EXPECT_THAT(refusal(MultiStepLR{.milestones = {-3}}), HasSubstr("a milestone is -3"));
  EXPECT_THAT(refusal(ExponentialLR{}), HasSubstr("gamma is 0"));
  EXPECT_THAT(refusal(PolynomialLR{.power = kNan}), HasSubstr("power is nan"));
  EXPECT_THAT(refusal(LambdaLR{}), HasSubstr("lr_lambda has 0 entries, and the optimizer 2"));
  EXPECT_THAT(refusal(LambdaLR{.lr_lambda = {[](std::int64_t) { return kNan; }}}),
              HasSubstr("lr_lambda returned nan for step 0"));
  EXPECT_THAT(refusal(OneCycleLR{.max_lr = {1, 2, 3}, .total_steps = 5}),
              HasSubstr("max_lr has 3 entries"));
  EXPECT_THAT(refusal(OneCycleLR{.max_lr = {1}}), HasSubstr("total_steps is 0"));
  EXPECT_THAT(refusal(SequentialLR{.schedulers = {LinearLR{}}, .milestones = {5}}),
              HasSubstr("1 schedulers and 1 milestones"));
  EXPECT_THAT(refusal(SequentialLR{.schedulers = {LinearLR{}, StepLR{.step_size = 1}, ConstantLR{}},
                                   .milestones = {5, 5}}),
              HasSubstr("a milestone is 5; it must be above 5"));
  EXPECT_EQ(refusal(ChainedScheduler{.schedulers = {LinearLR{}, StepLR{}}}),
            "[ChainedScheduler] scheduler 1 ([StepLR]): step_size is 0; it must be positive");
  EXPECT_THAT(refusal(ChainedScheduler{.schedulers = {}}), HasSubstr("schedulers is empty"));
}

TEST(LRScheduler, KnowsTheLastStepOfASchedule) {
  const OneCycleLR cycle{.max_lr = {0.1}, .total_steps = 10};
  const StepLR endless{.step_size = 3};
  EXPECT_EQ(LRSchedule(endless).last_step(), std::nullopt);
  const auto expect_last = [](const LRSchedule& schedule, std::int64_t last) {
    schedule.check(1);
    EXPECT_EQ(schedule.last_step(), last);
    EXPECT_NO_THROW(schedule.at(last, 0.1));
    EXPECT_THROW(schedule.at(last + 1, 0.1), UsageError);
  };
  expect_last(cycle, 10);
  expect_last(ChainedScheduler{.schedulers = {endless, cycle}}, 10);
  expect_last(SequentialLR{.schedulers = {endless, cycle}, .milestones = {5}}, 15);
  expect_last(SequentialLR{.schedulers = {endless, cycle, endless}, .milestones = {5, 20}}, 15);
  const SequentialLR replaced{.schedulers = {cycle, endless}, .milestones = {11}};
  EXPECT_EQ(LRSchedule(replaced).last_step(), std::nullopt);
}

TEST(LRScheduler, CyclesTheMomentumOfEachOptimizerThatHasOne) {
  const OneCycleLR cycle{.max_lr = {1}, .total_steps = 10};
  const auto rmsprop = optimizer_with<torch::optim::RMSprop>(torch::optim::RMSpropOptions(1));
  LRScheduler scheduler(*rmsprop,
                        SequentialLR{.schedulers = {LinearLR{}, cycle}, .milestones = {1}});
  auto& options = dynamic_cast<torch::optim::RMSpropOptions&>(rmsprop->param_groups()[0].options());
  EXPECT_EQ(options.momentum(), 0);
  scheduler.step();
  EXPECT_EQ(options.momentum(), 0.95);

  const auto adagrad = optimizer_with<torch::optim::Adagrad>(torch::optim::AdagradOptions(1));
  EXPECT_THAT(message_of<UsageError>([&] { LRScheduler refused(*adagrad, cycle); }),
              HasSubstr("AdagradOptions is none of SGD, RMSprop, Adam and AdamW; set "
                        ".cycle_momentum = false"));
  EXPECT_EQ(rates_of(*adagrad), (std::vector<double>{0.1, 0.03}));
}

TEST(LRScheduler, ChangesNothingInAStepThatItRefuses) {
  const auto optimizer = make_sgd();
  LRScheduler scheduler(*optimizer, OneCycleLR{.max_lr = {1}, .total_steps = 3});
  for (int step = 0; step < 3; ++step) scheduler.step();
  const auto rates = rates_of(*optimizer);
  EXPECT_THAT(message_of<UsageError>([&] { scheduler.step(); }), HasSubstr("this is step 4 of 3"));
  EXPECT_EQ(rates_of(*optimizer), rates);
  EXPECT_EQ(scheduler.steps(), 3);

  optimizer->add_param_group(OptimizerParamGroup({torch::zeros({1}, torch::requires_grad())}));
  EXPECT_THAT(message_of<UsageError>([&] { scheduler.step(); }),
              HasSubstr("the optimizer has 3 parameter groups, and had 2"));
}

TEST(ReduceLROnPlateau, GoesOnFromItsState) {
  const auto optimizer = make_sgd();
  ReduceLROnPlateau plateau(*optimizer, {.patience = 2, .cooldown = 3});
  const auto resumed_optimizer = make_sgd();
  for (int step = 0; step < 200; ++step) {
    // Made anew before each metric.
    ReduceLROnPlateau resumed(*resumed_optimizer, {.patience = 2, .cooldown = 3});
    resumed.load_state_dict(plateau.state_dict());
    EXPECT_EQ(plateau.step(metric_at(step)), resumed.step(metric_at(step))) << step;
    ASSERT_EQ(plateau.get_last_lr(), resumed.get_last_lr()) << step;
  }
  EXPECT_LT(plateau.get_last_lr()[0], 0.1);
  EXPECT_THAT(message_of<CheckpointError>([&] {
                plateau.load_state_dict({{"best", 1}});
              }),
              HasSubstr("the state has no num_bad_epochs"));
}

TEST(ReduceLROnPlateau, ANanIsNoImprovement) {
  const auto optimizer = make_sgd();
  ReduceLROnPlateau plateau(*optimizer, {.patience = 0});
  EXPECT_TRUE(plateau.step(kNan));
  EXPECT_FALSE(plateau.step(1));
  EXPECT_TRUE(plateau.step(kNan));
}

TEST(ReduceLROnPlateau, RefusesOptionsOutOfRange) {
  const auto optimizer = make_sgd();
  const auto refusal = [&](const ReduceLROnPlateauOptions& options) {
    return message_of<UsageError>([&] { ReduceLROnPlateau plateau(*optimizer, options); });
  };
  EXPECT_EQ(refusal({.factor = 1}),
            "[ReduceLROnPlateau] factor is 1; it must be from 0 to below 1");
  EXPECT_THAT(refusal({.patience = -1}), HasSubstr("patience is -1"));
  EXPECT_THAT(refusal({.threshold = kNan}), HasSubstr("threshold is nan"));
  EXPECT_THAT(refusal({.min_lr = {}}), HasSubstr("min_lr has 0 entries"));
}

// Ranks see different metrics; their mean stagnates.
TEST(ReduceLROnPlateau, AllRanksUseTheMeanOfTheirMetrics) {
  testing::run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto optimizer = make_sgd();
    ReduceLROnPlateau plateau(*optimizer, {.factor = 0.5, .patience = 1}, group);
    const double slope = group->rank() - 1;
    EXPECT_FALSE(plateau.step(7 - slope));
    EXPECT_FALSE(plateau.step(7 - 2 * slope));
    EXPECT_TRUE(plateau.step(7 - 3 * slope));
    EXPECT_EQ(plateau.state_dict().at("best"), 7);
    EXPECT_THAT(plateau.get_last_lr(), ElementsAre(0.05, 0.015));
  });
}

}  // namespace
}  // namespace lockstep::optim
