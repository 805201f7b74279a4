// SPDX-License-Identifier: BSD-3-Clause
// SyncBatchNorm over ranks: the same as a BatchNorm of one process gets that computes the whole
// batch.
#include "lockstep/parallel/sync_batch_norm.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>

#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Group = std::shared_ptr<ProcessGroup>;
using Options = torch::nn::BatchNormOptions;

double tolerance(at::ScalarType type) {
  return type == at::kDouble ? 1e-12 : 1e-6;
}

// Relative to the largest element, or to the largest term of a sum that cancels.
void expect_equal(const at::Tensor& actual, const at::Tensor& expected, double within,
                  const std::string& what, double largest_term = 0) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  if (expected.numel() == 0) return;
  const double largest = std::max(expected.abs().max().item<double>(), largest_term);
  EXPECT_LE((actual - expected).abs().max().item<double>(), within * largest)
      << what << ": " << actual.flatten().slice(0, 0, 8) << "\nexpected "
      << expected.flatten().slice(0, 0, 8);
}

// A BatchNorm for inputs with any number of dimensions.
at::Tensor batch_norm(const at::Tensor& input, SyncBatchNorm& norm) {
  const auto& options = norm->options;
  return torch::batch_norm(input, norm->weight, norm->bias, norm->running_mean, norm->running_var,
                           /*training=*/true, options.momentum().value(), options.eps(), false);
}

SyncBatchNorm make_norm(const Options& options, at::ScalarType type, const Group& group = nullptr) {
  SyncBatchNorm norm(options, group);
  set_weights(*norm, 5);
  norm->to(type);
  return norm;
}

// The largest term of the input's gradient, before the statistics' part is subtracted.
double largest_term(const at::Tensor& input, const at::Tensor& gradient, const at::Tensor& weight) {
  const at::Tensor factor = input.transpose(0, 1).flatten(1).std(1).reciprocal();
  const at::Tensor weighted = weight.defined() ? factor * weight.abs() : factor;
  return (weighted.max() * gradient.abs().max()).item<double>();
}

struct Case {
  std::vector<std::int64_t> samples;  // of each rank
  std::vector<std::int64_t> sizes;    // of a sample: channels first
  at::ScalarType type = at::kDouble;
  bool affine = true;
  at::MemoryFormat format = at::MemoryFormat::Contiguous;
};

// Two steps, of which the second has other values.
void expect_as_in_one_process(const Case& c) {
  std::int64_t total = 0;
  for (const std::int64_t samples : c.samples) total += samples;
  std::vector<std::int64_t> sizes{total};
  sizes.insert(sizes.end(), c.sizes.begin(), c.sizes.end());
  const auto options = Options(c.sizes.front()).affine(c.affine).momentum(0.3);
  const auto batch = [&](int step) {
    return (3 * values(sizes, 7. * step) + 2).to(c.type).contiguous(c.format);
  };
  // Factors of another frequency: gradients along the input itself would vanish.
  const auto factors = [&](int step) { return values(sizes, 50. + step).square().to(c.type); };

  run_rank_threads(static_cast<int>(c.samples.size()), [&](const Group& group) {
    SyncBatchNorm one = make_norm(options, c.type);
    SyncBatchNorm norm = make_norm(options, c.type, group);
    std::int64_t begin = 0;
    for (int rank = 0; rank < group->rank(); ++rank) begin += c.samples[rank];
    const auto mine = [&](const at::Tensor& whole) {
      return whole.narrow(0, begin, c.samples[group->rank()]);
    };
    for (int step = 0; step < 2; ++step) {
      const std::string what = "step " + std::to_string(step) + ", " + c10::str(sizes) + " ";
      at::Tensor whole = batch(step).requires_grad_();
      const at::Tensor expected = batch_norm(whole, one);
      (expected * factors(step)).sum().backward();

      at::Tensor input = mine(batch(step)).clone().requires_grad_();
      const at::Tensor output = norm(input);
      EXPECT_TRUE(output.is_contiguous(c.format) || output.numel() == 0) << what;
      EXPECT_EQ(output.scalar_type(), c.type);
      (output * mine(factors(step))).sum().backward();
      const double within = tolerance(c.type);
      expect_equal(output, mine(expected), within, what + "output");
      expect_equal(input.grad(), mine(whole.grad()), within, what + "gradient of the input",
                   largest_term(whole, factors(step), norm->weight));
      expect_equal(norm->running_mean, one->running_mean, within, what + "running_mean");
      expect_equal(norm->running_var, one->running_var, within, what + "running_var");
      EXPECT_EQ(norm->num_batches_tracked.item<int>(), step + 1);
      if (!c.affine) continue;
      const at::Tensor gradients = torch::stack({norm->weight.grad(), norm->bias.grad()});
      group->all_reduce(gradients).wait();
      expect_equal(gradients, torch::stack({one->weight.grad(), one->bias.grad()}), within,
                   what + "gradients of the parameters");
      reset_gradients(*norm);
      reset_gradients(*one);
    }
  });
}

