// SPDX-License-Identifier: BSD-3-Clause
// Collectives with gradients: the same as one process gets that computes the whole batch, alone and
// beside DistributedDataParallel.
#include "lockstep/parallel/functional.h"

#include <array>
#include <functional>
#include <numeric>

#include "support/join.h"
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

using Group = std::shared_ptr<ProcessGroup>;

std::vector<int> every_rank(const Group& group) {
  std::vector<int> ranks(static_cast<std::size_t>(group->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// What rank `rank` passes in.
at::Tensor input_of(int rank) {
  return values({2, 3}, rank).to(at::kDouble).requires_grad_();
}

TEST(Functional, GathersAndReducesAnyType) {
  run_rank_threads(3, [](const Group& group) {
    const at::Tensor own = torch::full({2}, group->rank() + 1, at::kLong);
    const auto all = functional::all_gather(own, group);
    ASSERT_EQ(all.size(), 3u);
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_TRUE(all[rank].equal(torch::full({2}, rank + 1, at::kLong)));
    }
    EXPECT_TRUE(functional::all_reduce(own, *group).equal(torch::full({2}, 6, at::kLong)));
    EXPECT_TRUE(
        functional::all_reduce(own, group, ReduceOp::max).equal(torch::full({2}, 3, at::kLong)));
    EXPECT_EQ(own[0].item<int>(), group->rank() + 1) << "the input changed";
    const at::Tensor columns = values({3, 2}, group->rank()).t();
    EXPECT_TRUE(functional::all_gather(columns, group)[1].equal(values({3, 2}, 1).t()));
    const at::Tensor scalar = torch::tensor(0.5 + group->rank());
    EXPECT_EQ(functional::all_gather(scalar, group)[2].item<float>(), 2.5F);
    EXPECT_EQ(functional::all_reduce(scalar, group, ReduceOp::mean).item<float>(), 1.5F);
  });
}

TEST(Functional, RecordsAHistoryOnlyForAGradient) {
  run_rank_threads(2, [](const Group& group) {
    at::Tensor own = input_of(group->rank());
    EXPECT_TRUE(functional::all_gather(own, group)[0].requires_grad());
    EXPECT_TRUE(functional::all_reduce(own, group).requires_grad());
    EXPECT_FALSE(functional::all_gather(own.detach(), group)[0].requires_grad());
    EXPECT_FALSE(functional::all_reduce(own.detach(), group, ReduceOp::min).requires_grad());
    const torch::NoGradGuard no_grad;
    EXPECT_FALSE(functional::all_gather(own, group)[0].requires_grad());
    EXPECT_FALSE(functional::all_reduce(own, group, ReduceOp::min).requires_grad());
  });
}

TEST(Functional, RefusesAGradientThroughAnOperationWithoutOne) {
  run_rank_threads(2, [](const Group& group) {
    const at::Tensor own = input_of(group->rank());
    for (const auto& [op, text] : {std::pair(ReduceOp::min, "min"), std::pair(ReduceOp::max, "max"),
                                   std::pair(ReduceOp::product, "product")}) {
      const std::string message =
          message_of<UsageError>([&, op = op] { functional::all_reduce(own, group, op); });
      EXPECT_THAT(message, AllOf(HasSubstr(text), HasSubstr("detach()"),
                                 HasSubstr("rank " + std::to_string(group->rank()))));
    }
    EXPECT_THAT(message_of<UsageError>([&] { functional::all_gather({}, group); }),
                HasSubstr("undefined"));
    EXPECT_EQ(functional::all_reduce(torch::ones({1}), group).item<int>(), 2);  // it is usable
  });
}

// A loss that weighs every element of every rank's tensor differently on each rank.
at::Tensor loss_of(const std::vector<at::Tensor>& all, int rank) {
  at::Tensor sum = torch::zeros({}, at::kDouble);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto weights = values({2, 3}, 10. * rank + double(i)).to(at::kDouble);
    sum = sum + (torch::sin(all[i]) * weights).sum();
  }
  return sum.square();
}

// The gradient of the sum of all ranks' losses, for each rank's input.
std::vector<at::Tensor> gradients_of_one_process(
    int ranks, const std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>& make) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < ranks; ++rank) inputs.push_back(input_of(rank));
  at::Tensor sum = torch::zeros({}, at::kDouble);
  for (int rank = 0; rank < ranks; ++rank) sum = sum + loss_of(make(inputs), rank);
  return torch::autograd::grad({sum}, inputs);
}

