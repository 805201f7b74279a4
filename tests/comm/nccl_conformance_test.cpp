// SPDX-License-Identifier: BSD-3-Clause
// The nccl backend does what every backend must do, over a stand-in for NCCL that lets ranks share
// a GPU. On a machine without one, the GPU is one too.
#include <csignal>
#include <cstdlib>

#include "comm/conformance/conformance.h"
#include "comm/conformance/expect_error.h"
#include "comm/join_on_hosts.h"
#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/comm/core/make_backends.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/c10d_store.h"

namespace lockstep::testing {
namespace {

at::Device gpu_of(const Rank& rank) {
  const int gpus = c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount();
  return {at::kCUDA, static_cast<c10::DeviceIndex>(rank.rank() % gpus)};
}

std::shared_ptr<ProcessGroup> join_by_nccl(Rank& rank, JoinOptions options) {
  ::setenv("LOCKSTEP_NCCL_LIBRARY", LOCKSTEP_NCCL_STAND_IN, 1);
  options.backend = "nccl";
  options.device = gpu_of(rank);
  return join(rank, options);
}

std::shared_ptr<ProcessGroup> join_hosts_by_nccl(Rank& rank, JoinOptions options) {
  ::setenv("LOCKSTEP_NCCL_LIBRARY", LOCKSTEP_NCCL_STAND_IN, 1);
  options.device = gpu_of(rank);
  c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(*options.device);
  return join_on_hosts(rank, options, make_nccl_backend);
}

const TestedBackend kNccl = {.name = "nccl",
                             .join = join_by_nccl,
                             .groups_in_a_loop = 50,
                             .device = at::kCUDA,
                             .sums_by_a_library = true};
// Where a wait is to throw, or threads wait for each other.
const TestedBackend kNcclThatBlocks = {.name = "nccl",
                                       .join =
                                           [](Rank& rank, const JoinOptions& options) {
                                             ::setenv("TORCH_NCCL_BLOCKING_WAIT", "1", 1);
                                             return join_by_nccl(rank, options);
                                           },
                                       .groups_in_a_loop = 50,
                                       .device = at::kCUDA,
                                       .sums_by_a_library = true};
const TestedBackend kNcclThatCompares = {.name = "nccl",
                                         .join = [](Rank& rank, const JoinOptions& options) {
                                           ::setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 1);
                                           return join_by_nccl(rank, options);
                                         }};

// The sums within a host are Lockstep's, those between hosts NCCL's.
const TestedBackend kHierarchicalNccl = {.name = "hierarchical",
                                         .join = join_hosts_by_nccl,
                                         .groups_in_a_loop = 20,
                                         .device = at::kCUDA,
                                         .sums_by_a_library = true};

const TestedBackend kHierarchicalNcclThatCompares = {
    .name = "hierarchical",
    .join =
        [](Rank& rank, const JoinOptions& options) {
          ::setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 1);
          return join_hosts_by_nccl(rank, options);
        },
    .device = at::kCUDA};

// One rank is enough for NCCL itself, where there is a GPU.
const TestedBackend kAlone = {
    .name = "nccl",
    .join =
        [](Rank& rank, const JoinOptions& options) {
          if (*LOCKSTEP_NCCL_OF_ONE_RANK != '\0') {
            ::setenv("LOCKSTEP_NCCL_LIBRARY", LOCKSTEP_NCCL_OF_ONE_RANK, 1);
          }
          Membership alone;
          alone.store = make_file_store(rank.folder() + "/" + options.key, 1, options.timeout);
          return group_by(make_nccl_backend, alone,
                          {.timeout = options.timeout, .device = at::Device(at::kCUDA, 0)}, "nccl");
        },
    .device = at::kCUDA,
    .sums_by_a_library = true};

// NCCL multiplies each rank's elements before it adds them.
TEST(NcclGroup, ScalesSums) {
  run_ranks(3, [](Rank& rank) {
    const auto group = join_by_nccl(rank, {});
    for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16}) {
      for (const double scale : {1.0 / 3, -7.25}) {
        const at::Tensor input = at::arange(1000).div(100).to(type);
        const at::Tensor tensor = input.to(group->device());
        group->all_reduce(tensor, {.scale = scale}).wait();
        EXPECT_TRUE(at::allclose(tensor.cpu().to(at::kDouble), input.to(at::kDouble) * 3 * scale,
                                 type == at::kBFloat16 ? 2e-2 : 4e-3, 1e-2))
            << type;
      }
    }
  });
}

