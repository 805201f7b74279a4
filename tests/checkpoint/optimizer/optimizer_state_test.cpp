// SPDX-License-Identifier: BSD-3-Clause
// The state of optimizers through state dicts: what they contain, what they give another optimizer,
// and what does not fit.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "support/captured_warnings.h"
#include "support/temporary_folder.h"
#include "support/thread_group.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "lockstep/checkpoint/state_dict.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/core/error.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Parameters = std::vector<at::Tensor>;
using OptimizerPointer = std::unique_ptr<torch::optim::Optimizer>;
using Factory = std::function<OptimizerPointer(Parameters)>;
using torch::optim::AdagradOptions;
using torch::optim::AdamOptions;
using torch::optim::AdamWOptions;
using torch::optim::RMSpropOptions;
using torch::optim::SGDOptions;

Parameters parameters_of(at::ScalarType type = at::kFloat) {
  Parameters parameters;
  for (const auto& sizes : std::vector<std::vector<std::int64_t>>{{7, 5}, {3}, {2, 3, 2}}) {
    const at::Tensor parameter = at::empty(sizes, at::TensorOptions(type));
    parameter.copy_(at::arange(parameter.numel()).reshape(sizes) * 0.01 + 1);
    parameters.push_back(parameter.set_requires_grad(true));
  }
  return parameters;
}

void take_steps(torch::optim::Optimizer& optimizer, const Parameters& parameters, int first,
                int last) {
  for (int step = first; step < last; ++step) {
    for (const at::Tensor& parameter : parameters) {
      parameter.mutable_grad() = (parameter.detach() * (0.5 + step) - 1).contiguous();
    }
    optimizer.step();
  }
}

void copy_values(const Parameters& from, const Parameters& to) {
  for (std::size_t i = 0; i < from.size(); ++i) to[i].detach().copy_(from[i].detach());
}

void expect_same_bits(const Parameters& some, const Parameters& others) {
  for (std::size_t i = 0; i < some.size(); ++i) EXPECT_TRUE(at::equal(some[i], others[i])) << i;
}

bool same(const TorchValue& a, const TorchValue& b);

bool same_items(const TorchValue::List& a, const TorchValue::List& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), same);
}

bool same(const TorchValue& a, const TorchValue& b) {
  if (a.data.index() != b.data.index()) return false;
  if (const auto* tensor = std::get_if<at::Tensor>(&a.data)) {
    const auto& other = std::get<at::Tensor>(b.data);
    return tensor->scalar_type() == other.scalar_type() && at::equal(*tensor, other);
  }
  if (const auto* list = std::get_if<TorchValue::List>(&a.data)) {
    return same_items(*list, std::get<TorchValue::List>(b.data));
  }
  if (const auto* tuple = std::get_if<TorchValue::Tuple>(&a.data)) {
    return same_items(tuple->items, std::get<TorchValue::Tuple>(b.data).items);
  }
  if (const auto* dict = std::get_if<TorchValue::Dict>(&a.data)) {
    const auto& other = std::get<TorchValue::Dict>(b.data);
    return std::equal(dict->begin(), dict->end(), other.begin(), other.end(),
                      [](const auto& x, const auto& y) {
                        return same(x.first, y.first) && same(x.second, y.second);
                      });
  }
  if (const auto* flag = std::get_if<bool>(&a.data)) return *flag == std::get<bool>(b.data);
  if (const auto* number = std::get_if<double>(&a.data)) return *number == std::get<double>(b.data);
  if (const auto* number = std::get_if<std::int64_t>(&a.data)) {
    return *number == std::get<std::int64_t>(b.data);
  }
  if (const auto* text = std::get_if<std::string>(&a.data)) {
    return *text == std::get<std::string>(b.data);
  }
  return true;
}

// With tensors of its own.
TorchValue cloned(TorchValue value) {
  if (auto* tensor = std::get_if<at::Tensor>(&value.data)) *tensor = tensor->clone();
  if (auto* list = std::get_if<TorchValue::List>(&value.data)) {
    for (auto& item : *list) item = cloned(item);
  }
  if (auto* dict = std::get_if<TorchValue::Dict>(&value.data)) {
    for (auto& item : *dict) item.second = cloned(item.second);
  }
  return value;
}

