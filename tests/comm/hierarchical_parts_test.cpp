// SPDX-License-Identifier: BSD-3-Clause
// All-gather and reduce-scatter of a hierarchical group whose hosts have the same number of ranks.
#include <csignal>

#include "comm/conformance/expect_error.h"
#include "comm/conformance/expect_lost.h"
#include "comm/conformance/reference.h"
#include "comm/join_on_hosts.h"
#include "support/rank_processes.h"
#include <ATen/ATen.h>
#include <fmt/format.h>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/make_backends.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

// Counts the bytes that this process sends to ranks on other hosts in all_gather and
// reduce_scatter, if the group consists of the ranks of one index.
class CountingBackend final : public Backend {
 public:
  CountingBackend(std::shared_ptr<Backend> inner, int size)
      : inner_(std::move(inner)), size_(size) {}

  static std::int64_t bytes_sent() { return bytes_sent_; }

  std::string_view name() const override { return inner_->name(); }
  Work start(const CollectiveArgs& args) override {
    if (args.call.collective == Collective::all_gather ||
        args.call.collective == Collective::reduce_scatter) {
      const auto width = static_cast<std::int64_t>(c10::elementSize(args.call.type));
      bytes_sent_ += args.call.elements * width * (size_ - 1);
    }
    return inner_->start(args);
  }
  at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) override {
    return inner_->empty(sizes, options);
  }
  std::shared_ptr<Backend> split(const std::string& name, Membership membership) override {
    const int size = membership.world_size;
    return std::make_shared<CountingBackend>(inner_->split(name, std::move(membership)), size);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }
  void leave_failing(const std::string& reason) override { inner_->leave_failing(reason); }

 private:
  static inline std::int64_t bytes_sent_ = 0;
  std::shared_ptr<Backend> inner_;
  int size_;
};

std::shared_ptr<Backend> count_bytes_of_gloo(const Membership& membership,
                                             const GroupOptions& options, const std::string& name) {
  return std::make_shared<CountingBackend>(make_gloo_backend(membership, options, name),
                                           membership.world_size);
}

// Runs the function on two hosts of three ranks and on three of two, with the ranks of a host side
// by side and far apart.
void run_on_hosts(const std::function<void(Rank&, ProcessGroup&, int hosts)>& function) {
  constexpr int kRanks = 6;
  for (const int hosts : {2, 3}) {
    for (const bool side_by_side : {true, false}) {
      run_ranks(kRanks, [&](Rank& rank) {
        rank.note(fmt::format("{} hosts, ranks {}", hosts, side_by_side ? "in order" : "mixed"));
        const int host = side_by_side ? rank.rank() * hosts / kRanks : rank.rank() % hosts;
        const auto group = join_on_hosts(rank, {}, count_bytes_of_gloo, host);
        function(rank, *group, hosts);
      });
    }
  }
}

at::Tensor memory_for(ProcessGroup& group, const at::Tensor& contents, bool shared) {
  at::Tensor tensor = group.empty(contents.sizes(), contents.scalar_type());
  if (!shared) tensor = at::empty_like(contents);
  return tensor.copy_(contents);
}

// Of all ways to call a reduce_scatter: this rank's part of the all_reduce.
void expect_part_of_all_reduce(Rank& rank, ProcessGroup& group, const at::Tensor& input,
                               const AllReduceOptions& options, bool shared,
                               const std::string& what) {
  const std::int64_t count = input.numel() / group.size();
  const auto part = [&](const at::Tensor& all) {
    return all.narrow(0, rank.rank() * count, count);
  };
  const at::Tensor sum = memory_for(group, input, shared);
  group.all_reduce(sum, options).wait();
  const at::Tensor all = memory_for(group, input, shared);
  const at::Tensor output = at::zeros({count}, input.scalar_type());
  group.reduce_scatter_tensor(output, all, options).wait();
  expect_same_bits(output, part(sum), what);
  expect_same_bits(all, input, "the input of the " + what);
  const at::Tensor columns = input.view({-1, count}).t().contiguous();
  group.reduce_scatter(output.fill_(0), columns.unbind(1), options).wait();
  expect_same_bits(output, part(sum), "a list of columns: " + what);
  group.reduce_scatter_tensor(part(all), all, options).wait();
  expect_same_bits(part(all), part(sum), "in place: " + what);
}

