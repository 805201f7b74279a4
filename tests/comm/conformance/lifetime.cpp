// SPDX-License-Identifier: BSD-3-Clause
// Works, groups and tensors: waited for and destroyed in any order, and several groups at once.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>

#include "comm/conformance/conformance.h"
#include "comm/conformance/reference.h"
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <malloc.h>

#include "lockstep/core/process/memory.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

TEST_P(LifetimeConformance, SaysWhoItIs) {
  run([this](Rank& rank) {
    const auto group = join(rank, {.timeout = 12'345ms});
    EXPECT_EQ(group->rank(), rank.rank());
    EXPECT_EQ(group->size(), rank.size());
    EXPECT_EQ(group->local_rank(), rank.rank());
    EXPECT_EQ(group->local_world_size(), rank.size());
    EXPECT_EQ(group->backend(), backend().name);
    EXPECT_EQ(group->timeout(), 12'345ms);
    EXPECT_EQ(group->device().type(), backend().device);
  });
}

TEST_P(LifetimeConformance, WorksAreWaitedForInReverseOrder) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 40; ++i) {
      const std::int64_t count = i % 4 == 0 ? 50'000 : 10 * i;
      tensors.push_back(input_of(rank.rank(), at::kFloat, {count}, i));
      works.push_back(i % 5 == 3 ? group.broadcast(tensors[i], i % group.size())
                                 : group.all_reduce(tensors[i]));
    }
    for (; !works.empty(); works.pop_back()) works.back().wait();
    for (int i = 0; i < 40; ++i) {
      const auto inputs = inputs_of_all(group.size(), at::kFloat, tensors[i].sizes(), i);
      expect_same_bits(tensors[i], i % 5 == 3 ? inputs[i % group.size()] : reduced(inputs),
                       fmt::format("work {}", i));
    }
  });
}

TEST_P(LifetimeConformance, OneOfEachCollectiveIsUnderWayAtOnce) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    const int own = rank.rank();
    const int root = group.size() - 1;
    for (const std::int64_t count : {5, 100'000}) {
      const auto tensors_of = [&](const std::function<double(int)>& value) {
        std::vector<at::Tensor> tensors;
        for (int r = 0; r < group.size(); ++r) tensors.push_back(at::full({count}, value(r)));
        return tensors;
      };
      const auto zeros = [](int) { return 0.0; };
      const at::Tensor input = at::full({count}, own + 1.0);
      const auto inputs = tensors_of([&](int r) { return 10.0 * own + r; });
      const at::Tensor sum = input.clone();
      const at::Tensor sum_on_root = input.clone();
      const at::Tensor of_root = input.clone();
      const auto all = tensors_of(zeros);
      const auto all_on_root = own == root ? tensors_of(zeros) : kNoTensors;
      const auto exchanged = tensors_of(zeros);
      const at::Tensor part_of_root = at::zeros({count});
      const at::Tensor part_of_sum = at::zeros({count});
      std::vector<Work> works;
      works.push_back(group.all_gather(all, input));
      works.push_back(group.reduce(sum_on_root, root));
      works.push_back(group.barrier());
      works.push_back(group.gather(all_on_root, input, root));
      works.push_back(group.all_to_all(exchanged, inputs));
      works.push_back(group.scatter(part_of_root, own == root ? inputs : kNoTensors, root));
      works.push_back(group.broadcast(of_root, root));
      works.push_back(group.reduce_scatter(part_of_sum, inputs));
      works.push_back(group.all_reduce(sum));
      for (; !works.empty(); works.pop_back()) works.back().wait();

      const auto expect_all = [&](const at::Tensor& tensor, double value, const char* what) {
        EXPECT_TRUE((tensor == value).all().item<bool>()) << what << " of " << count;
      };
      const int ranks = group.size();
      const double sum_of_all = ranks * (ranks + 1) / 2.0;
      expect_all(sum, sum_of_all, "all_reduce");
      expect_all(sum_on_root, own == root ? sum_of_all : own + 1, "reduce");
      expect_all(of_root, root + 1, "broadcast");
      expect_all(part_of_root, 10 * root + own, "scatter");
      expect_all(part_of_sum, 10 * (sum_of_all - ranks) + ranks * own, "reduce_scatter");
      for (int r = 0; r < ranks; ++r) {
        expect_all(all[r], r + 1, "all_gather");
        if (own == root) expect_all(all_on_root[r], r + 1, "gather");
        expect_all(exchanged[r], 10 * r + own, "all_to_all");
      }
    }
  });
}