struct Algorithm {
  std::string name;
  Factory make;
};

template <class Optimizer, class Options>
Algorithm algorithm(std::string name, const Options& options) {
  return {std::move(name), [options](Parameters parameters) {
            return std::make_unique<Optimizer>(std::move(parameters), options);
          }};
}

std::vector<Algorithm> algorithms() {
  const auto momentum = SGDOptions(0.1).momentum(0.9).weight_decay(0.01);
  const auto nesterov = SGDOptions(0.1).momentum(0.9).nesterov(true);
  const auto adam = AdamOptions(0.01).betas({0.8, 0.95}).eps(1e-7).weight_decay(0.1);
  const auto amsgrad = AdamOptions(0.01).amsgrad(true);
  return {
      algorithm<torch::optim::SGD>("sgd", SGDOptions(0.1)),
      algorithm<torch::optim::SGD>("momentum", momentum),
      algorithm<torch::optim::SGD>("nesterov", nesterov),
      algorithm<torch::optim::Adam>("adam", adam),
      algorithm<torch::optim::Adam>("amsgrad", amsgrad),
      algorithm<torch::optim::AdamW>("adamw", AdamWOptions(0.01)),
      algorithm<torch::optim::RMSprop>("rmsprop", RMSpropOptions(0.01)),
      algorithm<torch::optim::RMSprop>("centered",
                                       RMSpropOptions(0.01).momentum(0.5).centered(true)),
      algorithm<torch::optim::Adagrad>("adagrad", AdagradOptions(0.1).lr_decay(0.01)),
      algorithm<optim::SGD>("fused_momentum", momentum),
      algorithm<optim::Adam>("fused_adam", adam),
      algorithm<optim::Adam>("fused_amsgrad", amsgrad),
      algorithm<optim::AdamW>("fused_adamw", AdamWOptions(0.01).weight_decay(0.1)),
  };
}

class OptimizerState : public ::testing::TestWithParam<Algorithm> {};

TEST_P(OptimizerState, GoesOnInAnotherOptimizer) {
  const TemporaryFolder folder;
  for (const int steps : {0, 3}) {
    const Parameters expected = parameters_of();
    const auto first = GetParam().make(expected);
    take_steps(*first, expected, 0, steps);
    const auto file = folder.path() / "state.pt";
    write_torch_file(file, optimizer_state_dict(*first));
    const Parameters parameters = parameters_of();
    const auto second = GetParam().make(parameters);
    take_steps(*second, parameters, 5, 7);  // which the file replaces
    copy_values(expected, parameters);
    load_optimizer_state_dict(*second, read_torch_file(file));
    EXPECT_TRUE(same(optimizer_state_dict(*second), optimizer_state_dict(*first)));
    // Interleaved, so that shared memory would show.
    for (int step = steps; step < 6; ++step) {
      take_steps(*first, expected, step, step + 1);
      take_steps(*second, parameters, step, step + 1);
    }
    expect_same_bits(parameters, expected);
  }
}