TEST(SyncBatchNorm, IsABatchNormOfTheWholeBatch) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const std::vector<std::int64_t>& samples :
         std::vector<std::vector<std::int64_t>>{{6}, {3, 3}, {5, 2}, {4, 1, 3}}) {
      expect_as_in_one_process({samples, {4}, type});
      expect_as_in_one_process({samples, {3, 5}, type});
      expect_as_in_one_process({samples, {3, 4, 5}, type});
      expect_as_in_one_process({samples, {2, 3, 2, 4}, type});
    }
  }
  expect_as_in_one_process({{2, 3}, {3, 4}, at::kDouble, /*affine=*/false});
}

TEST(SyncBatchNorm, ARankMayHaveNoSamples) {
  expect_as_in_one_process({{0, 4}, {3, 2, 2}});
  expect_as_in_one_process({{3, 0, 2}, {4}, at::kFloat});
  expect_as_in_one_process({{2, 0}, {3}, at::kDouble, /*affine=*/false});
}

TEST(SyncBatchNorm, KeepsTheMemoryFormat) {
  expect_as_in_one_process(
      {{3, 2}, {3, 4, 5}, at::kFloat, /*affine=*/true, at::MemoryFormat::ChannelsLast});
  expect_as_in_one_process(
      {{2, 2}, {3, 2, 4, 5}, at::kDouble, /*affine=*/true, at::MemoryFormat::ChannelsLast3d});
}

TEST(SyncBatchNorm, InputsMayDifferInTheSizesAfterTheChannels) {
  run_rank_threads(2, [](const Group& group) {
    const at::Tensor whole = values({1, 3, 11}).to(at::kDouble);
    SyncBatchNorm one = make_norm(3, at::kDouble);
    SyncBatchNorm norm = make_norm(3, at::kDouble, group);
    const auto mine = [&](const at::Tensor& all) {
      return group->rank() ? all.narrow(2, 4, 7) : all.narrow(2, 0, 4);
    };
    expect_equal(norm(mine(whole)), mine(batch_norm(whole, one)), 1e-12, "output");
  });
}

TEST(SyncBatchNorm, VarianceIsExactFarFromZero) {
  run_rank_threads(2, [](const Group& group) {
    const at::Tensor whole = values({40, 2}) + 4000;
    SyncBatchNorm norm = make_norm(Options(2).momentum(1), at::kFloat, group);
    norm(part(whole, group->rank(), 2));
    expect_equal(norm->running_var, whole.to(at::kDouble).var(0), 1e-5, "variance");
  });
}

