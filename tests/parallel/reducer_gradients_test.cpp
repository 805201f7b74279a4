// SPDX-License-Identifier: BSD-3-Clause
// Gradients of all kinds of models equal the gradients of one process with the whole batch.
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gtest/gtest.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep::testing {
namespace {

// Trains the wrapped model on parts of the batch and its copy on the whole, side by side.
template <class Net>
void compare(int ranks, const at::Tensor& batch, const DistributedDataParallelOptions& options,
             void (*clear)(torch::nn::Module&)) {
  run_rank_threads(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
    Net net;
    DistributedDataParallel model(net, group, options);
    Net reference;
    copy_state(*reference, *net);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    torch::optim::SGD reference_optimizer(reference->parameters(), 0.1);
    for (int step = 0; step < 4; ++step) {
      clear(*net);
      clear(*reference);
      model(part(batch, group->rank(), ranks)).square().mean().backward();
      reference->forward(batch).square().mean().backward();
      expect_same_gradients(*net, *reference);
      optimizer.step();
      reference_optimizer.step();
    }
  });
}

TEST(ReducerGradients, MlpResetToNone) {
  compare<Mlp>(2, values({12, 6}), kOneBucket, reset_gradients);
  compare<Mlp>(3, values({12, 6}), kManyBuckets, reset_gradients);
}

TEST(ReducerGradients, MlpZeroedInPlace) {
  compare<Mlp>(2, values({12, 6}), kManyBuckets, zero_gradients);
  compare<Mlp>(4, values({12, 6}), kOneBucket, zero_gradients);
}

TEST(ReducerGradients, LargeOnes) {
  for (auto* clear : {reset_gradients, zero_gradients}) {
    compare<Wide>(2, values({4, 6}), kOneBucket, clear);
    compare<Wide>(3, values({6, 6}), kManyBuckets, clear);
  }
}

// Some ranks leave the large layer out, and some steps accumulate before they reduce.
TEST(ReducerGradients, LargeOnesThatNotAllRanksHave) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Wide net;
    DistributedDataParallel model(net, group);
    Wide reference;
    copy_state(*reference, *net);
    const at::Tensor x = values({4, 6});
    for (int step = 0; step < 4; ++step) {
      reset_gradients(*net);
      reset_gradients(*reference);
      if (step % 2 == 1) {
        const NoSync guard = model->no_sync();
        model(x * 2).sum().backward();
        reference->forward(x * 2).sum().backward();
      }
      const double used = group->rank() == step % 2 ? 1 : 0;
      (model(x) * used).sum().backward();
      (reference->forward(x).sum() / 2).backward();
      expect_same_gradients(*net, *reference);
    }
  });
}

TEST(ReducerGradients, Conv) {
  compare<ConvNet>(2, values({4, 2, 8, 8}), kOneBucket, reset_gradients);
  compare<ConvNet>(2, values({4, 2, 8, 8}), kManyBuckets, zero_gradients);
}

TEST(ReducerGradients, TiedWeights) {
  compare<Tied>(2, values({4, 6}), kManyBuckets, reset_gradients);
  compare<Tied>(2, values({4, 6}), kOneBucket, zero_gradients);
}

TEST(ReducerGradients, NotClearedAccumulateAsInOneProcess) {
  compare<Mlp>(2, values({12, 6}), kManyBuckets, [](torch::nn::Module&) {});
}

TEST(ReducerGradients, FrozenParametersAreLeftAlone) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    net->middle->weight.set_requires_grad(false);
    DistributedDataParallel model(net, group);
    model(values({4, 6}, group->rank())).sum().backward();
    EXPECT_FALSE(net->middle->weight.grad().defined());
    EXPECT_TRUE(net->hidden->weight.grad().defined());
  });
}

TEST(ReducerGradients, HaveTheParametersStridesAndStayViewsOfTheBucket) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    ConvNet net;
    for (at::Tensor& parameter : net->parameters()) {
      if (parameter.dim() == 4) {
        parameter.set_data(parameter.detach().contiguous(at::MemoryFormat::ChannelsLast));
      }
    }
    DistributedDataParallel model(net, group);
    model(values({4, 2, 8, 8})).sum().backward();
    std::map<std::string, const void*> where;
    for (const auto& item : net->named_parameters()) {
      EXPECT_EQ(item.value().grad().strides(), item.value().strides()) << item.key();
      where[item.key()] = item.value().grad().data_ptr();
    }
    for (auto* clear : {reset_gradients, zero_gradients}) {
      clear(*net);
      model(values({4, 2, 8, 8})).sum().backward();
      for (const auto& item : net->named_parameters()) {
        EXPECT_EQ(item.value().grad().data_ptr(), where[item.key()]) << item.key();
      }
    }
  });
}

