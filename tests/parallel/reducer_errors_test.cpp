// SPDX-License-Identifier: BSD-3-Clause
// What goes wrong, on which ranks, and what the message says.
#include <array>

#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/rank_processes.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <poll.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <unistd.h>

#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/error.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/parallel/distributed_data_parallel.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct FragileImpl : torch::nn::Module {
  FragileImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    last = register_module("last", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x, bool breaks) {
    const at::Tensor hidden = first(x);
    return last(breaks ? ThrowsInBackward::apply(hidden) : hidden);
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(Fragile);

// Over each backend that shares memory, with its ranks: threads or processes.
class ReducerErrors : public ::testing::TestWithParam<std::string> {
 protected:
  static void run(int size, const std::function<void(std::shared_ptr<ProcessGroup>)>& body,
                  std::chrono::milliseconds timeout = 60s) {
    if (GetParam() == "thread") return run_rank_threads(size, body, {.timeout = timeout});
    run_ranks(size, [&](Rank& rank) {
      body(init_process_group({.backend = GetParam(),
                               .init_method = rank.rendezvous_url(),
                               .rank = rank.rank(),
                               .world_size = rank.size(),
                               .timeout = timeout,
                               .device = at::kCPU}));
    });
  }
};

INSTANTIATE_TEST_SUITE_P(Over, ReducerErrors, ::testing::Values("thread", "shm"),
                         [](const auto& info) { return info.param; });

TEST_P(ReducerErrors, AnExceptionInBackwardReachesEveryRank) {
  for (const int good_steps : {0, 2}) {
    for (const auto& options : {DistributedDataParallelOptions{}, kManyBuckets}) {
      run(2, [&](const std::shared_ptr<ProcessGroup>& group) {
        Fragile net;
        DistributedDataParallel model(net, group, options);
        for (int step = 0; step < good_steps; ++step) {
          model(values({2, 4}), false).sum().backward();
        }
        const at::Tensor loss = model(values({2, 4}), group->rank() == 1).sum();
        if (group->rank() == 1) {
          EXPECT_THROW(loss.backward(), std::out_of_range);
        } else {
          EXPECT_THAT(message_of<PeerLost>([&] { loss.backward(); }),
                      AllOf(HasSubstr("rank 1"), HasSubstr("backward ended with an exception")));
        }
        EXPECT_THAT(message_of<Error>([&] {
                      model(values({2, 4}), false);
                    }),
                    HasSubstr("an earlier backward failed and ended the group"));
      });
    }
  }
}

TEST_P(ReducerErrors, ARankThatStallsInBackwardIsATimeoutThatNamesIt) {
  // By which rank 0 tells rank 1, a thread or a process, that it has timed out.
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  const UniqueFd to_read(pipe[0]);
  const UniqueFd to_write(pipe[1]);
  run(
      2,
      [&](const std::shared_ptr<ProcessGroup>& group) {
        Mlp net;
        DistributedDataParallel model(net, group);
        model(values({2, 6})).sum().backward();
        const at::Tensor output = model(values({2, 6}));
        if (group->rank() == 1) {
          output.register_hook([&](const at::Tensor&) {
            pollfd readable{to_read.get(), POLLIN, 0};
            EXPECT_EQ(::poll(&readable, 1, 30'000), 1);
          });
          EXPECT_THROW(output.sum().backward(), Error);
        } else {
          EXPECT_THAT(message_of<TimeoutError>([&] { output.sum().backward(); }),
                      AllOf(HasSubstr("reducing gradients"), HasSubstr("rank 1")));
          EXPECT_EQ(::write(to_write.get(), "", 1), 1);
        }
      },
      5s);
}

// The broadcast in forward is none that the program wrote.
TEST_P(ReducerErrors, BuffersThatAreBroadcastForFewerBatchesAreNamed) {
  run(2, [](std::shared_ptr<ProcessGroup> group) {
    DistributedDataParallel model(torch::nn::BatchNorm1d(6), group);
    const int batches = group->rank() == 0 ? 3 : 2;
    const auto train = [&] {
      for (int batch = 0; batch < batches; ++batch) model(values({2, 6})).sum().backward();
    };
    if (group->rank() == 1) {
      train();
      EXPECT_THROW(group->barrier().wait(), UsageError);
      return;
    }
    EXPECT_THAT(message_of<UsageError>(train),
                AllOf(HasSubstr("[DistributedDataParallel] broadcasting buffers"),
                      HasSubstr("barrier"), HasSubstr("different numbers of batches")));
  });
}

TEST_P(ReducerErrors, AnExceptionBeforeTheModelIsReachedDoesNoHarm) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    const at::Tensor output = model(values({2, 6}));
    EXPECT_THROW(ThrowsInBackward::apply(output).sum().backward(), std::out_of_range);
    output.sum().backward();
    EXPECT_TRUE(net->hidden->weight.grad().defined());
  });
}

