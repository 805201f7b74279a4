// SPDX-License-Identifier: BSD-3-Clause
// Gradients that are not finite: which are found, and whom all ranks name.
#include "lockstep/parallel/finite_gradients.h"

#include <cmath>
#include <limits>
#include <optional>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/rank_processes.h"
#include "tests/support/thread_group.h"
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/parallel/model_checks.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

const ReducerOptions kOneChecked{.check_finite = true};
const ReducerOptions kManyChecked{.bucket_cap_mb = 0, .first_bucket_mb = 0, .check_finite = true};

// Three parameters, whose gradients are what the rank says.
class Controlled {
 public:
  Controlled(const std::shared_ptr<ProcessGroup>& group, const ReducerOptions& options,
             c10::ScalarType type = at::kFloat, std::int64_t length = 5)
      : parameters_(make(type, length)), reducer_(parameters_, group, options) {}

  // A gradient of ones, but for the last element; undefined where that is missing.
  void backward(const std::vector<std::optional<double>>& last_elements) {
    reducer_.prepare(loss(last_elements)).backward();
  }
  void accumulate(const std::vector<std::optional<double>>& last_elements) {
    const NoSync guard = reducer_.no_sync();
    reducer_.prepare(loss(last_elements)).backward();
  }
  std::string error(const std::vector<std::optional<double>>& last_elements) {
    return message_of<NonFiniteGradient>([&] { backward(last_elements); });
  }
  // In place or to none.
  void clear(bool in_place) {
    for (const NamedTensor& parameter : parameters_) {
      Tensor& gradient = parameter.tensor.mutable_grad();
      if (!in_place) gradient.reset();
      if (gradient.defined()) gradient.detach_().zero_();
    }
  }
  double last_element(int parameter) const {
    const Tensor& gradient = parameters_[static_cast<std::size_t>(parameter)].tensor.grad();
    return at::real(gradient[-1]).to(at::kDouble).item<double>();
  }
  Reducer& reducer() { return reducer_; }

 private:
  static std::vector<NamedTensor> make(c10::ScalarType type, std::int64_t length) {
    std::vector<NamedTensor> parameters;
    for (const char* name : {"a", "b", "c"}) {
      parameters.push_back({name, torch::ones({length}, type).requires_grad_()});
    }
    return parameters;
  }
  Tensor loss(const std::vector<std::optional<double>>& last_elements) const {
    Tensor sum = torch::zeros({}, parameters_[0].tensor.options()).requires_grad_();
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (!last_elements[i]) continue;
      Tensor gradient = torch::ones_like(parameters_[i].tensor).detach();
      gradient[-1] = *last_elements[i];
      sum = sum + (parameters_[i].tensor * gradient).sum();
    }
    return at::real(sum);
  }

  std::vector<NamedTensor> parameters_;
  Reducer reducer_;
};

