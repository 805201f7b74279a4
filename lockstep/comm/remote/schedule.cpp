// SPDX-License-Identifier: BSD-3-Clause
// Starts the stages of calls in order, and finishes those that have arrived.
#include "lockstep/comm/remote/schedule.h"

#include <algorithm>
#include <iterator>

namespace lockstep::remote {

Schedule::Schedule(const Call& call, std::vector<Stage> stages) : Task(call) {
  for (auto& stage : stages) stages_.push_back({std::move(stage), nullptr});
}

void Schedule::begin_with(Stage stage) {
  for (auto& [other, transmission, finished] : stages_) other.after += 1;
  stages_.insert(stages_.begin(), {std::move(stage), nullptr});
}

bool Schedule::finish_arrived() {
  bool moved = false;
  for (std::size_t i = 0; i < started_ && (i == 0 || stages_.front().finished); ++i) {
    auto& [stage, transmission, finished] = stages_[i];
    if (finished || !transmission->done()) continue;
    if (stage.finish) stage.finish();
    transmission.reset();
    stage = {};
    finished = moved = true;
    ++finished_;
  }
  if (moved && finished_ == stages_.size()) mark_done();
  return moved;
}

bool Schedule::start_next(Transport& transport) {
  bool moved = false;
  while (!all_started() && !refused_) {
    auto& next = stages_[started_];
    if (next.stage.after >= 0 && !stages_[static_cast<std::size_t>(next.stage.after)].finished)
      break;
    transport.begin_after(mark_);
    transport.begin_stage(call(), started_, sizes_);
    refused_ = true;
    next.transmission = next.stage.start(transport);
    refused_ = false;
    ++started_;
    moved = true;
  }
  return moved;
}

bool Schedule::order_current_stream() {
  if (!all_started()) return false;
  return std::ranges::all_of(stages_, [](Progress& progress) {
    return progress.finished ||
           (!progress.stage.finish && progress.transmission->order_current_stream());
  });
}

std::vector<std::unique_ptr<Transmission>> Schedule::take_transmissions() {
  std::vector<std::unique_ptr<Transmission>> taken;
  for (auto& progress : stages_) {
    if (progress.transmission) taken.push_back(std::move(progress.transmission));
  }
  return taken;
}

const Call* CallLine::find(std::uint64_t number) const {
  const auto found =
      std::ranges::find(calls_, number, [](const auto& call) { return call->call().number; });
  return found == calls_.end() ? nullptr : &(*found)->call();
}

void CallLine::push(std::shared_ptr<Schedule> call) {
  call->number(++last_number_);
  if (call->empty()) return call->mark_done();
  calls_.push_back(std::move(call));
}

bool CallLine::advance(Transport& transport) {
  bool moved = false;
  for (const auto& call : calls_) moved |= call->finish_arrived();
  for (const auto& call : calls_) {
    moved |= call->start_next(transport);
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

}  // namespace lockstep::remote
