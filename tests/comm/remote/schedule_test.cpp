// SPDX-License-Identifier: BSD-3-Clause
// Calls whose transport takes some stages and refuses others.
#include <stdexcept>

#include <gmock/gmock.h>

#include "lockstep/comm/remote/schedules.h"

namespace lockstep::remote {
namespace {

class Arrived final : public Transmission {
 public:
  bool done() override { return true; }
};

// Nothing but what stages are given.
class NoTransport final : public Transport {
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
Stage counting_step(int& starts) {
  return {[&starts](Transport&) {
    ++starts;
    return std::make_unique<Arrived>();
  }};
}

Stage refused_step(int& starts) {
  return {[&starts](Transport&) -> std::unique_ptr<Transmission> {
    ++starts;
    throw std::runtime_error("connection closed by peer");
  }};
}

std::shared_ptr<Schedule> call_of(std::vector<Stage> stages) {
  return std::make_shared<Schedule>(Call{}, std::move(stages));
}

TEST(Schedule, IsDoneOnceAllOfItsStepsHaveArrived) {
  int starts = 0;
  NoTransport transport;
  CallLine line;
  const auto call = call_of({counting_step(starts), counting_step(starts)});
  line.push(call);
  EXPECT_TRUE(line.advance(transport));
  EXPECT_FALSE(call->done());
  EXPECT_TRUE(line.advance(transport));
  EXPECT_TRUE(call->done());
  EXPECT_EQ(starts, 2);
  EXPECT_TRUE(line.empty());
}

// A part of it may be on its way, and would be sent twice.
TEST(Schedule, AStageThatTheTransportRefusedIsNotStartedAgain) {
  int before = 0;
  int refused = 0;
  int behind = 0;
  NoTransport transport;
  CallLine line;
  line.push(call_of({counting_step(before), refused_step(refused)}));
  line.push(call_of({counting_step(behind)}));
  EXPECT_THROW(line.advance(transport), std::runtime_error);
  EXPECT_TRUE(line.advance(transport)) << "what had started before still arrives";
  EXPECT_FALSE(line.advance(transport));
  EXPECT_EQ(before, 1);
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(behind, 0) << "calls start in order";
  EXPECT_FALSE(line.empty());
}

}  // namespace
}  // namespace lockstep::remote
