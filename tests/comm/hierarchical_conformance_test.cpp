// SPDX-License-Identifier: BSD-3-Clause
// A hierarchical group does what every backend must do, on two hosts that are one.
#include "comm/conformance/conformance.h"
#include "comm/conformance/reference.h"
#include "comm/join_on_hosts.h"
#include <ATen/ATen.h>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/remote/gloo/gloo_backend.h"

namespace lockstep::testing {
namespace {

std::shared_ptr<ProcessGroup> join_by_gloo(Rank& rank, const JoinOptions& options) {
  return join_on_hosts(rank, options, make_gloo_backend);
}

const TestedBackend kHierarchical = {
    .name = "hierarchical", .join = join_by_gloo, .groups_in_a_loop = 50};

INSTANTIATE_TEST_SUITE_P(hierarchical, ResultsConformance,
                         ::testing::ValuesIn(cases(kHierarchical, {2, 3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical, LifetimeConformance,
                         ::testing::ValuesIn(cases(kHierarchical, {3})), case_name);
// Of three ranks one has no peer with its index on the other host, of four each has.
INSTANTIATE_TEST_SUITE_P(hierarchical, CallsConformance,
                         ::testing::ValuesIn(cases(kHierarchical, {3, 4})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical, AbsenceConformance,
                         ::testing::ValuesIn(cases(kHierarchical, {3, 4})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical, FaultConformance,
                         ::testing::ValuesIn(cases(kHierarchical, {3, 4})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical, TrainingConformance,
                         ::testing::ValuesIn(cases(kHierarchical, {3})), case_name);

TEST(HierarchicalGroup, EveryRankHasTheSameBitsOfTheSum) {
  run_ranks(5, [](Rank& rank) {
    const auto group = join_by_gloo(rank, {});
    for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong}) {
      for (const std::int64_t count : {1, 1000, 300'000, 5'000'000}) {
        const auto inputs = inputs_of_all(rank.size(), type, {count});
        const at::Tensor sum = inputs[static_cast<std::size_t>(rank.rank())].clone();
        group->all_reduce(sum).wait();
        const bool half = type == at::kHalf || type == at::kBFloat16;
        EXPECT_TRUE(at::allclose(sum.to(at::kDouble), reduced(inputs).to(at::kDouble),
                                 half ? 0.05 : 1e-5, half ? 0.1 : 1e-5))
            << count << " of " << c10::toString(type);
        const at::Tensor of_rank_0 = sum.clone();
        group->broadcast(of_rank_0, 0).wait();
        expect_same_bits(sum, of_rank_0, fmt::format("{} of {}", count, c10::toString(type)));
      }
    }
  });
}

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

TEST(HierarchicalGroup, AReduceScatterHasTheBitsOfTheAllReduce) {
  run_on_hosts([](Rank& rank, ProcessGroup& group, int) {
    for (const auto type : all_types()) {
      // The last one goes in several pieces.
      for (const std::int64_t count : {1, 333, 20'000, 500'001}) {
        const at::Tensor input = input_of(rank.rank(), type, {group.size() * count});
        for (const auto op : {ReduceOp::sum, ReduceOp::mean, ReduceOp::max}) {
          if (op == ReduceOp::mean && !can_be_scaled(type)) continue;
          const std::string what = fmt::format("{} of {} {}", name(op), count, c10::toString(type));
          const bool shared = count % 2 == 0 || op == ReduceOp::sum;
          const at::Tensor all = memory_for(group, input, shared);
          const at::Tensor sum = memory_for(group, input, shared);
          group.all_reduce(sum, op).wait();
          const at::Tensor expected = sum.narrow(0, rank.rank() * count, count);
          const at::Tensor output = at::zeros({count}, type);
          group.reduce_scatter_tensor(output, all, op).wait();
          expect_same_bits(output, expected, what);
          expect_same_bits(all, input, "the input of the " + what);
          const at::Tensor columns = input.view({-1, count}).t().contiguous();
          group.reduce_scatter(output.fill_(0), columns.unbind(1), op).wait();
          expect_same_bits(output, expected, "a list of columns: " + what);
          const at::Tensor own = all.narrow(0, rank.rank() * count, count);
          group.reduce_scatter_tensor(own, all, op).wait();
          expect_same_bits(own, expected, "in place: " + what);
        }
        if (rank.failed()) return;
      }
    }
    const at::Tensor input = input_of(rank.rank(), at::kFloat, {group.size() * 100});
    const at::Tensor sum = input.clone();
    group.all_reduce(sum, {.scale = 0.3}).wait();
    const at::Tensor output = at::zeros({100});
    group.reduce_scatter_tensor(output, input, {.scale = 0.3}).wait();
    expect_same_bits(output, sum.narrow(0, rank.rank() * 100, 100), "scaled");
  });
}

TEST(HierarchicalGroup, AnAllGatherIsInTheOrderOfTheRanks) {
  run_on_hosts([](Rank& rank, ProcessGroup& group, int) {
    for (const auto type : {at::kFloat, at::kHalf, at::kByte}) {
      for (const std::int64_t count : {1, 333, 500'001}) {
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

TEST(HierarchicalGroup, EachPartCrossesToAnotherHostOnce) {
  run_on_hosts([](Rank& rank, ProcessGroup& group, int hosts) {
    const std::int64_t count = 500'001;
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

}  // namespace
}  // namespace lockstep::testing
