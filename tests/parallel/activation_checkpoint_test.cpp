// SPDX-License-Identifier: BSD-3-Clause
// Forwards that are computed twice: the same bits as without, less memory, and errors where the
// second time differs.
#include "lockstep/parallel/activation_checkpoint.h"

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>

#include "lockstep/amp/autocast.h"
#include "lockstep/core/error.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/dropout.h"
#include "lockstep/parallel/microbatch.h"
#include "lockstep/parallel/sync_batch_norm.h"
#include "tools/bench/live_bytes.h"

namespace lockstep::testing {
namespace {

using at::Tensor;
using ::testing::HasSubstr;

enum class Keep { all, inputs_of_blocks, inputs_of_pairs };

struct DropoutBlockImpl : torch::nn::Cloneable<DropoutBlockImpl> {
  explicit DropoutBlockImpl(double rate_ = 0.3) : rate(rate_) { reset(); }
  void reset() override {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})));
    wide = register_module("wide", torch::nn::Linear(8, 64));
    narrow = register_module("narrow", torch::nn::Linear(64, 8));
    dropout = register_module("dropout", torch::nn::Dropout(rate));
  }
  Tensor forward(const Tensor& x) {
    ++calls;
    return x + narrow(dropout(torch::gelu(wide(norm(x)))));
  }
  double rate;
  int calls = 0;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear wide{nullptr}, narrow{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(DropoutBlock);

struct DeepBlocksImpl : torch::nn::Cloneable<DeepBlocksImpl> {
  explicit DeepBlocksImpl(Keep keep_, int depth_ = 4, double rate_ = 0.3)
      : keep(keep_), depth(depth_), rate(rate_) {
    reset();
  }
  void reset() override {
    blocks.clear();
    for (int i = 0; i < depth; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), DropoutBlock(rate)));
    }
  }
  Tensor forward(Tensor x) {
    if (keep == Keep::inputs_of_pairs) {
      for (std::size_t i = 0; i + 1 < blocks.size(); i += 2) {
        x = checkpoint(
            [first = blocks[i], second = blocks[i + 1]](const Tensor& input) {
              return checkpoint(second, checkpoint(first, input));
            },
            x);
      }
      return x;
    }
    for (DropoutBlock& block : blocks) {
      x = keep == Keep::all ? block(x) : checkpoint(block, x);
    }
    return x;
  }
  Keep keep;
  int depth;
  double rate;
  std::vector<DropoutBlock> blocks;
};
TORCH_MODULE(DeepBlocks);

std::vector<Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<Tensor> gradients;
  for (const Tensor& parameter : module.parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

void expect_same_bits(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].defined(), expected[i].defined()) << i;
    if (expected[i].defined()) {
      EXPECT_TRUE(torch::equal(actual[i], expected[i])) << i;
    }
  }
}

// All that two steps leave behind: outputs, gradients, buffers, and the next random number.
template <class Net>
std::vector<Tensor> trained(Net net, const Tensor& batch, bool autocast = false) {
  set_weights(*net, 0.5);
  torch::manual_seed(3);
  std::vector<Tensor> results;
  for (int step = 0; step < 2; ++step) {
    const Tensor input = batch.clone().requires_grad_();
    Tensor output;
    {
      const Autocast guard(at::kCPU, at::kBFloat16, autocast);
      output = net->forward(input);
    }
    output.to(at::kFloat).square().mean().backward();
    results.insert(results.end(), {output, input.grad(), torch::rand(1)});
  }
  for (const Tensor& gradient : gradients_of(*net)) results.push_back(gradient);
  for (const Tensor& buffer : net->buffers()) results.push_back(buffer);
  return results;
}

TEST(Checkpoint, HasTheSameBits) {
  for (const bool autocast : {false, true}) {
    const auto expected = trained(DeepBlocks(Keep::all), values({5, 8}), autocast);
    expect_same_bits(trained(DeepBlocks(Keep::inputs_of_blocks), values({5, 8}), autocast),
                     expected);
    expect_same_bits(trained(DeepBlocks(Keep::inputs_of_pairs), values({5, 8}), autocast),
                     expected);
  }
}

