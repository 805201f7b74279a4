// SPDX-License-Identifier: BSD-3-Clause
// Calls that do not match between ranks, or that need more memory than there is.
#include "comm/conformance/conformance.h"
#include "comm/conformance/expect_error.h"
#include "comm/conformance/expect_lost.h"
#include "comm/conformance/reference.h"
#include "support/limits.h"
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/core/process/memory.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

struct Mismatch {
  std::string what;
  // What the last rank does, and what the others do.
  std::function<void(ProcessGroup&)> last;
  std::function<void(ProcessGroup&)> others;
  // Found in the message on every rank.
  std::vector<std::string> patterns;
};

// A tensor for each rank.
std::vector<at::Tensor> alike(ProcessGroup& group, const at::Tensor& tensor) {
  std::vector<at::Tensor> tensors;
  for (int r = 0; r < group.size(); ++r) tensors.push_back(at::zeros_like(tensor));
  return tensors;
}

std::vector<Mismatch> mismatches() {
  const auto reduce = [](std::vector<at::Tensor> tensors, AllReduceOptions options = {}) {
    return [=](ProcessGroup& group) { group.all_reduce(tensors, options).wait(); };
  };
  const at::Tensor seven = at::zeros({7});
  const at::Tensor eight = at::zeros({8});
  const at::Tensor large = at::zeros({100'001});
  return {
      {"operation",
       reduce({seven}),
       [=](auto& group) { group.broadcast(seven, 0).wait(); },
       {"all_reduce", "broadcast"}},
      {"operation of large tensors",
       reduce({large}),
       [=](auto& group) { group.broadcast(large, 0).wait(); },
       {"all_reduce", "broadcast"}},
      {"barrier",
       reduce({seven}),
       [](auto& group) { group.barrier().wait(); },
       {"all_reduce", "barrier"}},
      {"barrier beside large tensors",
       [](auto& group) { group.barrier().wait(); },
       reduce({large}),
       {"all_reduce", "barrier"}},
      {"type", reduce({seven}), reduce({at::zeros({7}, at::kDouble)}), {"Float", "Double"}},
      {"type of the same width",
       reduce({seven}),
       reduce({at::zeros({7}, at::kInt)}),
       {"Float", "Int"}},
      {"type of the same width, large",
       reduce({large}),
       reduce({at::zeros({100'001}, at::kInt)}),
       {"Float", "Int"}},
      {"size", reduce({seven}), reduce({eight}), {"7", "8"}},
      {"size, small and large", reduce({seven}), reduce({large}), {"7", "100001"}},
      {"size, large", reduce({at::zeros({100'002})}), reduce({large}), {"100002", "100001"}},
      {"size 0", reduce({at::zeros({0})}), reduce({seven}), {"all_reduce", "0", "7"}},
      {"operator", reduce({seven}), reduce({seven}, {.op = ReduceOp::max}), {"sum", "max"}},
      {"operator, large", reduce({large}), reduce({large}, {.op = ReduceOp::max}), {"sum", "max"}},
      {"scale", reduce({seven}), reduce({seven}, {.scale = 0.125}), {"0.125"}},
      {"number of tensors", reduce({seven, eight}), reduce({seven}), {"all_reduce"}},
      {"split of the list", reduce({seven, eight}), reduce({eight, seven}), {"all_reduce"}},
      {"root",
       [=](auto& group) { group.broadcast(seven, 1).wait(); },
       [=](auto& group) { group.broadcast(seven, 0).wait(); },
       {"root 1", "root 0"}},
      {"longer broadcast",
       [=](auto& group) { group.broadcast(large, 0).wait(); },
       [=](auto& group) { group.broadcast(seven, 0).wait(); },
       {"broadcast", "100001", "7 Float"}},
      {"shorter broadcast",
       [=](auto& group) { group.broadcast(seven, 0).wait(); },
       [=](auto& group) { group.broadcast(large, 0).wait(); },
       {"broadcast", "100001", "7 Float"}},
      {"broadcast of nothing",
       [=](auto& group) { group.broadcast(at::zeros({0}), 0).wait(); },
       [=](auto& group) { group.broadcast(seven, 0).wait(); },
       {"broadcast", "0 Float", "7 Float"}},
      {"root of reduce",
       [=](auto& group) { group.reduce(large, 1).wait(); },
       [=](auto& group) { group.reduce(large, 0).wait(); },
       {"root 1", "root 0"}},
      {"root of gather",
       [=](auto& group) { group.gather(kNoTensors, seven, 0).wait(); },
       [=](auto& group) {
         group.gather(group.rank() == 1 ? alike(group, seven) : kNoTensors, seven, 1).wait();
       },
       {"gather", "root 0", "root 1"}},
      {"size in gather",
       [=](auto& group) { group.gather(kNoTensors, seven, 0).wait(); },
       [=](auto& group) {
         group.gather(group.rank() == 0 ? alike(group, eight) : kNoTensors, eight, 0).wait();
       },
       {"gather", "7 Float", "8 Float"}},
      {"size in scatter",
       [=](auto& group) { group.scatter(seven, kNoTensors, 0).wait(); },
       [=](auto& group) {
         group.scatter(eight, group.rank() == 0 ? alike(group, eight) : kNoTensors, 0).wait();
       },
       {"scatter", "7 Float", "8 Float"}},
      {"size in all_gather",
       [=](auto& group) { group.all_gather(alike(group, seven), seven).wait(); },
       [=](auto& group) { group.all_gather(alike(group, eight), eight).wait(); },
       {"all_gather", "7 Float", "8 Float"}},
      {"size in all_gather, large",
       [=](auto& group) { group.all_gather(alike(group, large), large).wait(); },
       [=](auto& group) { group.all_gather(alike(group, eight), eight).wait(); },
       {"all_gather", "100001 Float", "8 Float"}},
      {"operator in reduce_scatter",
       [=](auto& group) { group.reduce_scatter(seven, alike(group, seven)).wait(); },
       [=](auto& group) {
         group.reduce_scatter(seven, alike(group, seven), {.op = ReduceOp::max}).wait();
       },
       {"reduce_scatter", "sum", "max"}},
      {"split", [](auto& group) { group.split({0}); }, reduce({seven}), {"split", "all_reduce"}},
      {"all_to_all",
       [=](auto& group) { group.all_to_all(alike(group, seven), alike(group, seven)).wait(); },
       [](auto& group) { group.barrier().wait(); },
       {"all_to_all", "barrier"}},
      {"empty",
       [](auto& group) { group.empty({7}, at::kFloat); },
       reduce({seven}),
       {"empty", "all_reduce"}},
      {"size of empty",
       [](auto& group) { group.empty({7}, at::kFloat); },
       [](auto& group) { group.empty({70'000}, at::kFloat); },
       {"empty"}},
  };
}

TEST_P(CallsConformance, CallsThatDoNotMatchAreErrorsOnEveryRank) {
  if (size() == 1) GTEST_SKIP() << "a rank alone cannot disagree";
  run([this](Rank& rank) {
    int number = 0;
    for (const auto& mismatch : mismatches()) {
      rank.note(mismatch.what);
      const auto group = join(rank, {.timeout = 20s, .key = fmt::format("group-{}", number++)});
      group->barrier().wait();
      const bool last = rank.rank() == rank.size() - 1;
      auto patterns = mismatch.patterns;
      patterns.push_back(fmt::format("^\\[{}\\] [a-z_]+ #[0-9]+, rank {} of {}: ", backend().name,
                                     rank.rank(), rank.size()));
      if (!last) patterns.push_back(fmt::format("rank {}[^0-9].*called", rank.size() - 1));
      const std::string message =
          expect_error<UsageError>("different " + mismatch.what, patterns,
                                   [&] { (last ? mismatch.last : mismatch.others)(*group); });
      // The group is of no use any more, and goes on saying why.
      expect_error<UsageError>("the call after different " + mismatch.what, mismatch.patterns,
                               [&] { group->barrier().wait(); });
    }
  });
}

// In a hierarchical group the first rank shares its host with another, the last rank does not.
TEST_P(CallsConformance, AnotherCallOfTheFirstRankIsAnErrorOnEveryRank) {
  if (size() == 1) GTEST_SKIP() << "a rank alone cannot disagree";
  const at::Tensor seven = at::zeros({7});
  const at::Tensor large = at::zeros({100'001});
  const auto reduce = [](const at::Tensor& tensor, ReduceOp op) {
    return [=](ProcessGroup& group) { group.all_reduce(tensor, {.op = op}).wait(); };
  };
  const auto barrier = [](ProcessGroup& group) { group.barrier().wait(); };
  const auto broadcast = [=](ProcessGroup& group) { group.broadcast(large, 1).wait(); };
  const std::vector<
      std::pair<std::function<void(ProcessGroup&)>, std::function<void(ProcessGroup&)>>>
      differences{{reduce(seven, ReduceOp::sum), reduce(seven, ReduceOp::mean)},
                  {reduce(large, ReduceOp::sum), reduce(large, ReduceOp::max)},
                  {reduce(seven.to(at::kHalf), ReduceOp::sum), reduce(seven, ReduceOp::sum)},
                  {barrier, reduce(seven, ReduceOp::sum)},
                  {reduce(large, ReduceOp::sum), barrier},
                  {barrier, broadcast},
                  {broadcast, barrier}};
  run([&](Rank& rank) {
    for (std::size_t i = 0; i < differences.size(); ++i) {
      const auto group = join(rank, {.timeout = 20s, .key = fmt::format("group-{}", i)});
      const auto& call = rank.rank() == 0 ? differences[i].first : differences[i].second;
      std::vector<std::string> patterns{"called .*, but .* called"};
      if (rank.rank() != 0) patterns.emplace_back("rank 0[^0-9].*called");
      expect_error<UsageError>(fmt::format("difference {}", i), patterns, [&] { call(*group); });
    }
  });
}

TEST_P(CallsConformance, AnAllToAllThatDoesNotFitTogetherIsAnErrorOnEveryRank) {
  if (size() == 1) GTEST_SKIP() << "a rank alone cannot disagree";
  for (const std::int64_t count : {7, 700'000}) {
    for (const auto& expected : {at::zeros({count + 1}), at::zeros({count}, at::kDouble)}) {
      run([&](Rank& rank) {
        const auto group = join(rank);
        std::vector<at::Tensor> inputs = alike(*group, at::zeros({count}));
        std::vector<at::Tensor> outputs = alike(*group, at::zeros({count}));
        if (rank.rank() == 1) outputs[0] = expected;
        const std::string gives = fmt::format("rank 0 called it with {} Float.*for rank 1", count);
        const std::string expects = fmt::format("with {} {} elements from rank 0", expected.numel(),
                                                c10::toString(expected.scalar_type()));
        expect_error<UsageError>(expects,
                                 {beginning(backend(), rank, "all_to_all"), gives, expects},
                                 [&] { group->all_to_all(outputs, inputs).wait(); });
      });
    }
  }
}

// The system would promise it, and kill whoever writes to it.
TEST_P(CallsConformance, MoreThanTheMachinesMemoryIsRefusedBeforeItIsTaken) {
  const auto in_host_memory = at::TensorOptions(at::kByte).device(at::kCPU);
  run_in_group([&](Rank&, ProcessGroup& group) {
    // Rank 0's figure: what is free changes from one look to the next.
    const at::Tensor too_much =
        at::full({1}, 2 * available_memory() / size(), at::kLong).to(group.device());
    group.broadcast(too_much, 0).wait();
    expect_error<BackendError>("twice what there is", {"memory"}, [&] {
      group.empty({too_much.item<std::int64_t>()}, in_host_memory);
    });
  });
}

TEST_P(CallsConformance, MoreMemoryThanThereIsIsRefusedOnEveryRank) {
  run([this](Rank& rank) {
    const auto group = join(rank, {.key = "all"});
    const auto small = join(rank, {.key = "small"});
    group->barrier().wait();
    if (!limit_memory(1 << 30)) return;
    group->barrier().wait();
    expect_error<BackendError>("4 GiB where there is 1", {"4096", "memory"},
                               [&] { group->empty({1 << 30}, at::kFloat); });
    const at::Tensor tensor = small->empty({1000}, at::kFloat).fill_(1);
    small->all_reduce(tensor).wait();
    EXPECT_EQ(tensor[999].item<int>(), rank.size());
  });
}

}  // namespace
}  // namespace lockstep::testing
