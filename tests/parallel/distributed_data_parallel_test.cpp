// SPDX-License-Identifier: BSD-3-Clause
// The wrapper: what it takes, what it returns, and what happens around forward.
#include "lockstep/parallel/distributed_data_parallel.h"

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>

#include "lockstep/core/error.h"
#include "lockstep/parallel/model_checks.h"

namespace lockstep::testing {

// A user's own type of output.
struct Detection {
  at::Tensor boxes;
  at::Tensor scores;
};
template <class Function>
void for_each_tensor(Detection& detection, Function&& function) {
  function(detection.boxes);
  function(detection.scores);
}

namespace {

using ::testing::HasSubstr;

struct Plain : torch::nn::Module {
  Plain() { linear = register_module("linear", torch::nn::Linear(6, 2)); }
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  torch::nn::Linear linear{nullptr};
};

template <class Model>
void expect_gradients_agree(Model& model, const ProcessGroup& group) {
  for (const auto& parameter : model->named_parameters()) {
    const at::Tensor& tensor = parameter.value();
    EXPECT_TRUE(tensor.requires_grad());
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < group.size(); ++rank) all.push_back(torch::empty_like(tensor));
    const_cast<ProcessGroup&>(group).all_gather(all, tensor.grad()).wait();
    for (const at::Tensor& gradient : all) {
      EXPECT_TRUE(torch::equal(gradient, all.front())) << parameter.key();
    }
  }
}

// Each rank has its own batch; the gradients show whether the ranks' were averaged.
template <class Model>
void expect_synchronized(Model& model, const ProcessGroup& group) {
  reset_gradients(model);
  model(torch::full({1, 6}, 1. + group.rank())).sum().backward();
  expect_gradients_agree(model, group);
}

TEST(DistributedDataParallel, WrapsEveryKindOfModule) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp holder;
    DistributedDataParallel of_holder(holder, group);
    static_assert(std::is_same_v<decltype(of_holder), DistributedDataParallel<Mlp>>);
    expect_synchronized(of_holder, *group);
    EXPECT_EQ(of_holder->module().get(), holder.get());

    DistributedDataParallel of_temporary(Mlp(), *group);
    expect_synchronized(of_temporary, *group);

    auto shared = std::make_shared<Plain>();
    DistributedDataParallel of_shared(shared, group);
    static_assert(std::is_same_v<decltype(of_shared), DistributedDataParallel<Plain>>);
    expect_synchronized(of_shared, *group);
    EXPECT_EQ(of_shared->module(), shared);

    Plain plain;
    DistributedDataParallel of_plain(plain, group);
    static_assert(std::is_same_v<decltype(of_plain), DistributedDataParallel<Plain>>);
    expect_synchronized(of_plain, *group);
    EXPECT_EQ(of_plain->module().get(), &plain);

    torch::nn::Sequential sequential(torch::nn::Linear(6, 3), torch::nn::ReLU());
    DistributedDataParallel of_sequential(sequential, group);
    expect_synchronized(of_sequential, *group);

    torch::nn::Linear linear(6, 3);
    const DistributedDataParallel<torch::nn::Linear> spelled(linear, group, {.bucket_cap_mb = 1});
    EXPECT_EQ(spelled->module()->weight.data_ptr(), linear->weight.data_ptr());
  });
}

TEST(DistributedDataParallel, KeepsASharedModuleAliveThroughAReference) {
  run_rank_threads(1, [](const std::shared_ptr<ProcessGroup>& group) {
    auto shared = std::make_shared<Plain>();
    DistributedDataParallel model(*shared, group);
    const std::weak_ptr<Plain> watch = shared;
    shared.reset();
    EXPECT_FALSE(watch.expired());
    EXPECT_EQ(model(values({1, 6})).size(1), 2);
  });
}

TEST(DistributedDataParallel, LoadsWeightsAfterWrapping) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp saved;
    std::stringstream file;
    torch::save(saved, file);
    Mlp net;
    DistributedDataParallel model(net, group);
    expect_synchronized(model, *group);
    torch::load(net, file);
    EXPECT_TRUE(net->hidden->weight.equal(saved->hidden->weight));
    expect_synchronized(model, *group);
    net->to(at::kDouble);
    net->to(at::kFloat);
    expect_synchronized(model, *group);
  });
}

