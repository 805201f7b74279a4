// SPDX-License-Identifier: BSD-3-Clause
// When buckets are launched, and backwards that are not one plain backward after one forward.
#include "tests/parallel/models.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/activation.h>

#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Writes down when backward enters a layer's output.
at::Tensor watched(const at::Tensor& tensor, const std::string& event,
                   std::vector<std::string>& events) {
  tensor.register_hook([event, &events](const at::Tensor&) { events.push_back(event); });
  return tensor;
}

struct WatchedNetImpl : torch::nn::Module {
  WatchedNetImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    second = register_module("second", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = watched(first(x), "first layer", events);
    return watched(second(torch::tanh(hidden)), "second layer", events);
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  std::vector<std::string> events;
};
TORCH_MODULE(WatchedNet);

TEST(ReducerBackward, LaunchesBucketsBeforeBackwardEnds) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    WatchedNet net;
    DistributedDataParallel model(net, group, kManyBuckets);
    model->register_comm_hook([&](GradBucket& bucket) {
      net->events.push_back("bucket " + std::to_string(bucket.index()));
      return group->all_reduce(bucket.buffer(), ReduceOp::mean);
    });
    model(values({2, 4})).sum().backward();
    // The first backward only learns the order.
    EXPECT_THAT(net->events, ElementsAre("second layer", "first layer", "bucket 0", "bucket 1",
                                         "bucket 2", "bucket 3"));
    for (int step = 0; step < 2; ++step) {
      net->events.clear();
      model(values({2, 4})).sum().backward();
      EXPECT_THAT(net->events, ElementsAre("second layer", "bucket 0", "bucket 1", "first layer",
                                           "bucket 2", "bucket 3"));
    }
  });
}

TEST(ReducerBackward, TheCommHookDecidesWhatIsReduced) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    int elements = 0;
    model->register_comm_hook([&](GradBucket& bucket) {
      for (const at::Tensor& gradient : bucket.gradients()) elements += gradient.numel();
      group->all_reduce(bucket.buffer(), ReduceOp::sum).wait();
      return Work();
    });
    model(values({2, 6})).sum().backward();
    Mlp reference;
    copy_state(*reference, *net);
    (reference->forward(values({2, 6})).sum() * 2).backward();
    expect_same_gradients(*net, *reference);
    EXPECT_EQ(elements, 6 * 9 + 9 + 9 * 5 + 5 + 5 * 3 + 3);
  });
}

TEST(ReducerBackward, TheCommHookSeesLargeGradientsToo) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Wide net;
    DistributedDataParallel model(net, group);
    model->register_comm_hook([&](GradBucket& bucket) {
      bucket.buffer().mul_(2);
      return group->all_reduce(bucket.buffer(), ReduceOp::mean);
    });
    Wide reference;
    copy_state(*reference, *net);
    (reference->forward(values({2, 6})).sum() * 2).backward();
    for (int step = 0; step < 3; ++step) {
      reset_gradients(*net);
      model(values({2, 6})).sum().backward();
      expect_same_gradients(*net, *reference);
    }
  });
}

TEST(ReducerBackward, AGroupOfOneIsLeftAlone) {
  run_rank_threads(1, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    const at::Tensor output = model(values({2, 6}));
    EXPECT_NE(output.grad_fn()->name(), "LockstepOutput");
    output.sum().backward();
    const NoSync guard = model->no_sync();
    EXPECT_EQ(group->calls_made(), 0);
    EXPECT_THAT(model->unused_parameters(), IsEmpty());
  });
}

TEST(ReducerBackward, NoSyncAccumulatesUntilTheNextSynchronizedOne) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, kManyBuckets);
    Mlp reference;
    copy_state(*reference, *net);
    const at::Tensor batch = values({8, 6});
    const at::Tensor mine = part(batch, group->rank(), 2);
    for (int round = 0; round < 3; ++round) {
      reset_gradients(*net);
      reset_gradients(*reference);
      const int before = group->calls_made();
      {
        const NoSync outer = model->no_sync();
        const NoSync inner = model->no_sync();
        model(mine).square().mean().backward();
        model(mine * 2).square().mean().backward();
      }
      EXPECT_EQ(group->calls_made(), before);
      model(mine * 3).square().mean().backward();
      EXPECT_GT(group->calls_made(), before);
      for (const int factor : {1, 2, 3}) {
        reference->forward(batch * factor).square().mean().backward();
      }
      expect_same_gradients(*net, *reference);
    }
  });
}