TEST_P(OptimizerState, AnyValueInAnyPlaceFitsOrIsAnError) {
  const Parameters parameters = parameters_of();
  const auto optimizer = GetParam().make(parameters);
  take_steps(*optimizer, parameters, 0, 2);
  const TorchValue good = cloned(optimizer_state_dict(*optimizer));
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<TorchValue> odd{
      {},
      {true},
      {std::numeric_limits<std::int64_t>::min()},
      {std::numeric_limits<std::int64_t>::max()},
      {kNan},
      {std::numeric_limits<double>::infinity()},
      {-1.5},
      {std::string("\xff\n")},
      {TorchValue::List{}},
      {TorchValue::List{{0.5}, {0.5}, {0.5}}},
      {TorchValue::Tuple{}},
      {TorchValue::Tuple{{{kNan}, {std::string("x")}}}},
      {TorchValue::Dict{}},
      {TorchValue::Dict{{{std::int64_t{1}}, {std::int64_t{1}}}}},
      {at::Tensor()},
      {at::empty({0})},
      {at::full({}, kNan)},
      {at::ones({1, 1}, at::kComplexFloat)},
      {at::ones({7, 5}, at::kLong)},
      {at::ones({7, 5}, at::kBool)},
      {at::eye(3).to_sparse()},
      {at::empty({7, 5}, at::TensorOptions(at::kMeta))},
      {at::ones({7, 5}, at::kBFloat16).t().contiguous().t()},
  };
  std::function<void(TorchValue&, const std::function<void()>&)> at_each_place =
      [&](TorchValue& value, const std::function<void()>& use) {
        for (const TorchValue& other : odd) {
          TorchValue kept = std::exchange(value, other);
          use();
          value = std::move(kept);
        }
        if (auto* list = std::get_if<TorchValue::List>(&value.data)) {
          for (auto& item : *list) at_each_place(item, use);
        } else if (auto* tuple = std::get_if<TorchValue::Tuple>(&value.data)) {
          for (auto& item : tuple->items) at_each_place(item, use);
        } else if (auto* dict = std::get_if<TorchValue::Dict>(&value.data)) {
          for (auto& item : *dict) at_each_place(item.first, use);
          for (auto& item : *dict) at_each_place(item.second, use);
        }
      };
  TorchValue value = good;
  int errors = 0;
  at_each_place(value, [&] {
    try {
      load_optimizer_state_dict(*optimizer, value);
      take_steps(*optimizer, parameters, 0, 1);
    } catch (const CheckpointError&) {
      ++errors;
    }
    load_optimizer_state_dict(*optimizer, good);
  });
  EXPECT_GT(errors, 200);
}

TEST_P(OptimizerState, AnErrorChangesNothing) {
  const Parameters parameters = parameters_of();
  const auto optimizer = GetParam().make(parameters);
  take_steps(*optimizer, parameters, 0, 2);
  const TorchValue before = cloned(optimizer_state_dict(*optimizer));
  take_steps(*optimizer, parameters, 2, 4);
  const TorchValue after = cloned(optimizer_state_dict(*optimizer));
  // Its last group is wrong in the last option that is read.
  TorchValue wrong = before;
  for (auto& [key, value] : std::get<TorchValue::Dict>(wrong.data)) {
    if (std::get<std::string>(key.data) != "param_groups") continue;
    auto& group = std::get<TorchValue::Dict>(std::get<TorchValue::List>(value.data)[0].data);
    for (auto& [name, option] : group) {
      if (std::get<std::string>(name.data) == "lr") option = {0.5};
      if (std::get<std::string>(name.data) == "maximize") option = {true};
    }
  }
  EXPECT_THAT(message_of<CheckpointError>([&] { load_optimizer_state_dict(*optimizer, wrong); }),
              HasSubstr("group 0: \"maximize\" is True"));
  EXPECT_TRUE(same(optimizer_state_dict(*optimizer), after));
}

INSTANTIATE_TEST_SUITE_P(Of, OptimizerState, ::testing::ValuesIn(algorithms()),
                         [](const auto& test) { return test.param.name; });

std::vector<std::string> keys_of(const TorchValue& value) {
  std::vector<std::string> keys;
  for (const auto& [key, item] : std::get<TorchValue::Dict>(value.data)) {
    const auto* const text = std::get_if<std::string>(&key.data);
    keys.push_back(text ? *text : std::to_string(std::get<std::int64_t>(key.data)));
  }
  return keys;
}

