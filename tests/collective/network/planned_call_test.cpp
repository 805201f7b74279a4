// SPDX-License-Identifier: BSD-3-Clause
// Calls whose carrier takes some steps and refuses others.
#include "lockstep/collective/network/planned_call.h"

#include <stdexcept>

#include <gmock/gmock.h>

namespace lockstep::network {
namespace {

class Arrived final : public Transmission {
 public:
  bool done() override { return true; }
};

// Nothing but what steps are given.
class NoCarrier final : public Carrier {
 public:
  std::unique_ptr<Transmission> exchange(at::Tensor, std::vector<std::int64_t>, at::Tensor,
                                         std::vector<std::int64_t>) override {
    return nullptr;
  }
  std::unique_ptr<Transmission> all_gather(at::Tensor, at::Tensor,
                                           std::vector<std::int64_t>) override {
    return nullptr;
  }
  std::unique_ptr<Transmission> broadcast(at::Tensor, int) override { return nullptr; }
  std::unique_ptr<Transmission> send(at::Tensor, int, int) override { return nullptr; }
  std::unique_ptr<Transmission> receive(at::Tensor, int, int) override { return nullptr; }
  std::uint64_t events() const override { return 0; }
  void wait_for_event(std::uint64_t, std::chrono::microseconds) override {}
};

// Counts how often it was started.
Step counting_step(int& starts) {
  return {[&starts](Carrier&) {
    ++starts;
    return std::make_unique<Arrived>();
  }};
}

Step refused_step(int& starts) {
  return {[&starts](Carrier&) -> std::unique_ptr<Transmission> {
    ++starts;
    throw std::runtime_error("connection closed by peer");
  }};
}

std::shared_ptr<PlannedCall> call_of(std::vector<Step> steps) {
  return std::make_shared<PlannedCall>(Call{}, std::move(steps));
}

TEST(PlannedCall, IsDoneOnceAllOfItsStepsHaveArrived) {
  int starts = 0;
  NoCarrier carrier;
  CallLine line;
  const auto call = call_of({counting_step(starts), counting_step(starts)});
  line.push(call);
  EXPECT_TRUE(line.advance(carrier));
  EXPECT_FALSE(call->done());
  EXPECT_TRUE(line.advance(carrier));
  EXPECT_TRUE(call->done());
  EXPECT_EQ(starts, 2);
  EXPECT_TRUE(line.empty());
}

// A part of it may be on its way, and would be sent twice.
TEST(PlannedCall, AStepThatTheCarrierRefusedIsNotStartedAgain) {
  int before = 0;
  int refused = 0;
  int behind = 0;
  NoCarrier carrier;
  CallLine line;
  line.push(call_of({counting_step(before), refused_step(refused)}));
  line.push(call_of({counting_step(behind)}));
  EXPECT_THROW(line.advance(carrier), std::runtime_error);
  EXPECT_TRUE(line.advance(carrier)) << "what had started before still arrives";
  EXPECT_FALSE(line.advance(carrier));
  EXPECT_EQ(before, 1);
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(behind, 0) << "calls start in order";
  EXPECT_FALSE(line.empty());
}

}  // namespace
}  // namespace lockstep::network