// The job has two hosts of two ranks each. What its launcher says of them is wrong for its parts.
TEST(NcclGroup, RoundsInPartsOfTheJobThatSpanHosts) {
  run_ranks(4, [](Rank& rank) {
    ::setenv("LOCKSTEP_NCCL_LIBRARY", LOCKSTEP_NCCL_STAND_IN, 1);
    const JoinOptions options;
    Membership member = rendezvous({.init_method = rank.rendezvous_url(options.key),
                                    .rank = rank.rank(),
                                    .world_size = rank.size(),
                                    .timeout = options.timeout});
    member.local_rank = rank.rank() % 2;
    member.local_world_size = 2;
    for (const char* machine : {"one", "one", "two", "two"}) {
      member.processes.push_back({.machine = machine});
    }
    const auto group = group_by(make_nccl_backend, member,
                                {.timeout = options.timeout, .device = gpu_of(rank)}, "nccl");
    const auto sum_in = [&](const std::vector<int>& ranks) {
      const at::Tensor tensor = at::full({3}, 1 + 1. / 4096).to(group->device());
      group->split(ranks)->all_reduce_compressed(tensor, at::kHalf, {.op = ReduceOp::mean}).wait();
      return tensor[0].item<double>();
    };
    EXPECT_EQ(sum_in(rank.rank() < 2 ? std::vector{0, 1} : std::vector{2, 3}), 1 + 1. / 4096);
    EXPECT_EQ(sum_in(rank.rank() % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3}), 1);
    EXPECT_EQ(sum_in(rank.rank() < 3 ? std::vector{0, 1, 2} : std::vector{3}),
              rank.rank() < 3 ? 1 : 1 + 1. / 4096);
  });
}