TEST_P(ReducerErrors, CreateGraphIsNamed) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    const at::Tensor output = model(values({2, 6})).sum();
    EXPECT_THAT(message_of<UsageError>([&] { output.backward({}, true, true); }),
                HasSubstr("create_graph"));
    output.backward();  // nothing had been changed
    EXPECT_TRUE(net->hidden->weight.grad().defined());
  });
}

TEST_P(ReducerErrors, SparseGradientsAreNamed) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    torch::nn::Sequential net{
        torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true))};
    DistributedDataParallel model(net, group);
    const at::Tensor loss = model(torch::arange(4)).sum();
    // Whichever is first tells the other.
    EXPECT_THAT(message_of<Error>([&] { loss.backward(); }),
                AllOf(HasSubstr("0.weight"), HasSubstr("sparse")));
  });
}

// Runs a backward of its own inside backward, so that the layer's gradients come twice.
struct InnerBackward : torch::autograd::Function<InnerBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            torch::nn::LinearImpl* layer) {
    context->save_for_backward({x});
    context->saved_data["layer"] = reinterpret_cast<std::int64_t>(layer);
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    auto* layer = reinterpret_cast<torch::nn::LinearImpl*>(context->saved_data["layer"].toInt());
    {
      const torch::AutoGradMode with_grad(true);
      layer->forward(context->get_saved_variables()[0].detach()).sum().backward();
    }
    return {gradients[0], at::Tensor()};
  }
};

struct SometimesTwiceImpl : torch::nn::Module {
  SometimesTwiceImpl() {
    first = register_module("first", torch::nn::Linear(4, 4));
    last = register_module("last", torch::nn::Linear(4, 4));
  }
  at::Tensor forward(const at::Tensor& x, bool twice) {
    const at::Tensor hidden = torch::tanh(first(x));
    return last(twice ? InnerBackward::apply(hidden, last.get()) : hidden);
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
};
TORCH_MODULE(SometimesTwice);

TEST_P(ReducerErrors, AGradientAfterItsBucketWasLaunchedIsNamed) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    SometimesTwice net;
    DistributedDataParallel model(net, group, kManyBuckets);
    model(values({2, 4}), false).sum().backward();
    EXPECT_THAT(message_of<Error>([&] {
                  model(values({2, 4}), true).sum().backward();
                }),
                AllOf(HasSubstr("parameter last."), HasSubstr("after its bucket was launched")));
  });
}

TEST_P(ReducerErrors, MoreGradientsBeforeTheLaunchAndFewerThanBeforeAreNone) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    SometimesTwice net;
    DistributedDataParallel model(net, group);  // one bucket, complete when `first` is
    SometimesTwice reference;
    copy_state(*reference, *net);
    for (const bool twice : {false, true, false, true}) {
      reset_gradients(*net);
      reset_gradients(*reference);
      model(values({2, 4}), twice).sum().backward();
      reference->forward(values({2, 4}), twice).sum().backward();
      expect_same_gradients(*net, *reference);
    }
  });
}

TEST_P(ReducerErrors, UnevenNumbersOfBatchesNameThemselves) {
  run(2, [](std::shared_ptr<ProcessGroup> group) {
    Mlp net;
    DistributedDataParallel model(net, std::move(group));
    const int rank = model->group()->rank();
    model(values({2, 6})).sum().backward();
    if (rank == 1) return;
    EXPECT_THAT(message_of<PeerLost>([&] {
                  model(values({2, 6})).sum().backward();
                }),
                AllOf(HasSubstr("rank 1"), HasSubstr("left the group"),
                      HasSubstr("different numbers of batches")));
  });
}

TEST_P(ReducerErrors, UnevenNumbersOfBatchesThatMeetAnotherCallNameThemselves) {
  run(2, [](std::shared_ptr<ProcessGroup> group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    model(values({2, 6})).sum().backward();
    if (group->rank() == 1) {
      // Its epoch is over.
      const at::Tensor accuracy = at::zeros({1});
      EXPECT_THAT(message_of<UsageError>([&] { group->all_reduce(accuracy).wait(); }),
                  HasSubstr("all_reduce"));
      return;
    }
    EXPECT_THAT(message_of<UsageError>([&] {
                  model(values({2, 6})).sum().backward();
                }),
                AllOf(HasSubstr("reducing gradients"), HasSubstr("sum of 1 Float"),
                      HasSubstr("different numbers of batches")));
  });
}