TEST_P(LifetimeConformance, AWorkThatIsDroppedIsWaitedFor) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    const at::Tensor tensor = input_of(rank.rank(), at::kFloat, {5000});
    { const Work dropped = group.all_reduce(tensor); }
    const auto inputs = inputs_of_all(group.size(), at::kFloat, {5000});
    expect_same_bits(tensor, reduced(inputs), "dropped");
    const at::Tensor second = inputs[rank.rank()].clone();
    Work replaced = group.all_reduce(second);
    replaced = group.barrier();
    expect_same_bits(second, reduced(inputs), "replaced by another");
    replaced.wait();
  });
}

TEST_P(LifetimeConformance, PollAdvancesUntilItIsDone) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (const std::int64_t count : {3, 3000, 1'000'000}) {
      const at::Tensor tensor = input_of(rank.rank(), at::kFloat, {count});
      Work work = group.all_reduce(tensor);
      const Deadline deadline = Deadline::after(30s);
      while (!work.poll() && !deadline.passed()) std::this_thread::yield();
      ASSERT_TRUE(work.poll()) << "after 30 seconds";
      expect_same_bits(tensor, reduced(inputs_of_all(group.size(), at::kFloat, {count})), "polled");
      work.wait();
      EXPECT_TRUE(work.poll()) << "after wait()";
    }
  });
}

TEST_P(LifetimeConformance, AWorkIsDoneWithoutItsCallersTensor) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    at::Tensor tensor = input_of(rank.rank(), at::kFloat, {100'000});
    const at::Tensor shared = group.empty({100}, at::kFloat).fill_(1);
    Work work = group.all_reduce({tensor, shared.narrow(0, 1, 50)});
    tensor.reset();
    work.wait();
    EXPECT_EQ(shared.sum().item<int>(), 50 + 50 * group.size());
  });
}

