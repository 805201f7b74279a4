// SPDX-License-Identifier: BSD-3-Clause
// Ranks that train by themselves and average their parameters from time to time.
#include "tests/parallel/errors.h"
#include "tests/parallel/models.h"
#include "tests/support/join.h"
#include "tests/support/skip_or_fail.h"
#include "tests/support/thread_group.h"
#include <gmock/gmock.h>
#include <sched.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/hooks/comm_hooks.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/model_checks.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

bool same_on_all_ranks(const at::Tensor& tensor, ProcessGroup& group) {
  const at::Tensor lowest = tensor.detach().clone();
  const at::Tensor highest = tensor.detach().clone();
  group.all_reduce(lowest, ReduceOp::min).wait();
  group.all_reduce(highest, ReduceOp::max).wait();
  return torch::equal(lowest, highest);
}

// One step on this rank's own data. True if all ranks have the same gradient.
bool take_step_alike(DistributedDataParallel<Mlp>& model, Mlp& net, ProcessGroup& group) {
  reset_gradients(*net);
  model(values({4, 6}, group.rank())).square().mean().backward();
  const torch::NoGradGuard no_grad;
  for (at::Tensor& parameter : net->parameters()) parameter.sub_(parameter.grad(), 0.1);
  return same_on_all_ranks(net->middle->weight.grad(), group);
}

TEST(LocalSgd, RanksTrainApartBetweenTheAverages) {
  run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    Mlp net;
    DistributedDataParallel model(net, group);
    model->register_comm_hook(post_local_sgd_hook(
        {.group = group, .start_localSGD_iter = 2, .post_local_gradient_allreduce = false}));
    PeriodicModelAverager averager({.period = 3, .warmup_steps = 2}, group);
    for (int step = 0; step < 10; ++step) {
      EXPECT_EQ(take_step_alike(model, net, *group), step < 2) << "step " << step;
      averager.average_parameters(net->parameters());
      const bool averaged = step < 2 || (step - 2) % 3 == 0;
      for (const at::Tensor& parameter : net->parameters()) {
        EXPECT_EQ(same_on_all_ranks(parameter, *group), averaged) << "step " << step;
      }
    }
    EXPECT_THROW(
        {
          take_step_alike(model, net, *group);
          check_in_sync(model);
        },
        OutOfSync);
  });
}

TEST(LocalSgd, SubgroupsAverageTheirGradients) {
  run_rank_threads(4, [](const std::shared_ptr<ProcessGroup>& group) {
    const bool low = group->rank() < 2;
    const auto pair = group->split(low ? std::vector{0, 1} : std::vector{2, 3});
    Mlp net;
    DistributedDataParallel model(net, group);
    model->register_comm_hook(post_local_sgd_hook({.group = group, .subgroup = pair}));
    for (int step = 0; step < 2; ++step) EXPECT_FALSE(take_step_alike(model, net, *group));
    EXPECT_TRUE(same_on_all_ranks(net->middle->weight.grad(), *pair));
  });
}

TEST(LocalSgd, RefusesAShardedOptimizer) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    for (const bool alone : {false, true}) {  // the error ends the group
      Mlp net;
      DistributedDataParallel model(net, group);
      optim::Adam optimizer(model, 1e-3);
      model->register_comm_hook(
          post_local_sgd_hook({.group = group, .post_local_gradient_allreduce = !alone}));
      const std::string message = message_of<UsageError>([&] {
        model(values({4, 6})).sum().backward();
      });
      // If the subgroup is the whole group, every rank has all gradients.
      EXPECT_THAT(message, HasSubstr(alone ? "a sharded optimizer was made from the model" : ""));
      EXPECT_EQ(message.empty(), !alone);
    }
  });
}