TEST(SyncBatchNorm, HalfTypesHaveStatisticsInFloat) {
  const at::Tensor whole = (values({6, 3, 8}) + 20).to(at::kBFloat16);
  const at::Tensor factors = values({6, 3, 8}, 9).to(at::kBFloat16);
  run_rank_threads(2, [&](const Group& group) {
    SyncBatchNorm one = make_norm(3, at::kFloat);
    at::Tensor exact = whole.to(at::kFloat).requires_grad_();
    const at::Tensor expected = batch_norm(exact, one);
    (expected * factors).sum().backward();
    // As under autocast, and after net->to(torch::kBFloat16).
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      SyncBatchNorm norm = make_norm(3, type, group);
      at::Tensor input = part(whole, group->rank(), 2).clone().requires_grad_();
      const at::Tensor output = norm(input);
      EXPECT_EQ(output.scalar_type(), at::kBFloat16);
      (output * part(factors, group->rank(), 2)).sum().backward();
      expect_equal(output.to(at::kFloat), part(expected, group->rank(), 2), 1e-2, "output");
      expect_equal(input.grad().to(at::kFloat), part(exact.grad(), group->rank(), 2), 1e-2,
                   "gradient");
      EXPECT_EQ(norm->weight.grad().scalar_type(), type);
      expect_equal(norm->running_mean.to(at::kFloat), one->running_mean, 1e-2, "running_mean");
    }
  });
}

TEST(SyncBatchNorm, MomentumAndTrackingAreThoseOfBatchNorm) {
  run_rank_threads(2, [](const Group& group) {
    const auto batch = [](int step) { return values({8, 3}, 11. * step).to(at::kDouble); };
    SyncBatchNorm cumulative(Options(3).momentum(c10::nullopt), group);
    cumulative->to(at::kDouble);
    at::Tensor means = torch::zeros({3}, at::kDouble);
    for (int step = 0; step < 3; ++step) {
      cumulative(part(batch(step), group->rank(), 2));
      means += batch(step).mean(0) / 3;
    }
    expect_equal(cumulative->running_mean, means, 1e-12, "cumulative average");

    SyncBatchNorm untracked(Options(3).track_running_stats(false), group);
    const at::Tensor mine = part(batch(0), group->rank(), 2).to(at::kFloat);
    const at::Tensor training = untracked(mine);
    untracked->eval();
    // In evaluation mode, too, the batch's own statistics count, but other ranks need not come.
    expect_equal(untracked(mine), torch::batch_norm(mine, {}, {}, {}, {}, true, 0, 1e-5, false),
                 1e-6, "untracked");
    EXPECT_FALSE(torch::allclose(untracked(mine), training));
  });
}

TEST(SyncBatchNorm, EvaluationNeedsNoOtherRank) {
  run_rank_threads(2, [](const Group& group) {
    SyncBatchNorm norm(3, group);
    torch::nn::BatchNorm1d plain(3);
    norm->eval();
    plain->eval();
    if (group->rank() == 0) {
      EXPECT_TRUE(norm(values({4, 3})).equal(plain(values({4, 3}))));
    }
    norm->train();
    const torch::NoGradGuard no_grad;  // training mode without gradients: ranks still take part
    const at::Tensor whole = values({4, 3});
    const at::Tensor output = norm(part(whole, group->rank(), 2));
    EXPECT_FALSE(output.requires_grad());
    expect_equal(norm->running_mean, whole.mean(0) * 0.1, 1e-6, "running_mean");
  });
}

TEST(SyncBatchNorm, GroupOfOneAndNoGroupAreABatchNorm) {
  run_rank_threads(1, [](const Group& group) {
    torch::nn::BatchNorm2d plain(3);
    for (SyncBatchNorm norm : {SyncBatchNorm(3, group), SyncBatchNorm(3)}) {
      EXPECT_TRUE(norm(values({2, 3, 4, 4})).equal(plain(values({2, 3, 4, 4}))));
    }
  });
}