TEST(HierarchicalParts, AReduceScatterHasTheBitsOfTheAllReduce) {
  run_on_hosts([](Rank& rank, ProcessGroup& group, int) {
    for (const bool shared : {true, false}) {
      for (const auto type : all_types()) {
        const at::Tensor input = input_of(rank.rank(), type, {group.size() * 333});
        for (const auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max}) {
          if (op == ReduceOp::mean && !can_be_scaled(type)) continue;
          expect_part_of_all_reduce(rank, group, input, {.op = op}, shared,
                                    fmt::format("{} of {}", name(op), c10::toString(type)));
        }
      }
      // These go in several pieces.
      for (const auto type : {at::kFloat, at::kHalf}) {
        const at::Tensor input = input_of(rank.rank(), type, {group.size() * 400'001});
        expect_part_of_all_reduce(rank, group, input, {.op = ReduceOp::mean, .scale = 0.3}, shared,
                                  fmt::format("scaled mean of many {}", c10::toString(type)));
      }
    }
  });
}

TEST(HierarchicalParts, AnAllGatherIsInTheOrderOfTheRanks) {
  run_on_hosts([](Rank& rank, ProcessGroup& group, int) {
    for (const auto type : {at::kFloat, at::kHalf, at::kByte}) {
      for (const std::int64_t count : {1, 400'001}) {
        const auto inputs = inputs_of_all(group.size(), type, {count});
        const at::Tensor& input = inputs[static_cast<std::size_t>(rank.rank())];
        const at::Tensor expected = at::cat(inputs);
        const std::string what = fmt::format("{} {}", count, c10::toString(type));
        for (const bool shared : {true, false}) {
          const at::Tensor all = memory_for(group, at::zeros_like(expected), shared);
          group.all_gather_into_tensor(all, input).wait();
          expect_same_bits(all, expected, what);
          all.fill_(0);
          const at::Tensor own = all.narrow(0, rank.rank() * count, count).copy_(input);
          group.all_gather_into_tensor(all, own).wait();
          expect_same_bits(all, expected, "in place: " + what);
          const at::Tensor columns = at::zeros({count, group.size()}, type);
          group.all_gather(columns.unbind(1), input).wait();
          expect_same_bits(columns, at::stack(inputs, 1), "a list of columns: " + what);
        }
        if (rank.failed()) return;
      }
    }
  });
}

TEST(HierarchicalParts, EachPartCrossesToAnotherHostOnce) {
  run_on_hosts([](Rank& rank, ProcessGroup& group, int hosts) {
    const std::int64_t count = 400'001;
    const at::Tensor all = at::ones({group.size() * count});
    const at::Tensor part = at::ones({count});
    const auto bytes_to_other_hosts = static_cast<std::int64_t>(part.nbytes()) * (hosts - 1);
    const std::int64_t before = CountingBackend::bytes_sent();
    group.all_gather_into_tensor(all, part).wait();
    EXPECT_EQ(CountingBackend::bytes_sent() - before, bytes_to_other_hosts) << rank.rank();
    group.reduce_scatter_tensor(part, all).wait();
    EXPECT_EQ(CountingBackend::bytes_sent() - before, 2 * bytes_to_other_hosts) << rank.rank();
  });
}

void all_gather(ProcessGroup& group, std::int64_t count) {
  group.all_gather_into_tensor(at::zeros({group.size() * count}), at::ones({count})).wait();
}
void reduce_scatter(ProcessGroup& group, std::int64_t count, ReduceOp op = ReduceOp::sum) {
  group.reduce_scatter_tensor(at::zeros({count}), at::ones({group.size() * count}), op).wait();
}

std::shared_ptr<ProcessGroup> join_on_two_hosts(Rank& rank, const JoinOptions& options = {}) {
  return join_on_hosts(rank, options, make_gloo_backend);
}

TEST(HierarchicalParts, CallsThatDifferBetweenHostsAreErrorsOnEveryRank) {
  using Make = std::function<void(ProcessGroup&)>;
  struct Difference {
    Make on_first_host;
    Make on_second_host;
    std::vector<std::string> patterns;
  };
  const std::vector<Difference> differences{
      {[](auto& group) { reduce_scatter(group, 7); },
       [](auto& group) { reduce_scatter(group, 7, ReduceOp::mean); },
       {"reduce_scatter", "sum", "mean"}},
      {[](auto& group) { reduce_scatter(group, 700'000); },
       [](auto& group) { reduce_scatter(group, 700'001); },
       {"reduce_scatter", "700000", "700001"}},
      {[](auto& group) { all_gather(group, 700'000); },
       [](auto& group) { all_gather(group, 7); },
       {"all_gather", "700000 Float", "7 Float"}},
      {[](auto& group) { all_gather(group, 0); },
       [](auto& group) { all_gather(group, 7); },
       {"all_gather", "0 Float", "7 Float"}},
      {[](auto& group) { all_gather(group, 700'000); },
       [](auto& group) { reduce_scatter(group, 700'000); },
       {"all_gather", "reduce_scatter"}},
      {[](auto& group) { reduce_scatter(group, 7); },
       [](auto& group) { group.barrier().wait(); },
       {"reduce_scatter", "barrier"}},
      {[](auto& group) { group.all_reduce(at::ones({7})).wait(); },
       [](auto& group) { all_gather(group, 7); },
       {"all_reduce", "all_gather"}}};
  run_ranks(4, [&](Rank& rank) {
    for (std::size_t i = 0; i < differences.size(); ++i) {
      const auto group =
          join_on_two_hosts(rank, {.timeout = 20s, .key = fmt::format("group-{}", i)});
      const auto& [on_first, on_second, patterns] = differences[i];
      expect_error<UsageError>(fmt::format("difference {}", i), patterns,
                               [&] { (rank.rank() < 2 ? on_first : on_second)(*group); });
    }
  });
}

TEST(HierarchicalParts, ARankKilledBetweenThePhasesIsNamed) {
  for (const int victim : {0, 3}) {
    run_ranks(4,
              [&](Rank& rank) {
                const auto group = join_on_two_hosts(rank);
                expect_lost(
                    rank, *group, victim,
                    {"(died|: its connection was lost) before", "(all_gather|reduce_scatter) #"},
                    [&] {
                      for (int round = 0;; ++round) {
                        if (rank.rank() == victim && round == 10) rank.cue("under way");
                        all_gather(*group, 300'000);
                        reduce_scatter(*group, 300'000);
                      }
                    });
                expect_soon(rank, victim);
              },
              {.signals = {{.rank = victim, .cue = "under way", .signal = SIGKILL}}});
  }
}

TEST(HierarchicalParts, ARankThatDoesNotCallIsNamed) {
  run_ranks(4, [](Rank& rank) {
    const auto group = join_on_two_hosts(rank, {.timeout = kShortTimeout});
    if (rank.rank() == 1) {
      for (const int other : {0, 2, 3}) rank.await(other, "timed out");
    } else {
      expect_error<TimeoutError>("a missing rank", {"reduce_scatter #1", "rank 1 "},
                                 [&] { reduce_scatter(*group, 300'000); });
      rank.cue("timed out");
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