// Over each backend that shares memory, with its ranks: threads or processes.
class CheckFinite : public ::testing::TestWithParam<std::string> {
 protected:
  static void run(int size, const std::function<void(std::shared_ptr<ProcessGroup>)>& body) {
    if (GetParam() == "thread") return run_rank_threads(size, body);
    run_ranks(size, [&](Rank& rank) {
      body(init_process_group({.backend = GetParam(),
                               .init_method = rank.rendezvous_url(),
                               .rank = rank.rank(),
                               .world_size = rank.size(),
                               .timeout = std::chrono::seconds(60),
                               .device = at::kCPU}));
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Over, CheckFinite, ::testing::Values("thread", "shm"),
                         [](const auto& info) { return info.param; });

TEST_P(CheckFinite, NamesTheParameterAndItsRankOnEveryRankAndGoesOn) {
  run(3, [](const std::shared_ptr<ProcessGroup>& group) {
    for (const ReducerOptions& options : {kOneChecked, kManyChecked}) {
      Controlled model(group, options);
      int step = 0;
      // Also in the first backward, and in the first, the middle and the last bucket.
      for (const double bad : {kNan, kInf, -kInf}) {
        for (std::size_t parameter = 0; parameter < 3; ++parameter) {
          std::vector<std::optional<double>> gradients(3, group->rank());
          if (group->rank() == 1) gradients[parameter] = bad;
          const std::string named = fmt::format(
              ": the gradient of {} is not finite on rank 1; every rank", "abc"[parameter]);
          EXPECT_THAT(model.error(gradients),
                      AllOf(HasSubstr(named),
                            HasSubstr(fmt::format("[reducer] reducing gradients, rank {} of 3",
                                                  group->rank()))));
          model.clear(++step % 2 == 0);
          model.backward({0, group->rank(), 3 * group->rank()});
          for (int i = 0; i < 3; ++i) EXPECT_EQ(model.last_element(i), (i > 1 ? 3 : i));
          model.clear(step % 2 == 0);
        }
      }
    }
  });
}

TEST_P(CheckFinite, NamesAllRanksAndTheFirstParameters) {
  run(3, [](const std::shared_ptr<ProcessGroup>& group) {
    for (const ReducerOptions& options : {kOneChecked, kManyChecked}) {
      Controlled model(group, options);
      // inf and -inf, of which each is found though their sum is NaN.
      const std::vector<std::vector<std::optional<double>>> gradients{
          {kInf, kNan, 1}, {1, 1, 1}, {-kInf, 1, kNan}};
      EXPECT_THAT(model.error(gradients[static_cast<std::size_t>(group->rank())]),
                  HasSubstr("the gradient of a is not finite on ranks 0 and 2; the gradient of b "
                            "is not finite on rank 0; the gradient of c is not finite on rank 2;"));
      model.clear(true);
      EXPECT_THAT(model.error(std::vector<std::optional<double>>(3, kNan)),
                  HasSubstr("the gradient of a is not finite on ranks 0, 1 and 2;"));
    }
  });
}

TEST_P(CheckFinite, TellsAnOverflowInTheSumFromATermThatIsNotFinite) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Controlled model(group, kManyChecked);
    for (int step = 0; step < 2; ++step) {
      const std::string error = model.error({1, 3e38, group->rank() == 1 ? kInf : 3e38});
      EXPECT_THAT(error, HasSubstr("the gradient of b overflows in the sum, though it is finite on "
                                   "every rank; the gradient of c is not finite on rank 1;"));
      EXPECT_THAT(error, Not(HasSubstr("of a")));
      model.clear(step == 0);
    }
    model.backward({1, 3e38 * group->rank(), -3e38 * group->rank()});
  });
}

TEST_P(CheckFinite, CountsWhatARankHasAccumulatedBefore) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Controlled model(group, kOneChecked);
    for (int step = 0; step < 3; ++step) {
      model.accumulate({1, group->rank() == 0 ? kInf : 1, std::nullopt});
      EXPECT_THAT(model.error({1, 1, std::nullopt}),
                  HasSubstr("the gradient of b is not finite on rank 0; every"));
      model.clear(step % 2 == 0);
    }
  });
}

TEST_P(CheckFinite, KnowsParametersThatNotAllRanksUse) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    for (const ReducerOptions& options : {kOneChecked, kManyChecked}) {
      Controlled model(group, options);
      const bool last = group->rank() == 1;
      for (int step = 0; step < 4; ++step) {
        using Gradients = std::vector<std::optional<double>>;
        EXPECT_THAT(model.error(last ? Gradients{std::nullopt, kNan, std::nullopt}
                                     : Gradients{1, std::nullopt, std::nullopt}),
                    AllOf(HasSubstr("the gradient of b is not finite on rank 1;"),
                          Not(HasSubstr("gradient of a")), Not(HasSubstr("gradient of c"))));
        model.clear(step % 2 == 0);
        model.backward({1, last ? std::nullopt : std::optional(4.), 1});
        EXPECT_EQ(model.last_element(1), 2);
        model.clear(step % 2 == 1);
      }
    }
  });
}

