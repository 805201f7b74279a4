// SPDX-License-Identifier: BSD-3-Clause
// Waits for the phases of a call, and explains errors by asking the group of all ranks.
#include "lockstep/comm/hierarchical/hierarchical_operation.h"

#include <algorithm>
#include <optional>
#include <thread>

#include <fmt/format.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/core/error.h"

namespace lockstep::hierarchical {
namespace {

using namespace std::chrono_literals;

// How long the group of all ranks may look for the rank whose loss explains an error.
constexpr auto kExplanation = 1s;
// After this many polls without progress, a waiting thread sleeps between polls.
constexpr int kPatience = 1000;
constexpr auto kNap = 50us;

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
  call.number = number_;
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
    if (auto error = calls_->error(); error && !done()) explain(error, deadline);
  }
  if (!done() || !delegated_.poll()) return false;
  copies_.copy_back();
  return true;
}

void HierarchicalOperation::wait(const Deadline& deadline) {
  try {
    delegated_.wait(deadline);
  } catch (const Error& error) {
    if (const auto first = calls_->error()) explain(first, deadline);
    end_groups(*levels_, error.what());
    throw;
  }
  int vain_looks = 0;
  while (!advance(deadline)) {
    if (deadline.passed()) {
      calls_->give_up(deadline);
    } else if (calls_->try_advance() || advance_others(*calls_)) {
      vain_looks = 0;
    } else if (++vain_looks < kPatience) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kNap);
    }
  }
}

void HierarchicalOperation::explain(const std::exception_ptr& error, const Deadline& waited) {
  const auto end = [&](const std::string& cause) {
    std::string message = where_ + cause;
    end_groups(*levels_, message);
    return message;
  };
  std::optional<TimeoutError> absent;
  try {
    std::rethrow_exception(error);
  } catch (const CallsDiffer& differ) {
    throw CallsDiffer(where_, differ.own(), differ.peer(), fmt::format("rank {}", differ.peer()),
                      differ.peers_call());
  } catch (const std::exception&) {
    // The group of all ranks may know more.
  }
  try {
    levels_->all->start({.call = {.collective = Collective::barrier}})
        .wait(waited.prolonged(kExplanation));
  } catch (const TimeoutError& late) {
    absent = late;
  } catch (const PeerLost& lost) {
    throw PeerLost(lost.rank(), end(lost.what()), lost.how());
  } catch (const UsageError& mismatch) {
    throw UsageError(end(mismatch.what()));
  } catch (const Error&) {
    // No rank died; the error itself says enough.
  }
  try {
    std::rethrow_exception(error);
  } catch (const TimeoutError& original) {
    const TimeoutError& late = absent.value_or(original);
    throw TimeoutError(end(late.what()), late.rank());
  } catch (const UsageError& original) {
    throw UsageError(end(original.what()));
  } catch (const PeerLost& original) {
    // A rank has ended the groups, usually because it waited in vain.
    if (absent) throw TimeoutError(end(absent->what()), absent->rank());
    throw BackendError(end(original.what()));
  } catch (const std::exception& original) {
    throw BackendError(end(original.what()));
  }
}

}  // namespace lockstep::hierarchical
