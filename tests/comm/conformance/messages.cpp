// SPDX-License-Identifier: BSD-3-Clause
// What travels between two ranks: send and recv, all_to_all, and the ring made of them.
#include <numeric>

#include "comm/conformance/conformance.h"
#include "comm/conformance/expect_error.h"
#include "comm/conformance/reference.h"
#include <ATen/ATen.h>
#include <fmt/format.h>

namespace lockstep::testing {
namespace {

const std::vector<std::int64_t> kCounts = {0, 1, 1023, 8192, 100'003};

TEST_P(ResultsConformance, MessagesArriveInOrder) {
  if (size() == 1) GTEST_SKIP() << "a rank alone has no peer";
  run_in_group([](Rank& rank, ProcessGroup& group) {
    std::vector<Work> works;
    std::vector<std::vector<at::Tensor>> received(group.size());
    for (const auto type : all_types()) {
      for (const auto count : kCounts) {
        for (int peer = 0; peer < group.size(); ++peer) {
          if (peer == rank.rank()) continue;
          received[peer].push_back(at::zeros({count}, type));
          works.push_back(group.recv(received[peer].back(), peer));
          works.push_back(group.send(input_of(rank.rank(), type, {count}, peer), peer));
        }
      }
    }
    for (; !works.empty(); works.pop_back()) works.back().wait();
    for (int peer = 0; peer < group.size(); ++peer) {
      std::size_t next = 0;
      for (const auto type : all_types()) {
        for (const auto count : kCounts) {
          if (peer == rank.rank()) continue;
          expect_same_bits(received[peer][next++], input_of(peer, type, {count}, rank.rank()),
                           fmt::format("{} {} from rank {}", count, c10::toString(type), peer));
        }
      }
    }
  });
}

TEST_P(ResultsConformance, MessagesTakeAnyStrides) {
  if (size() == 1) GTEST_SKIP() << "a rank alone has no peer";
  run_in_group([](Rank& rank, ProcessGroup& group) {
    const at::Tensor input = input_of(0, at::kFloat, {300, 200});
    if (rank.rank() == 0) {
      group.send(input.t(), 1).wait();
    } else if (rank.rank() == 1) {
      const at::Tensor memory = at::zeros({200, 600});
      group.recv(memory.slice(1, 0, 600, 2), 0).wait();
      EXPECT_TRUE(memory.slice(1, 0, 600, 2).equal(input.t()));
      EXPECT_EQ(memory.slice(1, 1, 600, 2).abs().sum().item<int>(), 0);
    }
  });
}

TEST_P(ResultsConformance, AllToAllTakesPiecesOfAnySize) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (const std::int64_t unit : {0, 1, 700, 40'000}) {
      const auto count = [&](int from, int to) { return unit * (1 + (from + 2 * to) % 3); };
      std::vector<at::Tensor> inputs;
      std::vector<at::Tensor> outputs;
      for (int peer = 0; peer < group.size(); ++peer) {
        inputs.push_back(input_of(rank.rank(), at::kFloat, {count(rank.rank(), peer)}, peer));
        outputs.push_back(at::zeros({count(peer, rank.rank())}));
      }
      group.all_to_all(outputs, inputs).wait();
      for (int peer = 0; peer < group.size(); ++peer) {
        expect_same_bits(outputs[peer],
                         input_of(peer, at::kFloat, {count(peer, rank.rank())}, rank.rank()),
                         fmt::format("all_to_all of {} from rank {}", unit, peer));
      }
    }
  });
}

TEST_P(ResultsConformance, AllToAllTakesEveryType) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (const auto type : all_types()) {
      for (const auto count : kCounts) {
        const std::string what = fmt::format("all_to_all of {} {}", count, c10::toString(type));
        rank.note(what);
        std::vector<at::Tensor> inputs;
        std::vector<at::Tensor> outputs;
        for (int peer = 0; peer < group.size(); ++peer) {
          inputs.push_back(input_of(rank.rank(), type, {count}, peer));
          outputs.push_back(at::zeros({count}, type));
        }
        group.all_to_all(outputs, inputs).wait();
        for (int peer = 0; peer < group.size(); ++peer) {
          expect_same_bits(outputs[peer], input_of(peer, type, {count}, rank.rank()),
                           fmt::format("{} from rank {}", what, peer));
        }
      }
    }
  });
}

// Sums of small whole numbers are the same in every order.
at::Tensor whole(int rank, at::ScalarType type, std::int64_t count, int seed = 0) {
  return at::arange(count, at::kLong).add_(rank + seed).remainder_(5).to(type);
}

