// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/hierarchical/part_of_call.h"

#include <utility>

#include <fmt/format.h>

#include "lockstep/collective/calls_differ.h"

namespace lockstep {
namespace {

class PartOfCall final : public Operation {
 public:
  PartOfCall(Work work, std::chrono::milliseconds timeout, std::vector<int> ranks,
             const Call& whole)
      : work_(std::move(work)), timeout_(timeout), ranks_(std::move(ranks)), whole_(whole) {}

  bool poll() override {
    return translated([this] { return work_.poll(); });
  }
  void wait(const Deadline& deadline) override {
    translated([&] {
      work_.wait(deadline);
      return true;
    });
  }
  Deadline default_deadline() const override { return Deadline::after(timeout_); }

 private:
  template <class Function>
  bool translated(const Function& function) const try {
    return function();
  } catch (const CallsDiffer& error) {
    Call theirs = error.peers_call();
    theirs.number = whole_.number;
    const int peer = ranks_[static_cast<std::size_t>(error.peer())];
    throw CallsDiffer("", whole_, peer, fmt::format("rank {}", peer), theirs);
  }

  Work work_;
  const std::chrono::milliseconds timeout_;
  const std::vector<int> ranks_;
  const Call whole_;
};

}  // namespace

Work part_of_call(Work work, std::chrono::milliseconds timeout, std::vector<int> ranks,
                  const Call& whole) {
  return Work(std::make_shared<PartOfCall>(std::move(work), timeout, std::move(ranks), whole));
}

}  // namespace lockstep