TEST_P(CheckFinite, ChecksEveryTypeAndTensorsThatArePartlyReadInPlace) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    for (const auto type : {at::kDouble, at::kHalf, at::kBFloat16, at::kComplexFloat}) {
      Controlled model(group, kOneChecked, type);
      for (int step = 0; step < 2; ++step) {
        EXPECT_THAT(model.error({1, group->rank() == 0 ? kInf : 1, 1}),
                    HasSubstr("the gradient of b is not finite on rank 0; every"))
            << type;
        model.clear(false);
      }
    }
    // The last element is in the last rank's own share.
    Controlled large(group, kManyChecked, at::kFloat, 3 << 20);
    for (int step = 0; step < 4; ++step) {
      EXPECT_THAT(large.error({1, 1, group->rank() == step % 2 ? kNan : 1}),
                  HasSubstr(fmt::format("the gradient of c is not finite on rank {};", step % 2)));
      large.clear(step == 2);
    }
  });
}

TEST_P(CheckFinite, IsOffByDefaultAndMustBeTheSameOnEveryRank) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Controlled model(group, {});
    model.backward({group->rank() == 1 ? kNan : 1, 1, 1});
    EXPECT_TRUE(std::isnan(model.last_element(0)));
    EXPECT_THAT(message_of<UsageError>(
                    [&] { Controlled other(group, {.check_finite = group->rank() == 1}); }),
                HasSubstr("bytes, check_finite"));
  });
}

TEST_P(CheckFinite, LooksAtWhatACommHookMakes) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Controlled model(group, kOneChecked);
    model.reducer().register_comm_hook([&](GradBucket& bucket) {
      bucket.buffer().nan_to_num_(0, 1, -1);
      return group->all_reduce(bucket.buffer(), ReduceOp::mean);
    });
    model.backward({group->rank() == 1 ? kNan : 2, kInf, -kInf});
    for (int i = 0; i < 3; ++i) EXPECT_EQ(model.last_element(i), i < 2 ? 1 : -1);
  });
}

TEST(CheckFiniteInOneProcess, NamesParametersAsWell) {
  const auto group = init_process_group({.device = at::kCPU});
  ASSERT_EQ(group->size(), 1);
  Mlp net;
  DistributedDataParallel model(net, group, {.check_finite = true});
  for (int step = 0; step < 2; ++step) {
    model(values({2, 6})).sum().backward();
    EXPECT_EQ(message_of<Error>([&] { check_finite_gradients(*net); }), "");
    const Tensor loss = model(values({2, 6}) * kNan).sum();
    EXPECT_THAT(
        message_of<NonFiniteGradient>([&] { loss.backward(); }),
        AllOf(HasSubstr("the gradient of hidden.weight is not finite on rank 0; the gradient of "
                        "hidden.bias"),
              HasSubstr("; 2 more parameters; every rank")));
    EXPECT_THAT(message_of<NonFiniteGradient>([&] { check_finite_gradients(*net); }),
                AllOf(HasSubstr("the gradient of hidden.weight is not finite; the gradient of "),
                      HasSubstr("; 2 more parameters; clear the gradients")));
    (step == 0 ? reset_gradients : zero_gradients)(*net);
  }
}

TEST(FiniteCheck, FindsOneElementAnywhere) {
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kComplexDouble}) {
    const double largest = type == at::kHalf ? 65504 : 3e38;
    for (const std::int64_t length : {1, 7, 8192, 300'001}) {
      for (const double sign : {1., -1.}) {
        EXPECT_TRUE(FiniteCheck(torch::full({length}, sign * largest, type)).passes()) << type;
        for (const std::int64_t at : {std::int64_t{0}, length / 2, length - 1}) {
          for (const double bad : {kInf, kNan}) {
            Tensor tensor = torch::full({length}, sign, type);
            tensor[at] = sign * bad;
            EXPECT_FALSE(FiniteCheck(tensor).passes()) << type << ", " << at << " of " << length;
          }
        }
      }
    }
  }
  EXPECT_TRUE(FiniteCheck(torch::full({9}, 1e-42)).passes());
  EXPECT_TRUE(FiniteCheck(torch::zeros({0})).passes());
  EXPECT_TRUE(FiniteCheck().passes());
  // Only the elements of the view count, not its memory.
  const Tensor whole = torch::zeros({4, 4});
  whole[0][1] = kNan;
  EXPECT_FALSE(FiniteCheck(whole).passes());
  EXPECT_TRUE(FiniteCheck(whole.select(1, 0)).passes());
  EXPECT_FALSE(FiniteCheck(whole.select(1, 1)).passes());
}

}  // namespace
}  // namespace lockstep::testing