TEST(DistributedDataParallel, ReducesAGraphFromBeforeAConversion) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    const at::Tensor input = torch::full({1, 6}, 1. + group->rank());
    const at::Tensor loss = model(input).sum();
    net->to(at::kDouble);
    net->to(at::kFloat);
    {
      const at::NoGradGuard evaluating;
      model(input);
    }
    loss.backward();
    expect_gradients_agree(model, *group);
    expect_synchronized(model, *group);
  });
}

TEST(DistributedDataParallel, IsAModuleItself) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    EXPECT_EQ(model->parameters().size(), net->parameters().size());
    EXPECT_TRUE(model->named_parameters().contains("module.hidden.weight"));
    model->eval();
    EXPECT_FALSE(net->is_training());
    model->train();
    EXPECT_TRUE(net->hidden->is_training());
    model->forward(values({2, 6}) * (1 + group->rank())).sum().backward();  // the wrapper's
    expect_synchronized(model, *group);
    model->zero_grad();
    std::ostringstream text;
    text << model;
    EXPECT_THAT(text.str(), HasSubstr("DistributedDataParallel"));
    EXPECT_THAT(text.str(), HasSubstr("hidden"));
  });
}

TEST(DistributedDataParallel, StartsFromRankZerosParametersAndBuffers) {
  run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2));
    const torch::NoGradGuard no_grad;
    net->parameters()[1].set_requires_grad(false);
    for (at::Tensor& parameter : net->parameters()) parameter.fill_(group->rank() + 7);
    for (at::Tensor& buffer : net->buffers()) buffer.fill_(group->rank() + 8);
    DistributedDataParallel model(net, group, {.broadcast_buffers = false});
    for (const at::Tensor& parameter : net->parameters())
      EXPECT_TRUE(parameter.eq(7).all().item<bool>());
    for (const at::Tensor& buffer : net->buffers()) EXPECT_TRUE(buffer.eq(8).all().item<bool>());
    EXPECT_EQ(net->buffers().size(), 3u);
  });
}

template <class Output>
struct Returns : torch::nn::Module {
  explicit Returns(std::function<Output(const at::Tensor&)> how) : make(std::move(how)) {
    linear = register_module("linear", torch::nn::Linear(2, 2));
  }
  Output forward(const at::Tensor& x) { return make(linear(x)); }
  std::function<Output(const at::Tensor&)> make;
  torch::nn::Linear linear{nullptr};
};

// The gradient of the loss that `sum` makes of an output is averaged over the ranks.
template <class Output, class Sum>
void expect_structure(std::function<Output(const at::Tensor&)> make, Sum sum) {
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Returns<Output> net(make);
    DistributedDataParallel model(net, group);
    auto output = model(torch::full({1, 2}, 1. + group->rank()));
    static_assert(std::is_same_v<decltype(output), Output>);
    sum(output).sum().backward();
    expect_close(net.linear->weight.grad(), torch::full({2, 2}, 1.5), "weight");
  });
}

TEST(DistributedDataParallel, FindsTheTensorsInWhatForwardReturns) {
  using at::Tensor;
  expect_structure<Tensor>([](const Tensor& y) { return y; }, [](Tensor& y) { return y; });
  expect_structure<std::tuple<int, Tensor>>([](const Tensor& y) { return std::tuple(1, y); },
                                            [](auto& y) { return std::get<1>(y); });
  expect_structure<std::pair<Tensor, std::pair<Tensor, bool>>>(
      [](const Tensor& y) { return std::pair(y.detach(), std::pair(y, true)); },
      [](auto& y) { return y.second.first; });
  expect_structure<std::vector<Tensor>>(
      [](const Tensor& y) {
        return std::vector{y / 2, y / 2};
      },
      [](auto& y) { return y[0] + y[1]; });
  expect_structure<std::array<Tensor, 2>>(
      [](const Tensor& y) {
        return std::array{y, Tensor()};
      },
      [](auto& y) { return y[0]; });
  expect_structure<std::optional<Tensor>>([](const Tensor& y) { return std::optional(y); },
                                          [](auto& y) { return *y; });
  using Map = std::map<std::string, std::vector<Tensor>>;
  expect_structure<Map>(
      [](const Tensor& y) {
        return Map{{"a", {y}}, {"b", {}}};
      },
      [](auto& y) { return y["a"][0]; });
  expect_structure<Detection>(
      [](const Tensor& y) {
        return Detection{y / 4, y / 4 * 3};
      },
      [](auto& y) { return y.boxes + y.scores; });
}