void expect_gradient(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_TRUE(torch::allclose(actual, expected, 1e-10, 1e-12)) << actual << expected;
}

TEST(Functional, GradientsAreThoseOfTheSumOfAllLosses) {
  for (const int ranks : {1, 2, 3}) {
    const auto of_gather =
        gradients_of_one_process(ranks, [](const auto& inputs) { return inputs; });
    const auto of_sum = gradients_of_one_process(ranks, [](const auto& inputs) {
      return std::vector<at::Tensor>{torch::stack(inputs).sum(0)};
    });
    const auto of_mean = gradients_of_one_process(ranks, [](const auto& inputs) {
      return std::vector<at::Tensor>{torch::stack(inputs).mean(0)};
    });
    run_rank_threads(ranks, [&](const Group& group) {
      const int rank = group->rank();
      const auto expect = [&](const auto& make, const std::vector<at::Tensor>& expected) {
        at::Tensor own = input_of(rank);
        loss_of(make(own), rank).backward();
        expect_gradient(own.grad(), expected[rank]);
      };
      expect([&](const at::Tensor& own) { return functional::all_gather(own, group); }, of_gather);
      expect([&](const at::Tensor& own) { return std::vector{functional::all_reduce(own, group)}; },
             of_sum);
      expect(
          [&](const at::Tensor& own) {
            return std::vector{functional::all_reduce(own, group, ReduceOp::mean)};
          },
          of_mean);
    });
  }
}

TEST(Functional, ALossMayUseSomeOutputsOnly) {
  run_rank_threads(3, [](const Group& group) {
    at::Tensor own = input_of(group->rank());
    // Ranks 0 and 1 use rank 0's tensor, rank 2 its own.
    const int used = group->rank() == 2 ? 2 : 0;
    functional::all_gather(own, group)[used].sum().backward();
    const std::array expected{2., 0., 1.};
    EXPECT_TRUE(own.grad().eq(expected[group->rank()]).all().item<bool>()) << own.grad();
  });
}