TEST(ReducerBackward, NoSyncIsDecidedAtForward) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    at::Tensor unsynchronized;
    {
      const NoSync guard = model->no_sync();
      unsynchronized = model(values({2, 6}));
    }
    const at::Tensor synchronized = model(values({2, 6}));
    const int before = group->calls_made();
    unsynchronized.sum().backward();
    EXPECT_EQ(group->calls_made(), before);
    const NoSync guard = model->no_sync();
    synchronized.sum().backward();
    EXPECT_GT(group->calls_made(), before);
  });
}

TEST(ReducerBackward, TwiceOnOneForward) {
  for (const auto& options : {DistributedDataParallelOptions{}, kManyBuckets}) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      Mlp net;
      DistributedDataParallel model(net, group, options);
      Mlp reference;
      copy_state(*reference, *net);
      const at::Tensor batch = values({4, 6});
      for (int step = 0; step < 3; ++step) {
        reset_gradients(*net);
        reset_gradients(*reference);
        const at::Tensor loss = model(part(batch, group->rank(), 2)).square().mean();
        loss.backward({}, /*retain_graph=*/true);
        loss.backward();
        const at::Tensor whole = reference->forward(batch).square().mean();
        whole.backward({}, /*retain_graph=*/true);
        whole.backward();
        expect_same_gradients(*net, *reference);
      }
    });
  }
}

TEST(ReducerBackward, OnceForTwoForwards) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group, kManyBuckets);
    Mlp reference;
    copy_state(*reference, *net);
    const at::Tensor batch = values({4, 6});
    const at::Tensor mine = part(batch, group->rank(), 2);
    for (int step = 0; step < 3; ++step) {
      reset_gradients(*net);
      reset_gradients(*reference);
      (model(mine).square().mean() + model(mine * 2).square().mean()).backward();
      (reference->forward(batch).square().mean() + reference->forward(batch * 2).square().mean())
          .backward();
      expect_same_gradients(*net, *reference);
    }
    // Two forwards, then their backwards one after the other.
    reset_gradients(*net);
    reset_gradients(*reference);
    const at::Tensor one = model(mine).square().mean();
    const at::Tensor two = model(mine * 2).square().mean();
    one.backward();
    two.backward();
    reference->forward(batch).square().mean().backward();
    reference->forward(batch * 2).square().mean().backward();
    expect_same_gradients(*net, *reference);
  });
}

// Computes a layer's forward again inside backward, and runs a backward of its own there.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            torch::nn::LinearImpl* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer);
    const torch::NoGradGuard no_grad;
    return layer->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    const at::Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    at::Tensor y;
    {
      const torch::AutoGradMode with_grad(true);
      y = layer->forward(x);
    }
    torch::autograd::backward({y}, {gradients[0]});
    return {x.grad(), at::Tensor()};
  }
};

struct CheckpointedImpl : torch::nn::Module {
  explicit CheckpointedImpl(int width = 4) {
    first = register_module("first", torch::nn::Linear(4, width));
    twice = register_module("twice", torch::nn::Linear(width, width));
    last = register_module("last", torch::nn::Linear(width, 4));
  }
  at::Tensor forward(const at::Tensor& x, bool checkpointed) {
    const auto through = [&](const at::Tensor& input) {
      return checkpointed ? Checkpoint::apply(input, twice.get()) : twice(input);
    };
    return last(through(torch::tanh(through(first(x)))));
  }
  torch::nn::Linear first{nullptr}, twice{nullptr}, last{nullptr};
};
TORCH_MODULE(Checkpointed);

TEST(ReducerBackward, NestedInAnother) {
  for (const auto& options : {DistributedDataParallelOptions{}, kManyBuckets}) {
    run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
      Checkpointed net;
      DistributedDataParallel model(net, group, options);
      Checkpointed reference;
      copy_state(*reference, *net);
      const at::Tensor batch = values({4, 4});
      for (int step = 0; step < 3; ++step) {
        (step < 2 ? reset_gradients : zero_gradients)(*net);
        reset_gradients(*reference);
        model(part(batch, group->rank(), 2), true).square().mean().backward();
        reference->forward(batch, false).square().mean().backward();
        expect_same_gradients(*net, *reference);
      }
    });
  }
}