// The node that computed an output may then no longer be the one that backward comes to first.
TEST(DistributedDataParallel, OutputsMayBeChangedInPlaceBeforeTheLoss) {
  using at::Tensor;
  const auto same = [](const Tensor& y) { return y; };
  const auto view = [](const Tensor& y) { return y.view({-1}); };
  const auto change = [](Tensor& y) { return y.add_(1); };
  const auto change_part = [](Tensor& y) {
    y.select(0, 0).add_(1);
    return y;
  };
  const auto change_a_view = [](Tensor& y) { return y.view({-1}).add_(1); };
  expect_structure<Tensor>(same, change);
  expect_structure<Tensor>(same, change_part);
  expect_structure<Tensor>(same, change_a_view);
  expect_structure<Tensor>(view, change);
  expect_structure<Tensor>(view, change_part);
  expect_structure<Tensor>(view, change_a_view);
}

// The node belongs to a graph that lasts, such as one for a prompt that is learned elsewhere.
// Another thread, which numbers its own nodes, may have made it.
TEST(DistributedDataParallel, ANodeThatWasThereBeforeForwardGetsNoHooks) {
  // Nodes made on this thread, one for each rank: libtorch does not let threads share a node as an
  // input.
  const auto make_one_each = [] {
    const auto make = [] { return torch::ones({1, 2}, at::requires_grad()) * 2; };
    return std::vector{make(), make()};
  };
  const std::vector<at::Tensor> elsewhere = make_one_each();
  for (int i = 0; i < 1000; ++i) torch::ones({1}, at::requires_grad()) * 2;
  const std::vector<at::Tensor> later = make_one_each();
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor mine = torch::ones({1, 2}, at::requires_grad()) * 2;
    const auto rank = static_cast<std::size_t>(group->rank());
    for (const at::Tensor& older : {mine, elsewhere[rank], later[rank]}) {
      Returns<std::pair<at::Tensor, at::Tensor>> net(
          [&](const at::Tensor& y) { return std::pair(older, y); });
      DistributedDataParallel model(net, group);
      for (int step = 0; step < 3; ++step) {
        const auto [passed_on, y] = model(torch::ones({1, 2}));
        EXPECT_TRUE(torch::equal(passed_on, older));
        EXPECT_TRUE(older.grad_fn()->pre_hooks().empty());
      }
    }
  });
}

struct TwoOutputs : torch::autograd::Function<TwoOutputs> {
  static std::vector<at::Tensor> forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return {x * 1, x * 2};
  }
  static std::vector<at::Tensor> backward(torch::autograd::AutogradContext*,
                                          std::vector<at::Tensor> gradients) {
    return {gradients[0] + gradients[1] * 2};
  }
};

TEST(DistributedDataParallel, OutputsMayShareTheirNode) {
  using Pair = std::pair<at::Tensor, at::Tensor>;
  expect_structure<Pair>([](const at::Tensor& y) { return Pair(y, y); },
                         [](Pair& y) { return (y.first + y.second) / 2; });
  using Tensors = std::vector<at::Tensor>;
  expect_structure<Tensors>([](const at::Tensor& y) { return TwoOutputs::apply(y); },
                            [](Tensors& y) { return (y[0] + y[1]) / 3; });
  expect_structure<Tensors>([](const at::Tensor& y) { return TwoOutputs::apply(y); },
                            [](Tensors& y) { return y[1] / 2; });
}

