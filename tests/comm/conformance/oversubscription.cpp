// SPDX-License-Identifier: BSD-3-Clause
// Many more ranks than cores, on one machine.
#include "comm/conformance/conformance.h"
#include <ATen/ATen.h>

namespace lockstep::testing {
namespace {

TEST_P(OversubscriptionConformance, TakesTurns) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    const at::Tensor tensor = group.empty({10'000}, at::kFloat);
    for (int round = 0; round < 5; ++round) {
      tensor.fill_(rank.rank());
      group.all_reduce(tensor).wait();
      EXPECT_TRUE((tensor == rank.size() * (rank.size() - 1) / 2).all().item<bool>());
    }
  });
}

TEST_P(OversubscriptionConformance, ARingSendsTwiceAllButOnePartOfTheMessage) {
  run_in_group([](Rank& rank, ProcessGroup& group) {
    const auto size = static_cast<std::uint64_t>(group.size());
    const at::Tensor tensor = at::full({100 * group.size()}, rank.rank());
    const std::uint64_t before = group.bytes_sent();
    group.all_reduce(tensor, {.algorithm = Algorithm::ring}).wait();
    EXPECT_EQ(group.bytes_sent() - before, 2 * (size - 1) * tensor.nbytes() / size);
    EXPECT_TRUE((tensor == rank.size() * (rank.size() - 1) / 2).all().item<bool>());
  });
}

}  // namespace
}  // namespace lockstep::testing