// Whole or as a view, as for PCGrad, GradNorm or a history of gradients.
TEST(ReducerGradients, KeptOnesStayAsTheyAre) {
  for (const auto& options : {kOneBucket, kManyBuckets}) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      Wide net;
      DistributedDataParallel model(net, group, options);
      std::vector<at::Tensor> kept, copies;
      for (int step = 0; step < 4; ++step) {
        reset_gradients(*net);
        model(values({2, 6}, 10 * step + group->rank())).square().mean().backward();
        for (const at::Tensor& parameter : net->parameters()) {
          const at::Tensor& gradient = parameter.grad();
          kept.push_back(step == 0 ? gradient : step == 1 ? gradient.detach() : gradient.view(-1));
          copies.push_back(kept.back().clone());
        }
        for (std::size_t i = 0; i < kept.size(); ++i) {
          EXPECT_TRUE(torch::equal(kept[i], copies[i])) << i << " in step " << step;
        }
      }
      Wide reference;
      copy_state(*reference, *net);
      for (int rank = 0; rank < 2; ++rank) {
        (reference->forward(values({2, 6}, 30 + rank)).square().mean() / 2).backward();
      }
      expect_same_gradients(*net, *reference);
    });
  }
}

TEST(ReducerGradients, OfSeveralTypes) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const double share = group->rank() + 1;
    at::Tensor single = torch::ones({3}, torch::requires_grad());
    at::Tensor wide = torch::ones({2, 2}, torch::requires_grad().dtype(at::kDouble));
    at::Tensor complex = torch::ones({2}, torch::requires_grad().dtype(at::kComplexFloat));
    at::Tensor scalar = torch::ones({}, torch::requires_grad());
    at::Tensor none = torch::ones({0}, torch::requires_grad());
    Reducer reducer(std::vector{single, wide, complex, scalar, none}, group);
    for (int step = 0; step < 3; ++step) {
      for (at::Tensor* tensor : {&single, &wide, &complex, &scalar, &none}) {
        tensor->mutable_grad().reset();
      }
      const at::Tensor sum = single.sum() + wide.sum() + at::real(complex).sum() +
                             2 * at::imag(complex).sum() + scalar + none.sum();
      reducer.prepare(sum * share).backward();
      expect_close(single.grad(), torch::full({3}, 1.5), "single");
      expect_close(wide.grad(), torch::full({2, 2}, 1.5, at::kDouble), "wide");
      expect_close(at::view_as_real(complex.grad()), torch::tensor({{1.5f, 3.f}, {1.5f, 3.f}}),
                   "complex");
      expect_close(scalar.grad(), torch::tensor(1.5f), "scalar");
      EXPECT_EQ(none.grad().numel(), 0);
    }
  });
}

template <class Optimizer, class Options>
void train_with(const Options& options, bool before) {
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    set_weights(*net, group->rank());
    std::unique_ptr<Optimizer> optimizer;
    if (before) optimizer = std::make_unique<Optimizer>(net->parameters(), options);
    DistributedDataParallel model(net, group, kManyBuckets);
    if (!before) optimizer = std::make_unique<Optimizer>(model->parameters(), options);
    Mlp reference;
    copy_state(*reference, *net);
    Optimizer reference_optimizer(reference->parameters(), options);
    const at::Tensor batch = values({8, 6});
    for (int step = 0; step < 5; ++step) {
      optimizer->zero_grad();  // each libtorch's own default
      model(part(batch, group->rank(), 2)).square().mean().backward();
      optimizer->step();
      reference_optimizer.zero_grad();
      reference->forward(batch).square().mean().backward();
      reference_optimizer.step();
    }
    const auto wanted = reference->named_parameters();
    for (const auto& item : net->named_parameters()) {
      expect_close(item.value(), wanted[item.key()], item.key());
    }
  });
}

TEST(ReducerGradients, AnyOptimizerMadeBeforeOrAfterWrapping) {
  for (const bool before : {true, false}) {
    train_with<torch::optim::SGD>(torch::optim::SGDOptions(0.1).momentum(0.9), before);
    train_with<torch::optim::Adam>(torch::optim::AdamOptions(0.01), before);
    train_with<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.05), before);
    train_with<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01), before);
  }
}

TEST(ReducerGradients, LbfgsWithItsClosure) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    torch::optim::LBFGS optimizer(net->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(3));
    const at::Tensor mine = part(values({8, 6}), group->rank(), 2);
    // Its line search looks at the loss, which therefore has to be the same on every rank.
    const auto closure = [&] {
      optimizer.zero_grad();
      at::Tensor loss = model(mine).square().mean();
      loss.backward();
      at::Tensor mean = loss.detach().clone();
      group->all_reduce(mean, ReduceOp::mean).wait();
      return mean;
    };
    const double before = optimizer.step(closure).item<double>();
    optimizer.step(closure);
    const double after = closure().item<double>();
    EXPECT_LT(after, before);
    // The same bits on both ranks.
    for (const at::Tensor& parameter : net->parameters()) {
      std::vector<at::Tensor> all{torch::empty_like(parameter), torch::empty_like(parameter)};
      group->all_gather(all, parameter.detach()).wait();
      EXPECT_TRUE(torch::equal(all[0], all[1]));
    }
  });
}

TEST(ReducerGradients, OfInputsPassThrough) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    const at::Tensor x = values({4, 6}, group->rank()).requires_grad_();
    model(x).square().sum().backward();
    const at::Tensor alone = x.detach().clone().requires_grad_();
    net->forward(alone).square().sum().backward();
    expect_close(x.grad(), alone.grad(), "input");  // each rank's own, not averaged
  });
}

}  // namespace
}  // namespace lockstep::testing
