// SPDX-License-Identifier: BSD-3-Clause
// Calls made of phases: what remains of them after an error.
#include "lockstep/comm/hierarchical/phases.h"

#include <stdexcept>

#include <gtest/gtest.h>

namespace lockstep::hierarchical {
namespace {

using namespace std::chrono_literals;

// Not done in the first poll, and fails in the second.
class FailsLater final : public Operation {
 public:
  bool poll() override {
    if (polls_++ == 0) return false;
    throw std::runtime_error("the network is gone");
  }
  void wait(const Deadline&) override {}
  Deadline default_deadline() const override { return Deadline::after(1s); }

 private:
  int polls_ = 0;
};

std::shared_ptr<PhasedCall> failing_call() {
  return std::make_shared<PhasedCall>(std::vector<PhasedCall::Phase>{[] {
    std::vector<Work> works;
    works.emplace_back(std::make_shared<FailsLater>());
    return works;
  }});
}

TEST(PhasedCalls, TheFirstErrorEndsAllCallsEvenIfItCannotBePassedOn) {
  PhasedCalls calls([](const std::exception_ptr&) { throw std::runtime_error("no memory"); });
  const auto call = failing_call();
  calls.start(call);
  ASSERT_FALSE(calls.error());
  ASSERT_NO_THROW(calls.try_advance());  // else the next line might wait forever
  ASSERT_TRUE(calls.error());
  try {
    std::rethrow_exception(calls.error());
  } catch (const std::exception& error) {
    EXPECT_STREQ(error.what(), "the network is gone");
  }
  calls.start(failing_call());
  EXPECT_FALSE(calls.try_advance());
  EXPECT_FALSE(call->done());
}

}  // namespace
}  // namespace lockstep::hierarchical