TEST(Functional, HasSecondDerivatives) {
  // The loss is the sum over ranks of x^3: each element's gradient 3 x^2, and that one's sum 6 x.
  run_rank_threads(2, [](const Group& group) {
    const at::Tensor own = input_of(group->rank());
    const auto differentiate_twice = [&](const at::Tensor& loss) {
      const at::Tensor first =
          torch::autograd::grad({loss}, {own}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
      return torch::autograd::grad({first.sum()}, {own})[0];
    };
    // Both ranks' losses have it.
    at::Tensor loss = torch::cat(functional::all_gather(own, group)).pow(3).sum();
    expect_gradient(differentiate_twice(loss), 2 * 6 * own);
    loss = functional::all_reduce(own.pow(3), group, ReduceOp::mean).sum();
    expect_gradient(differentiate_twice(loss), 6 * own);
  });
}

TEST(Functional, AnInputThatRequiresGradOnOneRankOnlyIsAnError) {
  run_rank_threads(2, [](const Group& group) {
    const bool first = group->rank() == 0;
    const at::Tensor own = first ? input_of(0) : input_of(1).detach();
    const at::Tensor loss = torch::cat(functional::all_gather(own, group)).sum();
    EXPECT_THAT(message_of<UsageError>([&] { first ? loss.backward() : group->barrier().wait(); }),
                AllOf(HasSubstr("reduce_scatter"), HasSubstr("barrier")));
  });
}

// InfoNCE: each row of `left` is to be most like the row of `right` with the same number.
at::Tensor contrastive_loss(const at::Tensor& left, const at::Tensor& right, std::int64_t first) {
  const at::Tensor scores = left.mm(right.t()) / 0.5;
  return torch::cross_entropy_loss(scores, torch::arange(first, first + left.size(0)));
}

void train_contrastively(const Group& group, const DistributedDataParallelOptions& options) {
  const int ranks = group->size();
  const at::Tensor views = values({12, 6});
  const at::Tensor others = values({12, 6}, 0.3);
  Mlp net;
  set_weights(*net, 0.5);
  DistributedDataParallel model(net, group, options);
  Mlp reference;
  set_weights(*reference, 0.5);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
  for (int step = 0; step < 4; ++step) {
    reset_gradients(*net);
    reset_gradients(*reference);
    const at::Tensor own = model(part(views, group->rank(), ranks));
    const at::Tensor other = model(part(others, group->rank(), ranks));
    const at::Tensor all = torch::cat(functional::all_gather(other, group));
    const at::Tensor loss = contrastive_loss(own, all, group->rank() * own.size(0));
    loss.backward();
    const at::Tensor whole = contrastive_loss(reference(views), reference(others), 0);
    whole.backward();
    expect_close(functional::all_reduce(loss.detach(), group, ReduceOp::mean), whole.detach(),
                 "loss");
    expect_same_gradients(*net, *reference);
    optimizer.step();
    reference_optimizer.step();
  }
}

TEST(Functional, ContrastiveTrainingWithThreads) {
  for (const int ranks : {1, 2, 3}) {
    for (const auto& options : {kOneBucket, kManyBuckets}) {
      run_rank_threads(ranks, [&](const Group& group) { train_contrastively(group, options); });
    }
  }
}

TEST(Functional, ContrastiveTrainingWithProcesses) {
  for (const int ranks : {1, 2, 3}) {
    run_ranks(ranks, [](Rank& rank) {
      train_contrastively(join(rank, {.backend = rank.size() == 1 ? "auto" : "shm"}), kManyBuckets);
    });
  }
}

// Gathers between its layers. A rank may leave the last one out.
struct GathersWithinImpl : torch::nn::Module {
  explicit GathersWithinImpl(Group over) : group(std::move(over)) {
    first = register_module("first", torch::nn::Linear(6, 4));
    last = register_module("last", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x, bool whole) {
    const at::Tensor all = torch::cat(functional::all_gather(torch::tanh(first(x)), group));
    return whole ? last(all) : all;
  }
  Group group;
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(GathersWithin);

// Some steps in which all ranks use all parameters, then one in which only rank 0 does.
void train_with_gathers_within(const Group& group, const Group& for_gathers, bool differ) {
  GathersWithin net(for_gathers);
  set_weights(*net, 0.5);
  DistributedDataParallel model(net, group, kManyBuckets);
  const at::Tensor batch = values({6, 6});
  for (int step = 0; step < 4; ++step) {
    reset_gradients(*net);
    const bool whole = !differ || step < 3 || group->rank() == 0;
    model(part(batch, group->rank(), group->size()), whole).square().sum().backward();
  }
  if (differ) return;
  // Each rank has the loss of the whole batch, so the mean over the ranks has its gradients.
  const auto alone = make_self_group();
  GathersWithin reference(alone);
  set_weights(*reference, 0.5);
  reference(batch, true).square().sum().backward();
  expect_same_gradients(*net, *reference);
}

TEST(Functional, CallsWithinAModelComeBetweenItsBuckets) {
  run_rank_threads(3, [](const Group& group) { train_with_gathers_within(group, group, false); });
}

struct FeaturesAndScoresImpl : torch::nn::Module {
  FeaturesAndScoresImpl() {
    first = register_module("first", torch::nn::Linear(6, 4));
    last = register_module("last", torch::nn::Linear(4, 4));
  }
  std::pair<at::Tensor, at::Tensor> forward(const at::Tensor& x) {
    const at::Tensor features = torch::tanh(first(x));
    return {features, last(features)};
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(FeaturesAndScores);

TEST(Functional, CallsAfterTheLastForwardComeBeforeTheBucketsWhateverARankUses) {
  run_rank_threads(2, [](const Group& group) {
    FeaturesAndScores net;
    set_weights(*net, 0.5);
    DistributedDataParallel model(net, group, kManyBuckets);
    const at::Tensor batch = values({6, 6});
    for (int step = 0; step < 6; ++step) {
      reset_gradients(*net);
      const auto [features, scores] = model(part(batch, group->rank(), 2));
      at::Tensor loss = torch::cat(functional::all_gather(features, group)).square().sum();
      // The last layer's gradients, and so its buckets, are ready before the gradients of the
      // features.
      if (step < 3 || step % 2 == group->rank()) loss = loss + scores.square().sum();
      loss.backward();
    }
    FeaturesAndScores reference;
    set_weights(*reference, 0.5);
    const at::Tensor features = reference(batch).first;
    // In the last step rank 1 used its scores. Each rank's loss has all features.
    (features.square().sum() + reference(part(batch, 1, 2)).second.square().sum() / 2).backward();
    expect_same_gradients(*net, *reference);
  });
}

TEST(Functional, CallsThatMeetABucketAreAnErrorAndAGroupOfTheirOwnIsNot) {
  run_rank_threads(2, [](const Group& group) {
    const Group own = group->split(every_rank(group));
    train_with_gathers_within(group, own, true);
    EXPECT_THAT(message_of<UsageError>([&] { train_with_gathers_within(group, group, true); }),
                AllOf(HasSubstr("all_reduce"), HasSubstr("reduce_scatter")));
  });
}

TEST(Functional, AveragesGradients) {
  for (const int ranks : {1, 2, 3}) {
    run_rank_threads(ranks, [&](const Group& group) {
      Mlp net;
      set_weights(*net, 1);
      DistributedDataParallel model(net, group);
      std::vector<at::Tensor> inputs = net->parameters();
      const auto loss_of = [&](const at::Tensor& output) { return output.square().mean(); };
      at::Tensor mean = torch::zeros({});
      for (int rank = 0; rank < ranks; ++rank) {
        mean = mean + loss_of(net(values({4, 6}, rank))) / ranks;
      }
      const auto expected = torch::autograd::grad({mean}, inputs, {}, true, true);
      const at::Tensor own = loss_of(model(values({4, 6}, group->rank())));
      const auto gradients = functional::grad({own}, inputs, group, {.retain_graph = true});
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        expect_close(gradients[i], expected[i].detach(), "gradient");
        EXPECT_FALSE(gradients[i].requires_grad());
        EXPECT_FALSE(inputs[i].grad().defined());
      }
      // The gradient of the mean gradient's norm. Every rank has this loss, and backward through
      // the means gives the gradient of the sum of the losses, which the model averages.
      const auto differentiable = functional::grad({own}, inputs, group, {.create_graph = true});
      const auto norm = [](const std::vector<at::Tensor>& all) {
        at::Tensor sum = torch::zeros({});
        for (const at::Tensor& gradient : all) sum = sum + gradient.square().sum();
        return sum;
      };
      norm(differentiable).backward();
      const auto second = torch::autograd::grad({norm(expected)}, inputs, {}, {}, {}, true);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        if (second[i].defined()) expect_close(inputs[i].grad(), second[i], "second gradient");
      }
    });
  }
}

TEST(Functional, GradientsOfUnusedInputsAreZeros) {
  run_rank_threads(2, [](const Group& group) {
    const at::Tensor used = torch::ones({3}, torch::requires_grad());
    const at::Tensor other = torch::ones({2}, torch::requires_grad());
    const at::Tensor loss = group->rank() == 0 ? used.sum() + other.sum() : used.sum() * 3;
    const auto gradients = functional::grad({loss}, {used, other}, group, {.allow_unused = true});
    expect_close(gradients[0], torch::full({3}, 2.), "used");
    expect_close(gradients[1], torch::full({2}, 0.5), "used on one rank");
  });
}

}  // namespace
}  // namespace lockstep::testing