// What of a large gradient has stayed where it came is there when more is added to it.
TEST(ReducerBackward, NestedInAnotherOnceItsBucketsAreThere) {
  run_rank_threads(2, [&](const std::shared_ptr<ProcessGroup>& group) {
    Checkpointed net(1000);
    DistributedDataParallel model(net, group, {.first_bucket_mb = 25});
    Checkpointed reference(1000);
    copy_state(*reference, *net);
    const at::Tensor batch = values({4, 4});
    for (int step = 0; step < 3; ++step) {
      reset_gradients(*net);
      reset_gradients(*reference);
      model(part(batch, group->rank(), 2), step > 0).square().mean().backward();
      reference->forward(batch, false).square().mean().backward();
      expect_same_gradients(*net, *reference);
    }
  });
}

TEST(ReducerBackward, OnceThroughTwoModelsOfOneGroup) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    torch::nn::Linear first(4, 4);
    torch::nn::Linear second(4, 4);
    DistributedDataParallel model(first, group, kManyBuckets);
    DistributedDataParallel head(second, group, kManyBuckets);
    std::vector<at::Tensor> parameters = first->parameters();
    for (const at::Tensor& parameter : second->parameters()) parameters.push_back(parameter);
    const auto input = [](int rank) { return torch::ones({2, 4}) * (rank + 1); };
    for (int step = 0; step < 3; ++step) {
      const auto loss_of = [&](int rank) { return second(torch::tanh(first(input(rank)))).sum(); };
      const auto expected = torch::autograd::grad({(loss_of(0) + loss_of(1)) / 2}, parameters);
      for (const at::Tensor& parameter : parameters) parameter.mutable_grad().reset();
      head(torch::tanh(model(input(group->rank())))).sum().backward();
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(torch::allclose(parameters[i].grad(), expected[i])) << i << " in " << step;
      }
    }
  });
}

TEST(ReducerBackward, OutsideOfTheOutputsOnlyAccumulates) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    const at::Tensor batch = values({4, 6});
    const at::Tensor mine = part(batch, group->rank(), 2);
    const int before = group->calls_made();
    net->forward(mine).square().mean().backward();
    EXPECT_EQ(group->calls_made(), before);
    model(mine).square().mean().backward();
    Mlp reference;
    copy_state(*reference, *net);
    for (int i = 0; i < 2; ++i) reference->forward(batch).square().mean().backward();
    expect_same_gradients(*net, *reference);
  });
}

TEST(ReducerBackward, TheGradientOfAnInputIsNotReduced) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    const at::Tensor x = values({4, 6}, group->rank()).requires_grad_();
    const int before = group->calls_made();
    // Also with create_graph, as for a gradient penalty.
    const at::Tensor slope = torch::autograd::grad({model(x).sum()}, {x}, {}, {}, true)[0];
    EXPECT_EQ(group->calls_made(), before);
    const at::Tensor alone = torch::autograd::grad({net->forward(x).sum()}, {x})[0];
    expect_close(slope, alone, "slope");
    (model(x).sum() + slope.square().sum()).backward();
    EXPECT_GT(group->calls_made(), before);
  });
}

TEST(ReducerBackward, AfterTheModelIsGoneStillReduces) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    at::Tensor loss;
    {
      DistributedDataParallel model(net, group);
      loss = model(values({2, 6}) * (group->rank() + 1)).sum();
    }
    loss.backward();
    loss.reset();
    Mlp reference;
    copy_state(*reference, *net);
    const at::Tensor x = values({2, 6});
    ((reference->forward(x).sum() + reference->forward(x * 2).sum()) / 2).backward();
    expect_same_gradients(*net, *reference);
    // And hooks are gone with it: wrapping again works.
    DistributedDataParallel again(net, group, kManyBuckets);
    for (int step = 0; step < 2; ++step) {
      reset_gradients(*net);
      ((again(x) + again(x * 2)).sum() / 2).backward();
      expect_same_gradients(*net, *reference);
    }
  });
}

TEST(ReducerBackward, AnOutputThatBackwardNeedsMayNotBeChanged) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::Sigmoid());
    DistributedDataParallel model(net, group);
    at::Tensor output = model(values({2, 3}));
    output.add_(1);
    EXPECT_THROW(output.sum().backward(), c10::Error);
  });
}

TEST(ReducerBackward, AnOutputThatBackwardDoesNotNeedMayBeChanged) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    torch::nn::Sequential net{torch::nn::Linear(3, 3)};
    DistributedDataParallel model(net, group);
    for (int step = 0; step < 2; ++step) {
      reset_gradients(*net);
      at::Tensor output = model(values({2, 3}));
      output.mul_(2);
      output.sum().backward();
      expect_close(net->parameters()[1].grad(), torch::full({3}, 4.), "bias");
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