// Two hosts of two ranks each, so that the parts of ranks go through phases.
TEST(NcclGroup, GathersAndAddsUpPartsBetweenHosts) {
  run_ranks(4, [](Rank& rank) {
    const auto group = join_hosts_by_nccl(rank, {});
    for (const auto type : {at::kFloat, at::kHalf}) {
      for (const std::int64_t count : {3, 700'001}) {
        const auto options = at::TensorOptions(type).device(group->device());
        const at::Tensor all = at::empty({4 * count}, options);
        const at::Tensor own = all.narrow(0, rank.rank() * count, count).fill_(rank.rank() + 1);
        group->all_gather_into_tensor(all, own).wait();
        const at::Tensor parts = all.cpu().view({4, count});
        EXPECT_TRUE(parts.equal(at::arange(1, 5).to(type).view({4, 1}).expand({4, count})));
        group->reduce_scatter_tensor(own, all, ReduceOp::mean).wait();
        EXPECT_TRUE(own.cpu().equal(parts[rank.rank()])) << type << " " << count;
      }
    }
  });
}

TEST(NcclGroup, ScalesEveryElementOfOneRank) {
  run_ranks(1, [](Rank& rank) {
    const auto group = kAlone.join(rank, {});
    const at::Tensor input = at::arange(65'537, at::kDouble);
    const at::Tensor tensor = input.to(group->device());
    group->all_reduce(tensor, {.scale = 0.5}).wait();
    EXPECT_TRUE(tensor.cpu().equal(input * 0.5));
  });
}

// The thread goes on; what it has the device do afterwards comes after the sum.
TEST(NcclGroup, AWaitHasTheStreamWait) {
  run_ranks(2, [](Rank& rank) {
    const auto group = join_by_nccl(rank, {});
    const at::Tensor tensor = at::ones({1 << 16}).to(group->device());
    if (rank.rank() == 1) rank.await(0, "went on");
    group->all_reduce(tensor).wait();
    rank.cue("went on");  // rank 0, though rank 1 has not called yet
    EXPECT_TRUE(tensor.cpu().eq(2).all().item<bool>());
  });
}

// What the stream waits for ends with the rank that it waits for, and the next call says why.
TEST(NcclGroup, ADeathFreesTheStreamAndIsToldByTheNextCall) {
  run_ranks(2,
            [](Rank& rank) {
              const auto group = join_by_nccl(rank, {});
              if (rank.rank() == 1) {
                rank.await(0, "went on");
                rank.cue("killed here");
                rank.await_signal();
              }
              const at::Tensor tensor = at::ones({1 << 16}).to(group->device());
              group->all_reduce(tensor).wait();
              rank.cue("went on");
              tensor.cpu();
              expect_error<PeerLost>("the next call", {"rank 1", "died"}, [&] {
                const Deadline deadline = Deadline::after(std::chrono::seconds(20));
                while (!deadline.passed()) group->barrier().wait();
              });
            },
            {.signals = {{.rank = 1, .cue = "killed here", .signal = SIGKILL}}});
}

TEST(NcclGroup, WantsAGpu) {
  run_ranks(2, [](Rank& rank) {
    JoinOptions options;
    options.backend = "nccl";
    options.device = at::kCPU;
    expect_error<UsageError>("a rank on a CPU", {"joins GPUs", "cpu", "shm or gloo"},
                             [&] { join(rank, options); });
  });
}

// "auto" takes it where each rank has a GPU, and only there.
TEST(NcclGroup, IsChosenWhereEachRankHasAGpu) {
  ::setenv("LOCKSTEP_NCCL_LIBRARY", LOCKSTEP_NCCL_STAND_IN, 1);
  run_ranks(2, [](Rank& rank) {
    // Counted here: CUDA works in no fork of a process that has asked it.
    if (c10::impl::VirtualGuardImpl(at::kCUDA).deviceCount() < rank.size()) return;
    JoinOptions options;
    options.device = at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(rank.rank()));
    EXPECT_EQ(join(rank, options)->backend(), "nccl");
  });
  run_ranks(2, [](Rank& rank) {
    JoinOptions options;
    options.device = at::Device(at::kCUDA, 0);
    EXPECT_EQ(join(rank, options)->backend(), "shm");
  });
  run_ranks(2, [](Rank& rank) {
    JoinOptions options;
    options.device = rank.rank() == 0 ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
    EXPECT_EQ(join(rank, options)->backend(), "shm");
  });
}

TEST(NcclGroup, ALibraryThatIsMissingIsNamed) {
  run_ranks(2, [](Rank& rank) {
    ::setenv("LOCKSTEP_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
    JoinOptions options;
    options.backend = "nccl";
    options.device = at::Device(at::kCUDA, 0);
    expect_error<BackendError>("no library", {"/nowhere/libnccl.so.2", "LOCKSTEP_NCCL_LIBRARY"},
                               [&] { join(rank, options); });
  });
}

INSTANTIATE_TEST_SUITE_P(nccl_alone, ResultsConformance, ::testing::ValuesIn(cases(kAlone, {1})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(nccl, ResultsConformance, ::testing::ValuesIn(cases(kNccl, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(nccl, LifetimeConformance,
                         ::testing::ValuesIn(cases(kNcclThatBlocks, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(nccl, CallsConformance, ::testing::ValuesIn(cases(kNcclThatCompares, {2})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(nccl, AbsenceConformance, ::testing::ValuesIn(cases(kNcclThatBlocks, {3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(nccl, FaultConformance, ::testing::ValuesIn(cases(kNcclThatBlocks, {3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(nccl, TrainingConformance, ::testing::ValuesIn(cases(kNccl, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical_nccl, ResultsConformance,
                         ::testing::ValuesIn(cases(kHierarchicalNccl, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical_nccl, LifetimeConformance,
                         ::testing::ValuesIn(cases(kHierarchicalNccl, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical_nccl, CallsConformance,
                         ::testing::ValuesIn(cases(kHierarchicalNcclThatCompares, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical_nccl, AbsenceConformance,
                         ::testing::ValuesIn(cases(kHierarchicalNccl, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical_nccl, FaultConformance,
                         ::testing::ValuesIn(cases(kHierarchicalNccl, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical_nccl, TrainingConformance,
                         ::testing::ValuesIn(cases(kHierarchicalNccl, {3})), case_name);

}  // namespace
}  // namespace lockstep::testing