TEST_P(ResultsConformance, RingAllReduceIsAnAllReduce) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (const auto type : all_types()) {
      for (const auto count : kCounts) {
        for (const auto op :
             {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max, ReduceOp::product}) {
          if (op == ReduceOp::mean && !can_be_scaled(type)) continue;
          rank.note(fmt::format("ring {} of {} {}", name(op), count, c10::toString(type)));
          std::vector<at::Tensor> inputs;
          for (int r = 0; r < group.size(); ++r) inputs.push_back(whole(r, type, count));
          const at::Tensor tensor = inputs[rank.rank()].clone();
          group.all_reduce(tensor, {.op = op, .algorithm = Algorithm::ring}).wait();
          expect_same_bits(tensor, reduced(inputs, {.op = op}),
                           fmt::format("ring {} of {} {}", name(op), count, c10::toString(type)));
          if (rank.failed()) return;
        }
      }
    }
  });
}

TEST_P(ResultsConformance, RingsOfOneGroupGoInOrderAndInAnyCompany) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    std::vector<at::Tensor> tensors;
    std::vector<Work> works;
    for (int i = 0; i < 12; ++i) {
      tensors.push_back(whole(rank.rank(), at::kFloat, 5000 * (i % 4) + i, i));
      works.push_back(i % 3 == 2 ? group.all_reduce(tensors[i])
                                 : group.all_reduce(tensors[i], {.algorithm = Algorithm::ring}));
    }
    for (; !works.empty(); works.pop_back()) works.back().wait();
    for (int i = 0; i < 12; ++i) {
      std::vector<at::Tensor> inputs;
      for (int r = 0; r < group.size(); ++r) {
        inputs.push_back(whole(r, at::kFloat, tensors[i].numel(), i));
      }
      expect_same_bits(tensors[i], reduced(inputs), fmt::format("work {}", i));
    }
  });
}

TEST_P(ResultsConformance, ARingAndAnAllToAllDoNotMix) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    for (int round = 0; round < 20; ++round) {
      const std::int64_t count = 100 * group.size();
      const at::Tensor tensor = whole(rank.rank(), at::kFloat, count, round);
      std::vector<at::Tensor> inputs;
      std::vector<at::Tensor> outputs;
      std::vector<at::Tensor> of_ranks;
      for (int peer = 0; peer < group.size(); ++peer) {
        inputs.push_back(at::full({100}, 10 * rank.rank() + peer));
        outputs.push_back(at::zeros({100}, at::kLong));
        of_ranks.push_back(whole(peer, at::kFloat, count, round));
      }
      Work ring = group.all_reduce(tensor, {.algorithm = Algorithm::ring});
      Work exchange = group.all_to_all(outputs, inputs);
      exchange.wait();
      ring.wait();
      expect_same_bits(tensor, reduced(of_ranks), "the ring");
      for (int peer = 0; peer < group.size(); ++peer) {
        EXPECT_TRUE((outputs[peer] == 10 * peer + rank.rank()).all().item<bool>());
      }
    }
  });
}

TEST_P(ResultsConformance, AllReduceSendsTwiceAllButOnePartOfTheMessage) {
  run_in_group([](Rank&, ProcessGroup& group) {
    const std::int64_t count = 1000 * group.size();
    const auto bytes = static_cast<std::uint64_t>(count) * sizeof(float);
    const auto size = static_cast<std::uint64_t>(group.size());
    for (const Algorithm algorithm : {Algorithm::ring, Algorithm::automatic}) {
      const auto before = group.bytes_sent();
      group.all_reduce(at::ones({count}), {.algorithm = algorithm}).wait();
      EXPECT_EQ(group.bytes_sent() - before, 2 * (size - 1) * bytes / size);
    }
  });
}

TEST_P(ResultsConformance, AllGatherAndReduceScatterSendAllButOnePart) {
  run_in_group([](Rank&, ProcessGroup& group) {
    const at::Tensor part = at::ones({1000});
    const at::Tensor whole = at::ones({1000 * group.size()});
    const auto all_but_one = static_cast<std::uint64_t>(group.size() - 1) * part.nbytes();
    const auto before = group.bytes_sent();
    group.all_gather_into_tensor(whole, part).wait();
    EXPECT_EQ(group.bytes_sent() - before, all_but_one);
    group.reduce_scatter_tensor(part, whole).wait();
    EXPECT_EQ(group.bytes_sent() - before, 2 * all_but_one);
  });
}