TEST(SyncBatchNorm, BackwardRunsThroughWhatIsWanted) {
  run_rank_threads(2, [](const Group& group) {
    SyncBatchNorm norm = make_norm(3, at::kDouble, group);
    const at::Tensor data = values({4, 3}, group->rank()).to(at::kDouble);
    const auto sent = [&] { return group->bytes_sent(); };
    // The gradients of the parameters alone need no other rank.
    const at::Tensor first = norm(data).square().sum();
    const auto before = sent();
    first.backward();
    EXPECT_EQ(sent(), before);
    const at::Tensor weights = norm->weight.grad().clone();
    reset_gradients(*norm);
    // Frozen parameters pass gradients on.
    norm->weight.requires_grad_(false);
    norm->bias.requires_grad_(false);
    at::Tensor input = data.clone().requires_grad_();
    norm(input).square().sum().backward();
    EXPECT_TRUE(input.grad().defined());
    EXPECT_FALSE(norm->weight.grad().defined());
    norm->weight.requires_grad_(true);
    const at::Tensor twice = norm(input).square().sum();
    twice.backward({}, /*keep_graph=*/true);
    EXPECT_TRUE(norm->weight.grad().allclose(weights));
    twice.backward();
    EXPECT_TRUE(norm->weight.grad().allclose(2 * weights));
    EXPECT_THROW(twice.backward(), c10::Error);
    EXPECT_THAT(message_of<UsageError>([&] {
                  const at::Tensor loss = norm(input).square().sum();
                  torch::autograd::grad({loss}, {input}, {}, true, /*create_graph=*/true);
                }),
                AllOf(HasSubstr("create_graph=true is not supported"),
                      HasSubstr("rank " + std::to_string(group->rank()))));
  });
}

TEST(SyncBatchNorm, RefusesInputsThatItCannotNormalize) {
  SyncBatchNorm alone(3);
  EXPECT_THAT(message_of<UsageError>([&] {
                alone(torch::ones({1, 3, 1, 1}));
              }),
              AllOf(HasSubstr("[SyncBatchNorm] Expected more than 1 value per channel when "
                              "training, got 1: the input has the sizes [1, 3, 1, 1]"),
                    HasSubstr("use larger batches or images")));
  alone->eval();
  EXPECT_TRUE(alone(torch::ones({1, 3, 1, 1})).defined());
  run_rank_threads(2, [](const Group& group) {
    SyncBatchNorm norm(3, group);
    const std::string rank = "rank " + std::to_string(group->rank()) + " of 2";
    for (const at::Tensor& input : {torch::ones({3}), torch::ones({4, 2}), at::Tensor()}) {
      EXPECT_THAT(message_of<UsageError>([&] { norm(input); }),
                  AllOf(HasSubstr("[SyncBatchNorm] " + rank), HasSubstr("num_features is 3")));
    }
    // One value of each channel, and none.
    const at::Tensor one = torch::ones({group->rank(), 3});
    EXPECT_THAT(message_of<UsageError>([&] { norm(one); }),
                AllOf(HasSubstr("Expected more than 1 value per channel when training, got 1"),
                      HasSubstr(rank)));
    EXPECT_THAT(message_of<UsageError>([&] { norm(torch::ones({0, 3})); }), HasSubstr("got 0"));
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), 0) << "what was refused counts as no batch";
    EXPECT_TRUE(norm(values({1, 3})).defined()) << "two values are enough";
    EXPECT_EQ(norm->num_batches_tracked.item<int>(), 1);
  });
  run_rank_threads(2, [](const Group& group) {
    SyncBatchNorm norm(3 + group->rank(), group);
    EXPECT_THAT(message_of<UsageError>([&] {
                  norm(values({2, 3 + group->rank()}));
                }),
                AllOf(HasSubstr("[SyncBatchNorm] forward"), HasSubstr("all_gather")));
  });
}

TEST(SyncBatchNorm, ClonesAndPrints) {
  run_rank_threads(2, [](const Group& group) {
    torch::nn::Sequential net(torch::nn::Linear(6, 3), SyncBatchNorm(Options(3).eps(0.5), group));
    const auto copy = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(net->clone());
    EXPECT_EQ(copy->ptr<SyncBatchNormImpl>(1)->group(), group);
    const at::Tensor input = values({4, 6}, group->rank());
    EXPECT_TRUE(net->forward(input).equal(copy->forward(input)));
  });
  EXPECT_EQ(c10::str(SyncBatchNorm(Options(3).momentum(c10::nullopt).affine(false))),
            "lockstep::SyncBatchNorm(3, eps=1e-05, momentum=None, affine=false, "
            "track_running_stats=true)");
  EXPECT_EQ(c10::str(SyncBatchNorm(4)),
            "lockstep::SyncBatchNorm(4, eps=1e-05, momentum=0.1, affine=true, "
            "track_running_stats=true)");
}

}  // namespace
}  // namespace lockstep::testing