TEST_P(LifetimeConformance, TheGroupMayEndBeforeItsWork) {
  run([this](Rank& rank) {
    for (const std::int64_t count : {10, 200'000}) {
      auto group = join(rank, {.key = fmt::format("group-{}", count)});
      const at::Tensor tensor = input_of(rank.rank(), at::kFloat, {count});
      Work work = group->all_reduce(tensor);
      group.reset();
      work.wait();
      expect_same_bits(tensor, reduced(inputs_of_all(rank.size(), at::kFloat, {count})),
                       fmt::format("{} elements", count));
    }
  });
}

TEST_P(LifetimeConformance, TensorsMayOutliveTheGroup) {
  run([this](Rank& rank) {
    auto group = join(rank);
    const at::Tensor tensor = group->empty({100'000}, at::kFloat);
    const at::Tensor part = group->empty({1000}, at::kFloat).narrow(0, 10, 5);
    tensor.fill_(rank.rank() + 1);
    group->all_reduce(tensor).wait();
    part.fill_(rank.rank());
    group.reset();
    EXPECT_EQ(tensor[99'999].item<int>(), rank.size() * (rank.size() + 1) / 2);
    EXPECT_TRUE((part == rank.rank()).all().item<bool>());
    tensor.fill_(5);
    EXPECT_EQ(tensor.sum().item<double>(), 500'000);
  });
}

// Destroys a group, a work that is under way, and a tensor of the group's memory in every order.
TEST_P(LifetimeConformance, EveryOrderOfDestruction) {
  run([this](Rank& rank) {
    std::vector<int> order = {0, 1, 2};
    int round = 0;
    do {
      rank.note(fmt::format("order {}{}{}", order[0], order[1], order[2]));
      auto group = join(rank, {.key = fmt::format("group-{}", round++)});
      at::Tensor tensor = group->empty({3000}, at::kFloat).fill_(1);
      const at::Tensor outside = at::ones({3000});
      std::optional<Work> work = group->all_reduce({tensor, outside});
      for (const int which : order) {
        if (which == 0) group.reset();
        if (which == 1) work.reset();
        if (which == 2) tensor.reset();
      }
      EXPECT_TRUE((outside == rank.size()).all().item<bool>());
    } while (std::next_permutation(order.begin(), order.end()));
  });
}

struct Footprint {
  std::ptrdiff_t descriptors = 0;
  std::ptrdiff_t mappings = 0;
  std::ptrdiff_t shared_mappings = 0;
  std::int64_t private_kilobytes = 0;

  static Footprint now() {
    Footprint footprint;
    give_back_freed_memory();
    std::ifstream status("/proc/self/status");
    for (std::string name; status >> name;) {
      if (name == "RssAnon:") status >> footprint.private_kilobytes;
    }
    const std::filesystem::directory_iterator descriptors("/proc/self/fd");
    footprint.descriptors = std::distance(begin(descriptors), end(descriptors));
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      ++footprint.mappings;
      const auto permissions = line.substr(line.find(' ') + 1, 4);
      if (permissions.ends_with('s')) ++footprint.shared_mappings;
    }
    return footprint;
  }
};

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

TEST_P(LifetimeConformance, HundredsOfGroupsLeaveNothingBehind) {
  run([this](Rank& rank) {
    // Each arena of glibc takes memory once, and there may be eight for each core.
    ::mallopt(M_ARENA_MAX, 1);
    const auto all = join(rank, {.key = "all"});
    // Ranks may be threads of one process: none is to make or close anything meanwhile.
    const auto footprint = [&] {
      static std::mutex one_at_a_time;
      all->barrier().wait();
      std::unique_lock lock(one_at_a_time);
      const Footprint now = Footprint::now();
      lock.unlock();
      all->barrier().wait();
      return now;
    };
    const auto use_a_group = [&](int round) {
      rank.note(fmt::format("group {}", round));
      const auto group = join(rank, {.key = fmt::format("group-{}", round)});
      const at::Tensor tensor = group->empty({1000}, at::kFloat).fill_(1);
      const at::Tensor ordinary = at::ones({20'000});
      group->all_reduce({tensor, ordinary}).wait();
      EXPECT_EQ(tensor[999].item<int>() + ordinary[19'999].item<int>(), 2 * rank.size());
    };
    // A sanitizer slows them down; a fifth of them suffices.
    const int groups = backend().groups_in_a_loop / (kSanitized ? 5 : 1);
    // By then the allocator has what it keeps.
    const int first_groups = 10 + groups / 10;
    for (int round = 0; round < first_groups; ++round) use_a_group(round);
    const Footprint before = footprint();
    const int all_groups = first_groups + groups;
    for (int round = first_groups; round < all_groups && !rank.failed(); ++round) {
      use_a_group(round);
    }
    const Footprint after = footprint();
    EXPECT_EQ(after.descriptors, before.descriptors);
    EXPECT_EQ(after.shared_mappings, before.shared_mappings);
    // A sanitizer's own memory grows with what it has seen, freed or not.
    if (kSanitized) return;
    // The allocator may have taken some of its own, but not one for each group.
    EXPECT_LE(after.mappings, before.mappings + 50);
    EXPECT_LE(after.private_kilobytes, before.private_kilobytes + 2048);
  });
}

TEST_P(LifetimeConformance, TwoGroupsAreUsedAlternately) {
  run([this](Rank& rank) {
    const auto first = join(rank, {.key = "first"});
    const auto second = join(rank, {.key = "second"});
    const auto inputs = inputs_of_all(rank.size(), at::kFloat, {3000});
    for (int round = 0; round < 30; ++round) {
      const at::Tensor one = inputs[rank.rank()].clone();
      const at::Tensor other = inputs[rank.rank()].clone();
      Work work = first->all_reduce(one);
      second->all_reduce(other, {.op = ReduceOp::max}).wait();
      work.wait();
      expect_same_bits(one, reduced(inputs), "the first group");
      expect_same_bits(other, reduced(inputs, {.op = ReduceOp::max}), "the second group");
    }
  });
}

TEST_P(LifetimeConformance, RanksWaitForTwoGroupsInOppositeOrder) {
  run([this](Rank& rank) {
    const auto first = join(rank, {.key = "first"});
    const auto second = join(rank, {.key = "second"});
    for (const std::int64_t count : {10, 500'000}) {
      const auto inputs = inputs_of_all(rank.size(), at::kFloat, {count});
      const at::Tensor one = inputs[rank.rank()].clone();
      const at::Tensor other = inputs[rank.rank()].clone();
      Work on_first = first->all_reduce(one);
      Work on_second = second->all_reduce(other);
      if (rank.rank() % 2 == 0) {
        on_first.wait();
        on_second.wait();
      } else {
        on_second.wait();
        on_first.wait();
      }
      expect_same_bits(one, reduced(inputs), "the first group");
      expect_same_bits(other, reduced(inputs), "the second group");
    }
  });
}

TEST_P(LifetimeConformance, WorksOfSeveralGroupsAreWaitedForInEachRanksOwnOrder) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    std::vector<int> backwards(static_cast<std::size_t>(group.size()));
    std::iota(backwards.rbegin(), backwards.rend(), 0);
    const auto reversed = group.split(backwards);
    const auto alike = group.split(std::vector(backwards.rbegin(), backwards.rend()));
    const std::vector<ProcessGroup*> groups = {&group, reversed.get(), alike.get()};
    std::mt19937 random(static_cast<unsigned>(rank.rank()));
    for (int round = 0; round < 10 && !rank.failed(); ++round) {
      std::vector<at::Tensor> tensors;
      std::vector<std::pair<int, Work>> works;
      for (int i = 0; i < 24; ++i) {
        const std::int64_t count = i % 5 == 0 ? 60'000 : 1 + 100 * i;
        tensors.push_back(at::full({count}, rank.rank() + i));
        works.emplace_back(i, groups[static_cast<std::size_t>(i) % 3]->all_reduce(tensors[i]));
      }
      std::shuffle(works.begin(), works.end(), random);
      for (auto& [i, work] : works) {
        rank.note(fmt::format("round {}, work {}", round, i));
        work.wait();
        const int sum = group.size() * (group.size() - 1) / 2 + group.size() * i;
        EXPECT_TRUE((tensors[i] == sum).all().item<bool>()) << "work " << i;
      }
    }
  });
}

TEST_P(LifetimeConformance, ThreadsUseGroupsOfTheirOwn) {
  run([this](Rank& rank) {
    const auto use = [&](ProcessGroup& group, int seed) {
      const auto inputs = inputs_of_all(rank.size(), at::kFloat, {5000}, seed);
      for (int round = 0; round < 50; ++round) {
        const at::Tensor tensor = inputs[rank.rank()].clone();
        group.all_reduce(tensor).wait();
        expect_same_bits(tensor, reduced(inputs), fmt::format("thread {}", seed));
      }
    };
    const auto first = join(rank, {.key = "first"});
    const auto second = join(rank, {.key = "second"});
    std::jthread thread([&] { use(*first, 1); });
    use(*second, 2);
  });
}

TEST_P(LifetimeConformance, OneWorkIsStartedHereAndWaitedForInAnotherThread) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    const auto inputs = inputs_of_all(rank.size(), at::kFloat, {5000});
    for (int round = 0; round < 20; ++round) {
      const at::Tensor tensor = inputs[rank.rank()].clone();
      Work work = group.all_reduce(tensor);
      std::jthread([&work] { work.wait(); }).join();
      expect_same_bits(tensor, reduced(inputs), "waited for in another thread");
    }
  });
}

TEST_P(LifetimeConformance, ARankThatComesLateIsWaitedFor) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (int late = 0; late < rank.size(); ++late) {
      for (const std::int64_t count : {1, 300'000}) {
        const at::Tensor tensor = at::full({count}, rank.rank() + 1.0);
        // Long enough for the others to fall asleep.
        if (rank.rank() == late) std::this_thread::sleep_for(150ms);
        group.all_reduce(tensor).wait();
        EXPECT_EQ(tensor[count - 1].item<int>(), rank.size() * (rank.size() + 1) / 2);
      }
    }
  });
}

}  // namespace
}  // namespace lockstep::testing
