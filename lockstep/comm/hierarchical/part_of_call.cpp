// SPDX-License-Identifier: BSD-3-Clause
// Translates CallsDiffer from an inner group into ranks and numbers of the hierarchical group.
#include "lockstep/comm/hierarchical/part_of_call.h"

#include <type_traits>
#include <utility>

#include <fmt/format.h>

#include "lockstep/comm/core/call.h"

namespace lockstep::hierarchical {
namespace {

class PartOfCall final : public Operation {
 public:
  // If another rank has ended the group, starting the work throws.
  PartOfCall(const std::function<Work()>& start, std::chrono::milliseconds timeout,
             std::vector<int> ranks, const Call& whole)
      : timeout_(timeout), ranks_(std::move(ranks)), whole_(whole), work_(translated(start)) {}

  bool poll() override {
    return translated([this] { return work_.poll(); });
  }
  void wait(const Deadline& deadline) override {
    translated([&] { work_.wait(deadline); });
  }
  Deadline default_deadline() const override { return Deadline::after(timeout_); }

 private:
  template <class Function>
  std::invoke_result_t<Function> translated(const Function& function) const try {
    return function();
  } catch (const CallsDiffer& error) {
    Call theirs = error.peers_call();
    theirs.number = whole_.number;
    const int peer = ranks_[static_cast<std::size_t>(error.peer())];
    throw CallsDiffer("", whole_, peer, fmt::format("rank {}", peer), theirs);
  }

  const std::chrono::milliseconds timeout_;
  const std::vector<int> ranks_;
  const Call whole_;
  Work work_;
};

}  // namespace

Work part_of_call(const std::function<Work()>& start, std::chrono::milliseconds timeout,
                  std::vector<int> ranks, const Call& whole) {
  return Work(std::make_shared<PartOfCall>(start, timeout, std::move(ranks), whole));
}

std::vector<Work> within_host_part(const HierarchyLevels& levels, const Call& whole,
                                   const std::function<Work()>& start) {
  return works_of(part_of_call(start, levels.timeout, levels.ranks_of_host(), whole));
}

std::vector<Work> between_hosts_part(const HierarchyLevels& levels, const Call& whole,
                                     const std::function<Work()>& start) {
  return works_of(part_of_call(start, levels.timeout, levels.ranks_between_hosts(), whole));
}

std::vector<Work> works_of(Work work) {
  std::vector<Work> works;
  works.push_back(std::move(work));
  return works;
}

}  // namespace lockstep::hierarchical