TEST(OptimizerStateDict, HasTheNamesOfPython) {
  Parameters parameters = parameters_of();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(Parameters{parameters[0]});
  groups.emplace_back(Parameters{parameters[1], parameters[2]},
                      std::make_unique<AdamOptions>(AdamOptions(0.5).amsgrad(true)));
  optim::Adam adam(groups, AdamOptions(0.25));
  parameters.erase(parameters.begin() + 1);  // has no gradient, and no state
  take_steps(adam, parameters, 0, 3);
  const TorchValue value = optimizer_state_dict(adam);
  EXPECT_THAT(keys_of(value), ElementsAre("state", "param_groups"));
  const auto& states = std::get<TorchValue::Dict>(value.find("state")->data);
  EXPECT_THAT(keys_of(*value.find("state")), ElementsAre("0", "2"));
  EXPECT_THAT(keys_of(states[0].second), ElementsAre("step", "exp_avg", "exp_avg_sq"));
  EXPECT_THAT(keys_of(states[1].second),
              ElementsAre("step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"));
  const auto& step = std::get<at::Tensor>(states[0].second.find("step")->data);
  EXPECT_EQ(step.dim(), 0);
  EXPECT_EQ(step.scalar_type(), at::kFloat);
  EXPECT_EQ(step.item<double>(), 3);
  const auto& group_list = std::get<TorchValue::List>(value.find("param_groups")->data);
  ASSERT_EQ(group_list.size(), 2u);
  EXPECT_THAT(keys_of(group_list[0]), ElementsAre("lr", "betas", "eps", "weight_decay", "amsgrad",
                                                  "maximize", "decoupled_weight_decay", "params"));
  EXPECT_EQ(std::get<double>(group_list[0].find("lr")->data), 0.25);
  EXPECT_EQ(std::get<double>(group_list[1].find("lr")->data), 0.5);
  const TorchValue numbers{TorchValue::List{{std::int64_t{1}}, {std::int64_t{2}}}};
  EXPECT_TRUE(same(*group_list[1].find("params"), numbers));
}

// As Python numbers them, which lists them once.
TEST(OptimizerStateDict, NumbersTiedWeightsOnce) {
  const Parameters parameters = parameters_of();
  torch::optim::Adam once(parameters, 0.25);
  const Parameters listed{parameters[0], parameters[1], parameters[0], parameters[2]};
  torch::optim::Adam twice(listed, 0.25);
  take_steps(once, parameters, 0, 1);
  const TorchValue value = optimizer_state_dict(once);
  const testing::CapturedWarnings warnings;
  EXPECT_TRUE(same(*optimizer_state_dict(twice).find("param_groups"), *value.find("param_groups")));
  EXPECT_THAT(warnings.messages(), ElementsAre(HasSubstr("lockstep::distinct_parameters(*net)")));
  load_optimizer_state_dict(twice, value);
  EXPECT_EQ(twice.param_groups().front().params().size(), 3u);
  EXPECT_TRUE(same(optimizer_state_dict(twice), value));
  EXPECT_EQ(warnings.messages().size(), 1u);
}

// Of a state dict of one group: the option, or the entry of the state of parameter 0.
TorchValue& entry(TorchValue& value, const std::string& name) {
  auto& parts = std::get<TorchValue::Dict>(value.data);
  auto& group = std::get<TorchValue::List>(parts[1].second.data)[0];
  auto& state = std::get<TorchValue::Dict>(parts[0].second.data)[0].second;
  for (TorchValue* const owner : {&group, &state}) {
    for (auto& [key, item] : std::get<TorchValue::Dict>(owner->data)) {
      if (std::get<std::string>(key.data) == name) return item;
    }
  }
  auto& entries = std::get<TorchValue::Dict>(group.data);
  entries.emplace_back(TorchValue{name}, TorchValue{});
  return entries.back().second;
}

TorchValue state_of_adam(const AdamOptions& options = AdamOptions(0.01)) {
  const Parameters parameters = parameters_of();
  optim::Adam adam(parameters, options);
  take_steps(adam, parameters, 0, 2);
  return optimizer_state_dict(adam);
}