TEST_P(ReducerErrors, AChangeAfterWrappingIsNamed) {
  const auto expect_refused = [](int ranks, auto change, const std::string& what) {
    run(ranks, [&](const std::shared_ptr<ProcessGroup>& group) {
      Mlp net;
      net->last->bias.set_requires_grad(false);
      DistributedDataParallel model(net, group);
      change(net);
      EXPECT_THAT(message_of<UsageError>([&] {
                    model(values({2, 6}).to(net->hidden->weight.scalar_type()));
                  }),
                  AllOf(HasSubstr(what), HasSubstr("wrap")));
    });
  };
  // A rank alone is told too, before anybody adds a second one.
  for (const int ranks : {1, 2}) {
    expect_refused(
        ranks, [](Mlp& net) { net->to(at::kDouble); },
        "hidden.weight was converted from Float to Double");
    expect_refused(
        ranks, [](Mlp& net) { net->middle->bias.set_requires_grad(false); },
        "middle.bias was frozen");
    expect_refused(
        ranks, [](Mlp& net) { net->last->bias.set_requires_grad(true); }, "last.bias was unfrozen");
    expect_refused(
        ranks, [](Mlp& net) { net->middle->weight.set_data(torch::ones({2})); },
        "middle.weight was resized from [5, 9] to [2]");
    expect_refused(
        ranks,
        [](Mlp& net) {
          net->middle->weight.set_data(torch::ones({9, 5}));
        },
        "middle.weight was resized from [5, 9] to [9, 5]");
  }
}

TEST_P(ReducerErrors, RanksThatWrapDifferentModelsAllSayWhere) {
  const auto expect_difference = [](auto make, const std::string& of_0, const std::string& of_2) {
    run(3, [&](const std::shared_ptr<ProcessGroup>& group) {
      const std::string message = message_of<UsageError>([&] { make(group); });
      EXPECT_THAT(message, AllOf(HasSubstr("rank 0 has " + of_0), HasSubstr("rank 2 has " + of_2)));
      EXPECT_THAT(message, HasSubstr("rank " + std::to_string(group->rank()) + " of 3"));
    });
  };
  expect_difference(
      [](const std::shared_ptr<ProcessGroup>& group) {
        torch::nn::Sequential net(torch::nn::Linear(3, 3),
                                  torch::nn::Linear(3, group->rank() == 2 ? 5 : 4));
        DistributedDataParallel model(net, group);
      },
      "parameter 1.weight: Float [4, 3], requires grad", "parameter 1.weight: Float [5, 3]");
  expect_difference(
      [](const std::shared_ptr<ProcessGroup>& group) {
        torch::nn::Sequential net(torch::nn::Linear(3, 3));
        if (group->rank() == 2) net->to(at::kDouble);
        DistributedDataParallel model(net, group);
      },
      "parameter 0.weight: Float [3, 3]", "parameter 0.weight: Double [3, 3]");
  expect_difference(
      [](const std::shared_ptr<ProcessGroup>& group) {
        torch::nn::Sequential net(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
        if (group->rank() == 2) net->parameters()[1].set_requires_grad(false);
        DistributedDataParallel model(net, group);
      },
      "parameter 0.bias: Float [3], requires grad;", "parameter 0.bias: Float [3];");
  expect_difference(
      [](const std::shared_ptr<ProcessGroup>& group) {
        torch::nn::Sequential net(torch::nn::Linear(3, 3));
        if (group->rank() == 2) net->push_back(torch::nn::Linear(3, 3));
        DistributedDataParallel model(net, group);
      },
      "buckets of", "parameter 1.weight");
  expect_difference(
      [](const std::shared_ptr<ProcessGroup>& group) {
        torch::nn::Sequential net(
            torch::nn::Linear(3, 3),
            torch::nn::BatchNorm1d(
                torch::nn::BatchNorm1dOptions(3).affine(false).track_running_stats(group->rank() !=
                                                                                   2)));
        DistributedDataParallel model(net, group);
      },
      "buffer 1.running_mean", "nothing more");
  expect_difference(
      [](const std::shared_ptr<ProcessGroup>& group) {
        torch::nn::Sequential net(torch::nn::Linear(3, 3));
        DistributedDataParallel model(net, group, {.bucket_cap_mb = group->rank() == 2 ? 5. : 25.});
      },
      "buckets of 1048576 and 26214400 bytes", "buckets of 1048576 and 5242880 bytes");
}

TEST_P(ReducerErrors, WhatCannotBeReducedIsRefused) {
  run(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const at::Tensor leaf = torch::ones({2}, torch::requires_grad());
    EXPECT_THROW(Reducer(std::vector{leaf}, nullptr), UsageError);
    EXPECT_THROW(Reducer(std::vector{leaf * 2}, group), UsageError);
    EXPECT_THROW(Reducer(std::vector{at::Tensor()}, group), UsageError);
    EXPECT_THROW(Reducer(std::vector{leaf}, group, {.bucket_cap_mb = -1}), UsageError);
    EXPECT_THAT(message_of<UsageError>([&] { Reducer(std::vector{torch::ones({2})}, group); }),
                HasSubstr("no parameter requires a gradient"));
    EXPECT_THROW(Reducer(std::vector<at::Tensor>{}, group), UsageError);
    Reducer reducer(std::vector{leaf}, group);
    EXPECT_THROW(reducer.register_comm_hook({}), UsageError);
  });
}

}  // namespace
}  // namespace lockstep::testing