// The tensors of a forward and a backward, in bytes.
struct TensorBytes {
  std::int64_t after_forward;
  std::int64_t peak;
};

TensorBytes bytes_of(Keep keep) {
  DeepBlocks net(keep, /*depth=*/16, /*rate=*/0);
  for (const Tensor& parameter : net->parameters()) {
    parameter.mutable_grad() = torch::zeros_like(parameter);
  }
  const Tensor batch = values({512, 8});
  const auto bytes = std::make_shared<bench::LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, bytes);
  const Tensor loss = net->forward(batch).square().mean();
  const std::int64_t after_forward = bytes->live();
  loss.backward();
  return {after_forward, bytes->peak()};
}

TEST(Checkpoint, KeepsTheInputsOnly) {
  const TensorBytes all = bytes_of(Keep::all);
  const TensorBytes blocks = bytes_of(Keep::inputs_of_blocks);
  const TensorBytes pairs = bytes_of(Keep::inputs_of_pairs);
  constexpr std::int64_t kInput = 512 * 8 * sizeof(float);
  EXPECT_GT(all.after_forward, 16 * 16 * kInput);
  EXPECT_LT(blocks.after_forward, 18 * kInput);
  EXPECT_LT(pairs.after_forward, 10 * kInput);
  EXPECT_LT(blocks.peak, all.peak / 4);
  EXPECT_LT(pairs.peak, blocks.peak);
}

TEST(Checkpoint, CallsTheFunctionOnceMore) {
  DeepBlocks net(Keep::inputs_of_blocks, 1);
  const Tensor output = net->forward(values({5, 8}));
  EXPECT_EQ(net->blocks[0]->calls, 1);
  const Tensor loss = output.sum();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_EQ(net->blocks[0]->calls, 2);
  loss.backward();
  EXPECT_EQ(net->blocks[0]->calls, 3);
  const torch::NoGradGuard no_grad;
  net->forward(values({5, 8}));
  EXPECT_EQ(net->blocks[0]->calls, 4);
}

TEST(Checkpoint, PassesWhateverTheFunctionTakesAndReturns) {
  const auto function = [](const Tensor& x, std::pair<Tensor, int> scaled,
                           const std::optional<Tensor>& none, const char* name) {
    EXPECT_FALSE(none.has_value());
    EXPECT_STREQ(name, "exp");
    const Tensor y = (x * scaled.first * scaled.second).exp();
    return std::make_tuple(y, std::vector<Tensor>{y.sin(), x.cos()});
  };
  const auto gradients = [&](bool twice) {
    const Tensor x = values({4, 3}).requires_grad_();
    const Tensor constant = values({4, 3}, 1);
    const auto [y, others] =
        twice ? checkpoint(function, x, std::pair(constant, 3), std::optional<Tensor>(), "exp")
              : function(x, {constant, 3}, {}, "exp");
    // One output remains unused.
    (y.square().sum() + others[1].sum()).backward();
    return std::vector{x.grad(), y, others[0]};
  };
  expect_same_bits(gradients(true), gradients(false));
}

TEST(Checkpoint, NeedsNoInputThatRequiresGrad) {
  torch::nn::Embedding embedding(10, 3);
  const Tensor tokens = torch::arange(5);
  const auto forward = [&](const Tensor& words) { return embedding(words).tanh().square(); };
  forward(tokens).sum().backward();
  const Tensor expected = embedding->weight.grad().clone();
  embedding->weight.mutable_grad().reset();
  checkpoint(forward, tokens).sum().backward();
  EXPECT_TRUE(torch::equal(embedding->weight.grad(), expected));
}