TEST(OptimizerStateDict, TakesWhatPythonMayHave) {
  TorchValue value = state_of_adam();
  entry(value, "lr") = {at::full({1}, 0.5)};
  entry(value, "betas") = {TorchValue::List{{at::full({}, 0.5)}, {std::int64_t{0}}}};
  entry(value, "weight_decay") = {std::int64_t{0}};
  entry(value, "step") = {std::int64_t{7}};
  entry(value, "foreach") = {};
  entry(value, "fused") = {true};
  entry(value, "initial_lr") = {std::string("any")};
  torch::optim::Adam adam(parameters_of(), AdamOptions());
  load_optimizer_state_dict(adam, value);
  const auto& options = static_cast<AdamOptions&>(adam.param_groups()[0].options());
  EXPECT_EQ(options.lr(), 0.5);
  EXPECT_EQ(options.betas(), std::tuple(0.5, 0.0));
  TorchValue loaded = optimizer_state_dict(adam);
  EXPECT_EQ(std::get<at::Tensor>(entry(loaded, "step").data).item<double>(), 7);
}

TEST(OptimizerStateDict, LargeNumbersOfStepsStayExact) {
  TorchValue value = state_of_adam();
  const std::int64_t steps = (1 << 24) + 1;
  entry(value, "step") = {steps};
  torch::optim::Adam adam(parameters_of(), AdamOptions());
  load_optimizer_state_dict(adam, value);
  value = optimizer_state_dict(adam);
  EXPECT_EQ(std::get<at::Tensor>(entry(value, "step").data).item<double>(), steps);
}

TEST(OptimizerStateDict, NamesAllDifferencesAtOnce) {
  const auto message = [](torch::optim::Optimizer&& optimizer, const TorchValue& value) {
    return message_of<CheckpointError>([&] { load_optimizer_state_dict(optimizer, value); });
  };
  TorchValue value = state_of_adam();
  entry(value, "step") = {std::numeric_limits<double>::quiet_NaN()};
  entry(value, "exp_avg") = {at::zeros({5, 7})};
  EXPECT_THAT(
      message(torch::optim::Adam(parameters_of()), value),
      ::testing::AllOf(
          HasSubstr("does not fit this optimizer (Adam)"),
          HasSubstr("parameter 0: \"step\" is nan, and must be a whole number"),
          HasSubstr("parameter 0: \"exp_avg\" is a tensor of Float with the shape [5, 7], "
                    "and must be a tensor of floating-point numbers with the shape [7, 5]")));
  value = state_of_adam();
  entry(value, "amsgrad") = {true};
  EXPECT_THAT(message(torch::optim::Adam(parameters_of()), value),
              ::testing::AllOf(HasSubstr("parameter 0: \"max_exp_avg_sq\" is missing"),
                               HasSubstr("parameter 2: \"max_exp_avg_sq\" is missing")));
  EXPECT_THAT(message(torch::optim::SGD(parameters_of(), SGDOptions(0.1)), state_of_adam()),
              ::testing::AllOf(HasSubstr("group 0: \"momentum\" is missing"),
                               HasSubstr("group 0: \"nesterov\" is missing")));
  EXPECT_THAT(message(torch::optim::AdamW(parameters_of()),
                      state_of_adam(AdamOptions(0.1).weight_decay(0.1))),
              HasSubstr("\"decoupled_weight_decay\" is False, which AdamW of C++ does not have; "
                        "load it into Adam"));
  EXPECT_THAT(message(torch::optim::Adam({parameters_of()[0]}), state_of_adam()),
              HasSubstr("group 0: it has 3 parameters, and the optimizer's has 1"));
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(Parameters{parameters_of()[0]});
  groups.emplace_back(Parameters{parameters_of()[1]});
  EXPECT_THAT(message(torch::optim::Adam(groups), state_of_adam()),
              HasSubstr("it has 1 parameter groups, and the optimizer has 2"));
  EXPECT_THAT(message(torch::optim::Adam(parameters_of()), {}),
              HasSubstr("it is not an optimizer's state dict"));
  value = state_of_adam();
  auto& state = std::get<TorchValue::Dict>(std::get<TorchValue::Dict>(value.data)[0].second.data);
  std::get<TorchValue::Dict>(state[1].second.data)
      .emplace_back(TorchValue{std::string("mu_product")}, TorchValue{1.0});
  EXPECT_THAT(message(torch::optim::Adam(parameters_of()), value),
              HasSubstr("parameter 1: \"mu_product\" is not a state of Adam"));
  state[1].first = {std::int64_t{9}};
  EXPECT_THAT(message(torch::optim::Adam(parameters_of()), value),
              HasSubstr("\"state\" has the key 9, which is not a parameter of any group"));
}