TEST_P(ResultsConformance, RanksOfARingTogetherSendThatAlsoOfWhatDoesNotDivide) {
  run_in_group([](Rank&, ProcessGroup& group) {
    for (const std::int64_t count : {1, 2, 1001, 4999}) {
      const auto before = group.bytes_sent();
      group.all_reduce(at::ones({count}), {.algorithm = Algorithm::ring}).wait();
      const auto sent = static_cast<std::int64_t>(group.bytes_sent() - before);
      const at::Tensor all = at::full({1}, sent, at::kLong);
      group.all_reduce(all).wait();
      const auto bytes = count * static_cast<std::int64_t>(sizeof(float));
      EXPECT_EQ(all.item<std::int64_t>(), 2 * (group.size() - 1) * bytes) << count;
    }
  });
}

TEST_P(CallsConformance, MessagesThatAreNotAlikeAreErrorsOnBothSides) {
  if (size() == 1) GTEST_SKIP() << "a rank alone has no peer";
  run([this](Rank& rank) {
    const auto group = join(rank);
    if (rank.rank() == 0) {
      // Backends differ in whether a send waits for its receiver.
      expect_error<UsageError>("the sender", {"recv", "7 Float", "8 Float"}, [&] {
        group->send(at::zeros({7}), 1).wait();
        group->recv(at::zeros({1}), 1).wait();
      });
    } else if (rank.rank() == 1) {
      expect_error<UsageError>("the receiver", {"recv #1", "7 Float", "8 Float"},
                               [&] { group->recv(at::zeros({8}), 0).wait(); });
    }
  });
}

TEST_P(CallsConformance, ARingMeetsNothingButTheSameRing) {
  if (size() == 1) GTEST_SKIP() << "a rank alone cannot disagree";
  const std::vector<AllReduceOptions> others{{},
                                             {.op = ReduceOp::max, .algorithm = Algorithm::ring},
                                             {.algorithm = Algorithm::ring, .scale = 0.5}};
  run([&](Rank& rank) {
    for (std::size_t i = 0; i < others.size(); ++i) {
      const auto group = join(rank, {.key = fmt::format("group-{}", i)});
      const auto options =
          rank.rank() == 0 ? others[i] : AllReduceOptions{.algorithm = Algorithm::ring};
      expect_error<UsageError>("a ring and something else", {"all_reduce", "ring"},
                               [&] { group->all_reduce(at::ones({100}), options).wait(); });
    }
  });
}

TEST_P(LifetimeConformance, ARingMayOutliveItsGroup) {
  run([this](Rank& rank) {
    auto group = join(rank);
    const at::Tensor tensor = at::ones({100'000});
    Work work = group->all_reduce(tensor, {.algorithm = Algorithm::ring});
    group.reset();
    work.wait();
    EXPECT_EQ(tensor[99'999].item<int>(), rank.size());
  });
}

TEST_P(LifetimeConformance, SplitMakesGroupsOfSomeRanks) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    const auto sum = [](ProcessGroup& part, int value) {
      const at::Tensor tensor = at::full({20'000}, value);
      part.all_reduce(tensor).wait();
      return tensor[19'999].item<int>();
    };
    std::vector<int> reversed;
    std::vector<int> own;  // even ranks, or odd ones
    for (int r = group.size() - 1; r >= 0; --r) reversed.push_back(r);
    for (int r = rank.rank() % 2; r < group.size(); r += 2) own.push_back(r);

    const auto all = group.split(reversed);
    EXPECT_EQ(all->rank(), group.size() - 1 - group.rank());
    const auto half = group.split(own);
    EXPECT_EQ(half->size(), static_cast<int>(own.size()));
    const auto first = group.split({0});
    EXPECT_EQ(first == nullptr, rank.rank() != 0);

    int expected = 0;
    for (const int r : own) expected += r + 1;
    EXPECT_EQ(sum(*half, rank.rank() + 1), expected);
    EXPECT_EQ(sum(*all, 1), group.size());
    // Each half calls it with the same list.
    std::vector<int> members(own.size());
    std::iota(members.begin(), members.end(), 0);
    EXPECT_EQ(sum(*half->split(members), rank.rank() + 1), expected);
    EXPECT_EQ(sum(group, 1), group.size());
  });
}

TEST_P(CallsConformance, ListsOfASplitMustGoTogether) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    expect_error<UsageError>("no such rank", {"split", std::to_string(group.size())},
                             [&] { group.split({group.size()}); });
    expect_error<UsageError>("twice", {"split", "twice"}, [&] { group.split({0, 0}); });
    if (group.size() == 1) return;
    expect_error<UsageError>("one impossible list", {"split", "rank", "list"}, [&] {
      group.split(rank.rank() == 0 ? std::vector{-1} : std::vector{rank.rank()});
    });
    expect_error<UsageError>("different lists", {"split", "rank 0 names", "rank 1"}, [&] {
      group.split(rank.rank() == 0 ? std::vector{0, 1} : std::vector{1});
    });
    group.barrier().wait();
  });
}

}  // namespace
}  // namespace lockstep::testing