TEST(Checkpoint, ServesEveryKindOfBackward) {
  const auto function = [](const Tensor& x) { return (x.sin() * x.exp()).tanh(); };
  const Tensor x = values({6}).requires_grad_();
  const auto derivatives = [&](const Tensor& y) {
    const Tensor first = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
    const Tensor second = torch::autograd::grad({first.sum()}, {x}, {}, true)[0];
    return std::vector{first.detach(), second, torch::autograd::grad({y.sum()}, {x})[0]};
  };
  expect_same_bits(derivatives(checkpoint(function, x)), derivatives(function(x)));
}

// Its forward needs a gradient.
Tensor with_slope(const Tensor& x) {
  const Tensor y = x.sin() * x;
  const Tensor slope = torch::autograd::grad({y.sum()}, {x}, {}, true, /*create_graph=*/true)[0];
  return (y * slope).exp();
}

TEST(Checkpoint, ServesABackwardWithinTheFunction) {
  const auto gradient = [](bool twice) {
    const Tensor x = values({6}).requires_grad_();
    (twice ? checkpoint(with_slope, x) : with_slope(x)).sum().backward();
    return std::vector{x.grad()};
  };
  expect_same_bits(gradient(true), gradient(false));
}

struct Cube : torch::autograd::Function<Cube> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    context->save_for_backward({x});
    return x * x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const Tensor x = context->get_saved_variables()[0];
    return {gradients[0] * 3 * x * x};
  }
};

TEST(Checkpoint, ServesFunctionsOfTheProgram) {
  const Tensor x = values({6}).requires_grad_();
  checkpoint([](const Tensor& input) { return Cube::apply(input.sin()).exp(); }, x)
      .sum()
      .backward();
  const Tensor gradient = x.grad().clone();
  x.mutable_grad().reset();
  Cube::apply(x.sin()).exp().sum().backward();
  EXPECT_TRUE(torch::equal(gradient, x.grad()));
}

// Layers that update buffers.
struct RepeatedNormsImpl : torch::nn::Module {
  explicit RepeatedNormsImpl(bool twice_, std::shared_ptr<ProcessGroup> group = nullptr)
      : twice(twice_) {
    for (int i = 0; i < 2; ++i) {
      torch::nn::Sequential block{torch::nn::Linear(6, 6), SyncBatchNorm(6), torch::nn::Tanh(),
                                  torch::nn::BatchNorm1d(6)};
      blocks.push_back(register_module("block" + std::to_string(i), block));
      if (group) convert_sync_batchnorm(blocks.back(), group);
    }
  }
  Tensor forward(Tensor x) {
    for (auto& block : blocks) x = twice ? checkpoint(block, x) : block->forward(x);
    return x;
  }
  bool twice;
  std::vector<torch::nn::Sequential> blocks;
};
TORCH_MODULE(RepeatedNorms);

// A Dropout of ours is keyed by the microbatch and by the number of the draw.
TEST(Checkpoint, DrawsTheNumbersOfItsMicrobatchAgain) {
  torch::nn::Sequential net(torch::nn::Linear(8, 64), lockstep::Dropout(0.5),
                            torch::nn::Linear(64, 4));
  const auto gradient = [&](const auto& forward) {
    net->zero_grad();
    const MicrobatchScope scope({.seed = 1, .step = 2, .index = 3});
    forward(torch::ones({16, 8})).sum().backward();
    return net->parameters().front().grad().clone();
  };
  const auto compute = [&](const Tensor& input) { return net->forward(input); };
  const Tensor expected = gradient(compute);
  EXPECT_TRUE(
      gradient([&](const Tensor& input) { return checkpoint(compute, input); }).equal(expected));
}

TEST(Checkpoint, UpdatesBuffersOnce) {
  expect_same_bits(trained(RepeatedNorms(true), values({7, 6})),
                   trained(RepeatedNorms(false), values({7, 6})));
}