TEST(OptimizerStateDict, AdagradNeedsTheStateOfEveryParameter) {
  torch::optim::Adagrad adagrad(parameters_of());
  TorchValue value = optimizer_state_dict(adagrad);
  std::get<TorchValue::Dict>(std::get<TorchValue::Dict>(value.data)[0].second.data).pop_back();
  EXPECT_THAT(message_of<CheckpointError>([&] { load_optimizer_state_dict(adagrad, value); }),
              HasSubstr("parameter 2 has no state"));
}

TEST(OptimizerStateDict, OtherOptimizersAreNamed) {
  torch::optim::LBFGS lbfgs(parameters_of());
  EXPECT_THAT(message_of<UsageError>([&] { optimizer_state_dict(lbfgs); }),
              HasSubstr("torch::optim::LBFGS"));
  EXPECT_THAT(message_of<UsageError>([&] { load_optimizer_state_dict(lbfgs, {}); }),
              HasSubstr("SGD, Adam, AdamW, RMSprop and Adagrad"));
}

TEST(OptimizerStateDict, StateHasTheTypeThatTheOptimizerGivesIt) {
  const TorchValue value = state_of_adam();
  const auto type_after_load = [&](torch::optim::Optimizer&& optimizer) {
    load_optimizer_state_dict(optimizer, value);
    TorchValue loaded = optimizer_state_dict(optimizer);
    return std::get<at::Tensor>(entry(loaded, "exp_avg").data).scalar_type();
  };
  EXPECT_EQ(type_after_load(optim::Adam(parameters_of(at::kBFloat16))), at::kFloat);
  EXPECT_EQ(type_after_load(torch::optim::Adam(parameters_of(at::kBFloat16))), at::kBFloat16);
  EXPECT_EQ(type_after_load(optim::Adam(parameters_of(at::kDouble))), at::kDouble);
}

// On ranks that are threads: libtorch's generator is not used.
TEST(ShardedOptimizerState, GoesOnWithAnyNumberOfRanks) {
  const auto train = [](const std::function<OptimizerPointer(Parameters)>& make,
                        const TorchValue* loaded, const Parameters& parameters, int first,
                        int last) {
    auto optimizer = make(parameters);
    if (loaded != nullptr) load_optimizer_state_dict(*optimizer, *loaded);
    take_steps(*optimizer, parameters, first, last);
    return optimizer;
  };
  const AdamOptions options = AdamOptions(0.01).amsgrad(true).weight_decay(0.1);
  const auto alone = [&](Parameters parameters) {
    return std::make_unique<optim::Adam>(std::move(parameters), options);
  };
  const Parameters middle = parameters_of();
  const auto half_way = train(alone, nullptr, middle, 0, 4);
  const TorchValue expected_state = cloned(optimizer_state_dict(*half_way));
  const Parameters end = parameters_of();
  train(alone, nullptr, end, 0, 8);
  for (const int ranks : {1, 2, 3}) {
    run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      const auto sharded = [&](Parameters parameters) {
        return std::make_unique<optim::Adam>(std::move(parameters), options, group);
      };
      const Parameters own = parameters_of();
      const auto first = train(sharded, nullptr, own, 0, 4);
      auto& adam = dynamic_cast<optim::Adam&>(*first);
      adam.consolidate_state(ranks - 1);
      if (group->rank() == ranks - 1) {
        EXPECT_TRUE(same(optimizer_state_dict(*first), expected_state));
      } else {
        EXPECT_THAT(message_of<UsageError>([&] { optimizer_state_dict(*first); }),
                    HasSubstr("this rank has only its part of the state"));
      }
      const Parameters later = parameters_of();
      copy_values(own, later);
      train(sharded, &expected_state, later, 4, 8);
      expect_same_bits(later, end);
    });
  }
}

// Puts the parts into tensors of zeros, by the parameter and the name.
class Assembly {
 public:
  explicit Assembly(std::size_t parameters) : tensors_(parameters), steps_(parameters) {}