TEST(DistributedDataParallel, ForwardsAnyArguments) {
  struct Many : torch::nn::Module {
    Many() { linear = register_module("linear", torch::nn::Linear(2, 2)); }
    at::Tensor forward(const at::Tensor& x, int times, at::Tensor& count,
                       std::unique_ptr<int> only_moved, const std::vector<at::Tensor>& more) {
      count += 1;
      return linear(x + more.at(0)) * times * *only_moved;
    }
    torch::nn::Linear linear{nullptr};
  };
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Many net;
    for (const auto& options : std::vector<DistributedDataParallelOptions>{
             {}, {.device_ids = {at::kCPU}, .output_device = at::kCPU}}) {
      DistributedDataParallel model(net, group, options);
      at::Tensor count = torch::zeros({});
      reset_gradients(net);
      model(torch::zeros({1, 2}), 2, count, std::make_unique<int>(3),
            std::vector{torch::full({1, 2}, 1. + group->rank())})
          .sum()
          .backward();
      EXPECT_EQ(count.item<int>(), 1);
      expect_close(net.linear->weight.grad(), torch::full({2, 2}, 9.), "weight");
    }
  });
}

TEST(DistributedDataParallel, MovesInputsAndOutputsToTheirDevices) {
  struct Scale : torch::nn::Module {
    explicit Scale(at::Device device) {
      factor = register_parameter("factor", torch::ones({2}, device));
    }
    at::Tensor forward(const std::vector<at::Tensor>& x) { return x.at(0) * factor; }
    at::Tensor factor;
  };
  run_rank_threads(1, [](const std::shared_ptr<ProcessGroup>& group) {
    const at::Device meta(at::kMeta);  // a device that every machine has
    Scale there(meta);
    DistributedDataParallel model(there, group, {.device_ids = {meta}});
    EXPECT_TRUE(model(std::vector{torch::ones({1, 2})}).is_meta());
    Scale here(at::kCPU);
    DistributedDataParallel away(here, group, {.output_device = meta});
    EXPECT_TRUE(away(std::vector{torch::ones({1, 2})}).is_meta());
  });
}

TEST(DistributedDataParallel, OptionsThatContradictTheModuleAreErrors) {
  run_rank_threads(1, [](const std::shared_ptr<ProcessGroup>& group) {
    torch::nn::Linear net(2, 2);
    const auto wrap = [&](std::vector<DeviceId> devices) {
      DistributedDataParallel model(net, group, {.device_ids = std::move(devices)});
    };
    wrap({at::Device("cpu")});
    EXPECT_THROW(wrap({at::Device("cuda:0")}), UsageError);
    EXPECT_THROW(wrap({at::Device("cpu"), at::Device("cpu")}), UsageError);
    EXPECT_THROW(DistributedDataParallel(net, nullptr), UsageError);
    EXPECT_THROW(DistributedDataParallel(torch::nn::Linear(nullptr), group), UsageError);
  });
}

struct Normed : torch::nn::Module {
  Normed() {
    linear = register_module("linear", torch::nn::Linear(6, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
  }
  at::Tensor forward(const at::Tensor& x) { return norm(linear(x)); }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};

// What one step in training makes of rank 0's statistics with this rank's batch.
at::Tensor running_mean_after(const Normed& start, const at::Tensor& batch) {
  Normed copy;
  copy_state(copy, start);
  copy.forward(batch);
  return copy.norm->running_mean;
}

TEST(DistributedDataParallel, BuffersAreRankZerosBeforeEachForwardInTraining) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Normed net;
    DistributedDataParallel model(net, group);
    const at::Tensor first = values({8, 6}, 0);
    const at::Tensor mine = values({8, 6}, group->rank());
    Normed start;
    copy_state(start, net);
    model(mine).sum().backward();
    start.forward(first);  // now as rank 0
    model(mine).sum().backward();
    expect_close(net.norm->running_mean, running_mean_after(start, mine), "second step");
    EXPECT_EQ(net.norm->num_batches_tracked.item<int>(), 2);

    // Not under no_sync, not in eval, not without gradients.
    net.norm->running_mean.fill_(group->rank());
    const int before = group->calls_made();
    {
      const NoSync guard = model->no_sync();
      model(mine);
    }
    {
      const torch::NoGradGuard no_grad;
      model(mine);
    }
    model->eval();
    model(mine);
    EXPECT_EQ(group->calls_made(), before);
  });
}