TEST(Checkpoint, RunsASequentialInSegments) {
  const auto gradients = [](int segments) {
    std::vector<int> calls(5);
    torch::nn::Sequential net;
    for (std::size_t i = 0; i < calls.size(); ++i) {
      net->push_back(DropoutBlock());
    }
    set_weights(*net, 0.5);
    torch::manual_seed(3);
    const Tensor x = values({3, 8});
    const Tensor output = segments == 0 ? net->forward(x) : checkpoint_sequential(net, segments, x);
    output.square().sum().backward();
    for (std::size_t i = 0; i < calls.size(); ++i) {
      calls[i] = net->ptr<DropoutBlockImpl>(i)->calls;
    }
    return std::pair(gradients_of(*net), calls);
  };
  const auto expected = gradients(0).first;
  for (const int segments : {1, 2, 5}) {
    const auto [found, counted] = gradients(segments);
    expect_same_bits(found, expected);
    EXPECT_EQ(counted, segments == 1   ? (std::vector{1, 1, 1, 1, 1})
                       : segments == 2 ? (std::vector{2, 2, 1, 1, 1})
                                       : (std::vector{2, 2, 2, 2, 1}));
  }
  EXPECT_THAT(message_of<UsageError>([&] { gradients(6); }), HasSubstr("6 segments of 5 modules"));
}

std::string error_in_backward(const Tensor& output) {
  return message_of<UsageError>([&] { output.sum().backward(); });
}

TEST(Checkpoint, RefusesAnInputThatHasChanged) {
  const Tensor x = values({4, 6});
  torch::nn::Linear layer(6, 3);
  const Tensor output = checkpoint(layer, x);
  x.add_(1);
  EXPECT_THAT(error_in_backward(output), HasSubstr("input 0 was changed in place"));
  const auto changing = [&](Tensor input) { return layer(input.mul_(2)); };
  EXPECT_THAT(message_of<UsageError>([&] { checkpoint(changing, x); }),
              HasSubstr("the function changed its input 0 in place"));
  // Nothing of the refused call is left on this thread.
  layer(x).sum().backward();
  EXPECT_TRUE(layer->weight.grad().defined());
}

TEST(Checkpoint, RefusesAParameterThatHasChanged) {
  torch::nn::Linear layer(6, 3);
  const Tensor x = values({4, 6}).requires_grad_();
  const Tensor output = checkpoint(layer, x);
  {
    const torch::NoGradGuard no_grad;
    layer->weight.mul_(0.5);
  }
  EXPECT_THAT(error_in_backward(output),
              HasSubstr("of 2 that autograd saves has been changed in place"));
  // As torch::optim::SGD does, which autograd does not count.
  const Tensor again = checkpoint([&](const Tensor& input) { return input * layer->weight[0]; }, x);
  layer->weight.data().mul_(0.5);
  EXPECT_THAT(error_in_backward(again), HasSubstr("has other values"));
}

TEST(Checkpoint, RefusesAFunctionThatComputesSomethingElse) {
  const Tensor x = values({4, 6}).requires_grad_();
  int calls = 0;
  const auto scaling = [&](const Tensor& input) { return (input * ++calls).exp(); };
  EXPECT_THAT(error_in_backward(checkpoint(scaling, x)), HasSubstr("has other values"));
  calls = 0;
  const auto branching = [&](const Tensor& input) {
    return ++calls == 1 ? input.exp().sin().sum() : input.sum().exp();
  };
  EXPECT_THAT(error_in_backward(checkpoint(branching, x)), HasSubstr("has the shape [], and had"));
  calls = 0;
  const auto shorter = [&](const Tensor& input) {
    return ++calls == 1 ? input.exp().sin() : input.exp();
  };
  EXPECT_THAT(error_in_backward(checkpoint(shorter, x)), HasSubstr("saved fewer tensors"));
}

TEST(Checkpoint, RefusesASavedTensorThatTheFunctionChanged) {
  const auto changing = [](const Tensor& input) {
    const Tensor y = input.exp();
    const Tensor z = y.sin();
    y.add_(1);
    return (z * 2).exp();
  };
  const Tensor x = values({4}).requires_grad_();
  EXPECT_THAT(error_in_backward(checkpoint(changing, x)), HasSubstr("after autograd had saved it"));
}

