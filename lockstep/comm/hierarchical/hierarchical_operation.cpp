// SPDX-License-Identifier: BSD-3-Clause
// Advances the phases of a call, and waits for them.
#include "lockstep/comm/hierarchical/hierarchical_operation.h"

#include <algorithm>
#include <thread>

#include "lockstep/comm/core/call.h"
#include "lockstep/comm/hierarchical/failures.h"
#include "lockstep/core/error.h"

namespace lockstep::hierarchical {
namespace {

using namespace std::chrono_literals;

// After this many polls without progress, a waiting thread sleeps between polls.
constexpr int kIdlePolls = 1000;
constexpr auto kPollInterval = 50us;

bool is_half(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kHalf || tensor.scalar_type() == at::kBFloat16;
}

}  // namespace

at::Tensor HierarchicalOperation::flat_input(const at::Tensor& original) const {
  return copies_.input(original).detach().view(-1);
}

at::Tensor HierarchicalOperation::flat_output(const at::Tensor& original) {
  return copies_.output(original).detach().view(-1);
}

at::Tensor HierarchicalOperation::flat_term(const at::Tensor& original) const {
  return flat_input(is_half(original) ? original.detach().to(at::kFloat) : original);
}

at::Tensor HierarchicalOperation::flat_sum(const at::Tensor& original) {
  return is_half(original) ? copies_.output_as(original, at::kFloat).detach().view(-1)
                           : flat_output(original);
}

Call HierarchicalOperation::next(Call call, std::size_t tensors) {
  call.number = static_cast<std::uint64_t>(context_.call);
  call.tensor = tensors_++;
  call.tensors = static_cast<std::int32_t>(tensors);
  return call;
}

void HierarchicalOperation::start(std::vector<PhasedCall::Phase> phases) {
  parts_.push_back(std::make_shared<PhasedCall>(std::move(phases)));
  calls_->start(parts_.back());
}

bool HierarchicalOperation::done() const {
  return std::ranges::all_of(parts_, [](const auto& part) { return part->done(); });
}

bool HierarchicalOperation::poll() {
  return advance(Deadline::after(0s));
}

bool HierarchicalOperation::advance(const Deadline& deadline) {
  if (!done()) {
    calls_->try_advance();
    if (auto error = calls_->error(); error && !done())
      explain(error, *levels_, context_, deadline);
  }
  if (!done() || !delegated_.poll()) return false;
  copies_.copy_back();
  return true;
}

void HierarchicalOperation::wait(const Deadline& deadline) {
  try {
    delegated_.wait(deadline);
  } catch (const Error& error) {
    if (const auto first = calls_->error()) explain(first, *levels_, context_, deadline);
    end_groups(*levels_, short_message(error));
    throw;
  }
  int idle_polls = 0;
  while (!advance(deadline)) {
    if (deadline.passed()) {
      calls_->give_up(deadline);
    } else if (calls_->try_advance() || advance_others(*calls_)) {
      idle_polls = 0;
    } else if (++idle_polls < kIdlePolls) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPollInterval);
    }
  }
}

}  // namespace lockstep::hierarchical