// After they have joined, rank 2 moves to a network namespace of its own, as if to another host.
TEST(LocalSgd, TheDefaultSubgroupIsTheHost) {
  if (::geteuid() != 0) return skip_or_fail("a network namespace needs root");
  const auto outcomes = run_ranks(3, [](Rank& rank) {
    const auto group = join(rank, {.backend = "shm"});
    const bool moved = rank.rank() != 2 || ::unshare(CLONE_NEWNET) == 0;
    const at::Tensor all_moved = at::full({1}, moved ? 1 : 0, at::kInt);
    group->all_reduce(all_moved, ReduceOp::min).wait();
    if (all_moved.item<int>() == 0) return rank.report("refused");
    Mlp net;
    set_weights(*net, 1);
    DistributedDataParallel model(net, group);
    model->register_comm_hook(post_local_sgd_hook({.group = group}));
    EXPECT_FALSE(take_step_alike(model, net, *group));
    const auto host = group->split(rank.rank() == 2 ? std::vector{2} : std::vector{0, 1});
    EXPECT_TRUE(same_on_all_ranks(net->middle->weight.grad(), *host));
  });
  if (outcomes[0].result == "refused") skip_or_fail("network namespaces are not allowed here");
}

TEST(PeriodicModelAverager, AveragesEveryTypeAndLayoutByOneCallPerType) {
  run_rank_threads(3, [](const std::shared_ptr<ProcessGroup>& group) {
    std::vector<at::Tensor> parameters;
    std::vector<at::Tensor> expected;
    const auto add = [&](const std::function<at::Tensor(int)>& of_rank) {
      parameters.push_back(of_rank(group->rank()).requires_grad_());
      expected.push_back((of_rank(0) + of_rank(1) + of_rank(2)) / 3);
    };
    add([](int rank) { return values({4, 3}, rank); });
    add([](int rank) { return values({2}, rank).to(at::kDouble); });
    add([](int rank) { return values({3, 5}, rank).t(); });
    add([](int rank) { return at::complex(values({3}, rank), values({3}, rank + 5)); });
    add([](int rank) { return at::full({}, rank, at::kFloat); });
    PeriodicModelAverager averager({.period = 1}, group);
    averager.average_parameters(parameters);  // also compares the ranks' options
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      EXPECT_TRUE(torch::allclose(parameters[i], expected[i])) << i;
    }
    const auto before = group->calls_made();
    averager.average_parameters(parameters);
    EXPECT_EQ(group->calls_made() - before, 2);
  });
}

TEST(PeriodicModelAverager, RefusesOtherParametersOnOneRank) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    std::vector<at::Tensor> parameters{torch::ones({4, 8}), torch::ones({8})};
    if (group->rank() == 1) std::swap(parameters[0], parameters[1]);
    PeriodicModelAverager averager({.period = 1}, *group);
    EXPECT_THAT(message_of<UsageError>([&] { averager.average_parameters(parameters); }),
                AllOf(HasSubstr("rank 0 has parameter 0: Float [4, 8]"),
                      HasSubstr("rank 1 has parameter 0: Float [8]")));
  });
}

TEST(PeriodicModelAverager, RefusesAnotherPeriodOnOneRank) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    PeriodicModelAverager averager({.period = 2 + group->rank()}, *group);
    EXPECT_THAT(message_of<UsageError>([&] { averager.average_parameters({torch::ones({2})}); }),
                AllOf(HasSubstr("rank 0 has period 2"), HasSubstr("rank 1 has period 3")));
  });
}

TEST(LocalSgd, RefusesOptionsOutOfRange) {
  run_rank_threads(2, [](const std::shared_ptr<ProcessGroup>& group) {
    const auto averager = [&](PeriodicModelAveragerOptions options) {
      return message_of<UsageError>([&] { PeriodicModelAverager(options, group); });
    };
    EXPECT_THAT(averager({}), HasSubstr("period is 0"));
    EXPECT_THAT(averager({.period = 1, .warmup_steps = -1}), HasSubstr("warmup_steps is -1"));
    PeriodicModelAverager every_step({.period = 1}, group);
    EXPECT_THAT(message_of<UsageError>([&] {
                  every_step.average_parameters({values({2}), at::Tensor()});
                }),
                HasSubstr("parameter 1 is an undefined tensor"));
    EXPECT_THAT(message_of<UsageError>(
                    [&] { post_local_sgd_hook({.group = group, .start_localSGD_iter = -1}); }),
                HasSubstr("start_localSGD_iter is -1"));
  });
}

}  // namespace
}  // namespace lockstep::testing
