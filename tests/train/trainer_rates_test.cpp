// SPDX-License-Identifier: BSD-3-Clause
// The rates of an optimizer by schedule, scale and plateau, and what a checkpoint's numbers make of
// them.
#include "lockstep/train/trainer_rates.h"

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

namespace lockstep {
namespace {

using optim::CosineAnnealingLR;
using optim::LinearLR;
using optim::LRSchedule;
using optim::StepLR;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using RateNumbers = std::map<std::string, double>;

// An optimizer with the rates 0.5 and 0.25, and what a Trainer does with it.
class RatedTraining {
 public:
  explicit RatedTraining(const TrainerOptions& options = {}, double rate = 0.5)
      : options_(options), optimizer_(groups(rate), torch::optim::SGDOptions(rate)) {
    optimizer_.param_groups()[1].options().set_lr(0.25);
    rates_.use(optimizer_);
  }

  std::vector<std::string> begin(const std::optional<LRSchedule>& schedule, std::int64_t steps = 0,
                                 const std::optional<RateNumbers>& loaded = {}) {
    rates_.before_load();
    if (loaded) rates_.numbers() = *loaded;
    return rates_.begin(schedule, steps, loaded.has_value());
  }
  std::vector<double> rates() {
    std::vector<double> rates;
    for (auto& group : optimizer_.param_groups()) rates.push_back(group.options().get_lr());
    return rates;
  }
  void set(std::vector<double> rates) {
    for (std::size_t i = 0; i < rates.size(); ++i) {
      optimizer_.param_groups()[i].options().set_lr(rates[i]);
    }
  }
  RateNumbers saved() {
    rates_.settle();
    rates_.note_numbers();
    return rates_.numbers();
  }
  TrainerRates& operator*() { return rates_; }

 private:
  static std::vector<torch::optim::OptimizerParamGroup> groups(double rate) {
    std::vector<torch::optim::OptimizerParamGroup> made;
    for (int i = 0; i < 2; ++i) {
      made.emplace_back(std::vector{torch::zeros({1}, torch::requires_grad())},
                        std::make_unique<torch::optim::SGDOptions>(rate));
    }
    return made;
  }