  void add(const std::vector<optim::StatePart>& parts) {
    const std::lock_guard lock(mutex_);
    for (const auto& part : parts) {
      steps_[part.parameter] = part.steps;
      for (const auto& [name, tensor] : part.tensors) {
        EXPECT_EQ(tensor.sizes(), (std::vector<std::int64_t>{part.end - part.begin}));
        auto& whole = tensors_[part.parameter][name];
        if (!whole.defined()) {
          whole = at::empty_strided(part.sizes, part.strides).fill_(0);
        }
        whole.as_strided({whole.numel()}, {1}).narrow(0, part.begin, part.end - part.begin) +=
            tensor;
      }
    }
  }
  void expect(const TorchValue& value) const {
    const auto& states = std::get<TorchValue::Dict>(value.find("state")->data);
    ASSERT_EQ(states.size(), tensors_.size());
    for (std::size_t i = 0; i < states.size(); ++i) {
      const auto& step = std::get<at::Tensor>(states[i].second.find("step")->data);
      EXPECT_EQ(step.item<double>(), static_cast<double>(steps_[i]));
      for (const auto& [name, tensor] : tensors_[i]) {
        EXPECT_TRUE(at::equal(tensor, std::get<at::Tensor>(states[i].second.find(name)->data)))
            << name;
      }
      EXPECT_EQ(tensors_[i].size(), 2u);
    }
  }

 private:
  std::mutex mutex_;
  std::vector<std::map<std::string, at::Tensor>> tensors_;
  std::vector<std::int64_t> steps_;
};

Parameters transposed_parameters() {
  Parameters parameters = parameters_of();
  parameters[0] = parameters[0].detach().t().clone().t().set_requires_grad(true);
  return parameters;
}

TEST(ShardedOptimizerState, ThePartsOfAllRanksAreTheWhole) {
  const Parameters parameters = transposed_parameters();
  optim::Adam alone(parameters, AdamOptions(0.01));
  take_steps(alone, parameters, 0, 3);
  const TorchValue expected = optimizer_state_dict(alone);
  Assembly whole(parameters.size());
  whole.add(alone.own_state());
  whole.expect(expected);
  for (const int ranks : {2, 3}) {
    Assembly assembly(parameters.size());
    run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      const Parameters own = transposed_parameters();
      optim::Adam adam(own, AdamOptions(0.01), group);
      EXPECT_TRUE(adam.own_state().empty());
      take_steps(adam, own, 0, 3);
      assembly.add(adam.own_state());
    });
    assembly.expect(expected);
  }
}

TEST(ShardedOptimizerState, BeforeTheFirstBackwardItIsRankZeros) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    testing::Mlp reference;
    Parameters parameters = reference->parameters();
    optim::Adam alone(parameters, AdamOptions(0.01));
    take_steps(alone, parameters, 0, 2);
    const TorchValue expected = optimizer_state_dict(alone);
    testing::Mlp net;
    DistributedDataParallel model(net, group);
    optim::Adam adam(model, AdamOptions(0.5));
    load_optimizer_state_dict(adam, expected);
    EXPECT_EQ(adam.own_state().size(), group->rank() == 0 ? parameters.size() : 0u);
    adam.consolidate_state(1);
    if (group->rank() == 1) {
      EXPECT_TRUE(same(optimizer_state_dict(adam), expected));
    }
  });
}

TEST(ShardedOptimizerState, LoadsOnlyWhatWithoutStateMakes) {
  optim::Adam adam(parameters_of(), AdamOptions(0.5));
  EXPECT_THAT(message_of<UsageError>(
                  [&] { adam.load_whole(std::make_unique<torch::optim::Adam>(parameters_of())); }),
              HasSubstr("an optimizer of other parameters"));
  EXPECT_THAT(
      message_of<UsageError>([&] {
        adam.load_whole(std::make_unique<torch::optim::SGD>(parameters_of(), SGDOptions(0.1)));
      }),
      HasSubstr("takes an optimizer as without_state() makes it"));
}

}  // namespace
}  // namespace lockstep::testing