TEST(Checkpoint, PassesTheExceptionsOfTheFunction) {
  const Tensor x = values({4}).requires_grad_();
  int calls = 0;
  const auto failing = [&](const Tensor& input) {
    const Tensor y = input.exp();
    if (++calls > 1) throw std::out_of_range("the user's own mistake");
    return y.sin();
  };
  const Tensor output = checkpoint(failing, x).sum();
  EXPECT_THROW(output.backward(), std::out_of_range);
  EXPECT_THROW(checkpoint(failing, x), std::out_of_range);
  x.exp().sum().backward();
  EXPECT_TRUE(torch::equal(x.grad(), x.exp()));
}

// What DistributedDataParallel leaves on rank 0, with one parameter twice in the graph, one unused,
// and a backward that is not synchronized.
struct PartlyUsedImpl : torch::nn::Module {
  explicit PartlyUsedImpl(bool twice_) : twice(twice_) {
    first = register_module("first", Tied());
    second = register_module("second", torch::nn::Linear(6, 6));
    unused = register_module("unused", torch::nn::Linear(6, 6));
  }
  Tensor forward(const Tensor& x) {
    const auto block = [this](const Tensor& input) { return first(second(first(input)).tanh()); };
    return twice ? checkpoint(first, checkpoint(block, x)) : first(block(x));
  }
  bool twice;
  Tied first{nullptr};
  torch::nn::Linear second{nullptr}, unused{nullptr};
};
TORCH_MODULE(PartlyUsed);

std::vector<Tensor> trained_by_ranks(bool twice, const DistributedDataParallelOptions& options) {
  std::vector<Tensor> results;
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    PartlyUsed net(twice);
    set_weights(*net, 0.5);
    DistributedDataParallel model(net, group, options);
    std::vector<Tensor> found;
    for (int step = 0; step < 3; ++step) {
      const Tensor batch = part(values({8, 6}, step), group->rank(), 2);
      {
        const auto guard = model->no_sync();
        model(batch).square().mean().backward();
      }
      model(batch).square().mean().backward();
      for (const Tensor& gradient : gradients_of(*net)) {
        found.push_back(gradient.defined() ? gradient.clone() : gradient);
      }
    }
    EXPECT_EQ(model->unused_parameters(),
              (std::vector<std::string>{"unused.weight", "unused.bias"}));
    if (group->rank() == 0) results = found;
  });
  return results;
}

TEST(Checkpoint, GivesAReducerEachGradientOnce) {
  for (const DistributedDataParallelOptions& options : {kOneBucket, kManyBuckets}) {
    expect_same_bits(trained_by_ranks(true, options), trained_by_ranks(false, options));
  }
}

TEST(Checkpoint, MakesCollectivesAgain) {
  const auto results = [](bool twice) {
    std::vector<Tensor> of_rank_0;
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      RepeatedNorms net(twice, group->split({0, 1}));
      set_weights(*net, 0.5);
      DistributedDataParallel model(net, group, kManyBuckets);
      for (int step = 0; step < 2; ++step) {
        model(part(values({12, 6}, step), group->rank(), 2)).square().mean().backward();
      }
      if (group->rank() != 0) return;
      of_rank_0 = gradients_of(*net);
      for (const Tensor& buffer : net->buffers()) of_rank_0.push_back(buffer);
    });
    return of_rank_0;
  };
  expect_same_bits(results(true), results(false));
}

TEST(Checkpoint, WorksInReplicas) {
  const auto gradients = [](Keep keep) {
    DeepBlocks net(keep, 4, /*rate=*/0);
    set_weights(*net, 0.5);
    DataParallel model(net, {.replicas = 2, .trust_constructors = true});
    for (int step = 0; step < 2; ++step) model(values({8, 8}, step)).square().mean().backward();
    return gradients_of(*net);
  };
  expect_same_bits(gradients(Keep::inputs_of_blocks), gradients(Keep::all));
  expect_same_bits(gradients(Keep::inputs_of_pairs), gradients(Keep::all));
}

}  // namespace
}  // namespace lockstep::testing