  TrainerOptions options_;
  torch::optim::SGD optimizer_;
  TrainerRates rates_{options_};
};

TEST(TrainerRates, ScalesOnceAndFollowsTheSchedule) {
  RatedTraining training({.lr_scale = 4});
  EXPECT_THAT(training.rates(), ElementsAre(2, 1));
  training.begin(LinearLR{.start_factor = 0.25, .total_iters = 2});
  EXPECT_THAT(training.rates(), ElementsAre(0.5, 0.25));
  (*training).step();
  (*training).step();
  EXPECT_THAT(training.rates(), ElementsAre(2, 1));
}

TEST(TrainerRates, WithoutAScheduleRatesStayAsTheProgramSetsThem) {
  RatedTraining training;
  training.begin({});
  training.set({0.125, 0.75});
  (*training).step();
  EXPECT_THAT(training.rates(), ElementsAre(0.125, 0.75));
}

TEST(TrainerRates, ASecondFitGoesOnAtItsStep) {
  RatedTraining training;
  training.begin(StepLR{.step_size = 2, .gamma = 0.5});
  for (int i = 0; i < 3; ++i) (*training).step();
  training.begin(StepLR{.step_size = 2, .gamma = 0.5}, 3);
  EXPECT_THAT(training.rates(), ElementsAre(0.25, 0.125));
  (*training).step();
  EXPECT_THAT(training.rates(), ElementsAre(0.125, 0.0625));
}

// Reductions by a plateau and changes by the program last, with the bits of a run that goes on.
TEST(TrainerRates, AResumedScheduleKeepsEachReduction) {
  const TrainerOptions options{.reduce_lr_on_plateau =
                                   optim::ReduceLROnPlateauOptions{.factor = 0.3, .patience = 0}};
  const CosineAnnealingLR cosine{.T_max = 20};
  RatedTraining whole(options);
  whole.begin(cosine);
  for (int i = 0; i < 5; ++i) (*whole).step();
  EXPECT_FALSE((*whole).evaluated(0.5));
  EXPECT_TRUE((*whole).evaluated(0.5));
  const RateNumbers saved = whole.saved();
  RatedTraining resumed(options);
  EXPECT_THAT(resumed.begin(cosine, 5, saved), IsEmpty());
  for (int i = 5; i < 15; ++i) {
    EXPECT_EQ(resumed.rates(), whole.rates()) << i;
    (*whole).step();
    (*resumed).step();
  }
  EXPECT_TRUE((*resumed).evaluated(0.4)) << "it remembers the best";
}

TEST(TrainerRates, TheCheckpointsRatesAndTheProgramsScheduleAreUsed) {
  RatedTraining first({.lr_scale = 2});
  first.begin(CosineAnnealingLR{.T_max = 10});
  for (int i = 0; i < 5; ++i) (*first).step();
  RatedTraining second({.lr_scale = 4}, 0.7);
  EXPECT_THAT(
      second.begin(CosineAnnealingLR{.T_max = 5}, 5, first.saved()),
      ElementsAre("the learning-rate schedule differs from the checkpoint's: "
                  "CosineAnnealingLR.T_max is 5 (saved: 10), lr_scale is 4 (saved: 2); this "
                  "program's is used",
                  "the optimizer's learning rates differ from the checkpoint's: initial_lr.0 0.7 "
                  "(checkpoint: 0.5); the checkpoint's are used"));
  const RateNumbers saved = second.saved();
  EXPECT_EQ(saved.at("initial_lr.0"), 2);
  EXPECT_EQ(saved.at("initial_lr.1"), 1);
  EXPECT_EQ(saved.at("program_lr.0"), 0.5);
}

TEST(TrainerRates, WithoutItsScheduleARunReturnsToTheInitialRates) {
  RatedTraining first;
  first.begin(CosineAnnealingLR{.T_max = 10});
  for (int i = 0; i < 5; ++i) (*first).step();
  const std::vector<double> loaded = first.rates();
  RatedTraining second;
  const RateNumbers saved = first.saved();
  second.set(loaded);  // as the optimizer's own state is loaded
  EXPECT_THAT(second.begin({}, 5, saved),
              ElementsAre("the learning-rate schedule differs from the checkpoint's: there is none "
                          "any more; this program's is used"));
  EXPECT_THAT(second.rates(), ElementsAre(0.5, 0.25));
  RatedTraining third;
  third.set({0.125, 0.25});
  EXPECT_THAT(third.begin({}, 5, second.saved()), IsEmpty());
  EXPECT_THAT(third.rates(), ElementsAre(0.125, 0.25)) << "as the program had set them";
}

// Lockstep 0.1: the rate was initial_lr * base * scale, decayed.
TEST(TrainerRates, TakesTheNumbersOfTheFirstVersion) {
  const RateNumbers cosine{{"base", 0.5},  {"scale", 2},           {"steps", 12},
                           {"decay", 2},   {"decay_steps", 0},     {"decay_factor", 0.1},
                           {"minimum", 0}, {"initial_lr.0", 0.75}, {"initial_lr.1", 0.25}};
  RatedTraining training({.lr_scale = 2});
  const auto lines = training.begin(CosineAnnealingLR{.T_max = 12}, 6, cosine);
  EXPECT_THAT(lines, ElementsAre("the learning-rate schedule differs from the checkpoint's: "
                                 "CosineAnnealingLR.T_max is 12 (not in the saved schedule), "
                                 "CosineAnnealingLR.eta_min is 0 (not in the saved schedule); this "
                                 "program's is used",
                                 "the optimizer's learning rates differ from the checkpoint's: "
                                 "initial_lr.0 0.5 (checkpoint: 0.75); the checkpoint's are used"));
  EXPECT_DOUBLE_EQ(training.rates()[0], 0.75 * 0.5 * 2 / 2);
  EXPECT_EQ(training.saved().at("last_epoch"), 6);

  RateNumbers flat = cosine;
  flat["base"] = flat["scale"] = 1;
  flat["decay"] = 0;
  flat["initial_lr.0"] = 0.5;
  RatedTraining without;
  without.set({0.125, 0.25});
  EXPECT_THAT(without.begin({}, 6, flat), IsEmpty());
  EXPECT_THAT(without.rates(), ElementsAre(0.125, 0.25));
}

// A checkpoint of a version that saved none.
TEST(TrainerRates, WithoutNumbersTheProgramsRatesAreUsed) {
  RatedTraining training;
  EXPECT_THAT(training.begin(StepLR{.step_size = 2, .gamma = 0.5}, 4, RateNumbers()), IsEmpty());
  EXPECT_THAT(training.rates(), ElementsAre(0.125, 0.0625));
}

TEST(TrainerSchedule, IsAValueOrAFunctionOfTheSteps) {
  EXPECT_FALSE(TrainerSchedule());
  const TrainerSchedule value = StepLR{.step_size = 7};
  EXPECT_FALSE(value.needs_steps());
  EXPECT_EQ(value.of(0).numbers().at("StepLR.step_size"), 7);
  const TrainerSchedule function = [](std::int64_t steps) {
    return CosineAnnealingLR{.T_max = steps};
  };
  EXPECT_TRUE(function.needs_steps());
  EXPECT_EQ(function.of(90).numbers().at("CosineAnnealingLR.T_max"), 90);
}

}  // namespace
}  // namespace lockstep