TEST(DistributedDataParallel, BuffersStayIfAskedTo) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Normed net;
    DistributedDataParallel model(net, group, {.broadcast_buffers = false});
    const int before = group->calls_made();
    net.norm->running_mean.fill_(group->rank());
    model(values({8, 6}));
    EXPECT_EQ(group->calls_made(), before);
  });
}

struct Masked : torch::nn::Module {
  explicit Masked(const at::Tensor& buffer) { mask = register_buffer("mask", buffer); }
  at::Tensor forward(const at::Tensor& x) { return linear(x); }
  torch::nn::Linear linear{register_module("linear", torch::nn::Linear(2, 2))};
  at::Tensor mask;
};

TEST(DistributedDataParallel, SparseBuffersStayOrAreNamed) {
  for (const at::Tensor& mask : {torch::eye(4).to_sparse(), torch::eye(4).to_sparse_csr()}) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      const auto wrap = [&](const at::Tensor& buffer, bool broadcast) {
        const auto net = std::make_shared<Masked>(buffer);
        DistributedDataParallel model(net, group, {.broadcast_buffers = broadcast});
        model(torch::ones({3, 2})).sum().backward();
        check_in_sync(*net, *group);
      };
      wrap(mask, false);
      EXPECT_THAT(testing::message_of<UsageError>([&] { wrap(mask, true); }),
                  HasSubstr("buffer mask is sparse, and only dense tensors can be broadcast; set "
                            ".broadcast_buffers = false"));
      EXPECT_THAT(testing::message_of<UsageError>([&] { wrap(mask * (group->rank() + 1), false); }),
                  HasSubstr("rank 0 has buffer mask: elements with the hash"));
    });
  }
}

TEST(DistributedDataParallel, NamesASparseParameter) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto net = std::make_shared<Masked>(torch::ones({1}));
    net->register_parameter("weights", torch::eye(4).to_sparse());
    EXPECT_THAT(testing::message_of<UsageError>([&] { DistributedDataParallel model(net, group); }),
                HasSubstr("parameter weights is sparse, and ranks can only exchange dense ones"));
  });
}

TEST(DistributedDataParallel, ExpandedBuffersBecomeRankZeros) {
  for (const bool broadcast : {true, false}) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      const at::Tensor row = torch::full({1, 4}, static_cast<double>(group->rank() + 1));
      const auto net = std::make_shared<Masked>(row.expand({3, 4}));
      DistributedDataParallel model(net, group, {.broadcast_buffers = broadcast});
      EXPECT_TRUE(net->mask.equal(torch::ones({3, 4})));
      row.fill_(group->rank() + 5);
      model(torch::ones({3, 2}));
      EXPECT_TRUE(net->mask.equal(torch::full({3, 4}, broadcast ? 5.0 : group->rank() + 5.0)));
    });
  }
}

TEST(DistributedDataParallel, OneRankMayEvaluateAlone) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Normed net;
    DistributedDataParallel model(net, group);
    for (int epoch = 0; epoch < 2; ++epoch) {
      model->train();
      model(values({8, 6}, group->rank())).sum().backward();
      if (group->rank() != 0) continue;
      net.eval();
      const int before = group->calls_made();
      EXPECT_EQ(model(values({8, 6})).size(1), 3);
      const torch::NoGradGuard no_grad;
      EXPECT_EQ(model(values({8, 6})).size(1), 3);
      EXPECT_EQ(group->calls_made(), before);
    }
  });
}

TEST(DistributedDataParallel, BatchNormTwiceBeforeBackward) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Normed net;
    DistributedDataParallel model(net, group);
    const at::Tensor one = model(values({8, 6}, group->rank()));
    const at::Tensor two = model(values({8, 6}, 2 + group->rank()));
    (one.square().sum() + two.square().sum()).backward();
    EXPECT_TRUE(net.linear->weight.grad().defined());
  });
}

}  // namespace
}  // namespace lockstep::testing
