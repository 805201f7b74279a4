// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/collective/network/planned_call.h"

#include <algorithm>
#include <iterator>

namespace lockstep::network {

PlannedCall::PlannedCall(const Call& call, std::vector<Step> steps) : call_(call) {
  for (auto& step : steps) steps_.push_back({std::move(step), nullptr});
  done_ = steps_.empty();
}

void PlannedCall::begin_with(Step step) {
  for (auto& [other, transmission, finished] : steps_) other.after += 1;
  steps_.insert(steps_.begin(), {std::move(step), nullptr});
  done_ = false;
}

bool PlannedCall::finish_arrived() {
  bool moved = false;
  for (std::size_t i = 0; i < started_ && (i == 0 || steps_.front().finished); ++i) {
    auto& [step, transmission, finished] = steps_[i];
    if (finished || !transmission->done()) continue;
    if (step.finish) step.finish();
    transmission.reset();
    step = {};
    finished = moved = true;
    ++finished_;
  }
  if (moved && finished_ == steps_.size()) done_.store(true, std::memory_order_release);
  return moved;
}

bool PlannedCall::start_next(Carrier& carrier) {
  bool moved = false;
  while (!all_started() && !refused_) {
    auto& next = steps_[started_];
    if (next.step.after >= 0 && !steps_[static_cast<std::size_t>(next.step.after)].finished) break;
    carrier.begin_after(mark_);
    carrier.begin_step(call_, started_, sizes_);
    refused_ = true;
    next.transmission = next.step.start(carrier);
    refused_ = false;
    ++started_;
    moved = true;
  }
  return moved;
}

bool PlannedCall::order_current_stream() {
  if (!all_started()) return false;
  return std::ranges::all_of(steps_, [](Progress& progress) {
    return progress.finished ||
           (!progress.step.finish && progress.transmission->order_current_stream());
  });
}

std::vector<std::unique_ptr<Transmission>> PlannedCall::take_transmissions() {
  std::vector<std::unique_ptr<Transmission>> taken;
  for (auto& progress : steps_) {
    if (progress.transmission) taken.push_back(std::move(progress.transmission));
  }
  return taken;
}

const Call* CallLine::find(std::uint64_t number) const {
  const auto found =
      std::ranges::find(calls_, number, [](const auto& call) { return call->call().number; });
  return found == calls_.end() ? nullptr : &(*found)->call();
}

void CallLine::push(std::shared_ptr<PlannedCall> call) {
  call->number(++last_number_);
  if (!call->done()) calls_.push_back(std::move(call));
}

bool CallLine::advance(Carrier& carrier) {
  bool moved = false;
  for (const auto& call : calls_) moved |= call->finish_arrived();
  for (const auto& call : calls_) {
    moved |= call->start_next(carrier);
    if (!call->all_started()) break;
  }
  std::erase_if(calls_, [](const auto& call) { return call->done(); });
  return moved;
}

std::vector<std::unique_ptr<Transmission>> CallLine::clear() {
  std::vector<std::unique_ptr<Transmission>> all;
  for (const auto& call : calls_) {
    auto taken = call->take_transmissions();
    std::ranges::move(taken, std::back_inserter(all));
  }
  calls_.clear();
  return all;
}

}  // namespace lockstep::network
