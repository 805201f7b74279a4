// SPDX-License-Identifier: BSD-3-Clause
// Measures rates, and lays the line out for a width.
#include "lockstep/train/progress_bar.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <sstream>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace lockstep {
namespace {

constexpr std::chrono::milliseconds kRedrawInterval{100};
constexpr std::size_t kWidestBar = 40;
constexpr std::size_t kNarrowestBar = 6;

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::clamp(seconds, 0.0, 1e9) + 0.5);
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string bar(std::int64_t done, std::int64_t all, std::size_t width, bool coloured) {
  const double part =
      static_cast<double>(done) / static_cast<double>(std::max<std::int64_t>(all, 1));
  const auto full =
      static_cast<std::size_t>(std::clamp(part, 0.0, 1.0) * static_cast<double>(width));
  std::string filled(full, '=');
  if (full > 0 && full < width) filled.back() = '>';
  const std::string rest(width - full, ' ');
  return coloured ? fmt::format("[\033[32m{}\033[0m{}]", filled, rest)
                  : fmt::format("[{}{}]", filled, rest);
}

struct Part {
  std::string text;
  // Parts with lower numbers stay on narrower terminals.
  int importance = 0;
  bool shown = false;
};

std::string laid_out(const std::string& what, std::int64_t done, std::int64_t all,
                     std::vector<Part> parts, int columns, bool coloured) {
  const std::size_t room = columns > 1 ? static_cast<std::size_t>(columns) - 1 : 0;
  const std::string counts = fmt::format("{}/{}", done, all);
  std::size_t used = what.size() + counts.size() + 4 + kNarrowestBar;
  if (used > room) return fmt::format("{} {}", what, counts).substr(0, room);
  bool fits = true;
  for (int importance = 0; importance < static_cast<int>(parts.size()); ++importance) {
    for (Part& part : parts) {
      if (part.importance != importance) continue;
      // A part is never shown instead of a more important one.
      fits = fits && used + part.text.size() <= room;
      if (!fits) continue;
      part.shown = true;
      used += part.text.size();
    }
  }
  const std::size_t width = std::min(kWidestBar, kNarrowestBar + room - used);
  std::string line = fmt::format("{} {} {}", what, bar(done, all, width, coloured), counts);
  for (const Part& part : parts) {
    if (part.shown) line += part.text;
  }
  return line;
}

}  // namespace

std::string progress_bar(const ProgressState& state, int columns, bool coloured) {
  std::vector<Part> parts{{fmt::format(", loss {:.4f}", state.loss), 0}};
  // The first step shows no speed.
  if (state.samples_per_second > 0) {
    parts.push_back({fmt::format(", {:.0f} samples/s", state.samples_per_second), 2});
    parts.push_back({fmt::format(", {} left", clock_text(state.seconds_left)), 1});
  }
  return laid_out(fmt::format("epoch {}/{}", state.epoch, state.epochs), state.step_of_epoch,
                  state.steps_per_epoch, std::move(parts), columns, coloured);
}

std::string count_bar(const std::string& what, std::int64_t done, std::int64_t all,
                      std::optional<double> seconds_left, int columns, bool coloured) {
  std::vector<Part> parts;
  if (seconds_left) parts.push_back({fmt::format(", {} left", clock_text(*seconds_left)), 0});
  return laid_out(what, done, all, std::move(parts), columns, coloured);
}

std::string to_text(const ProgressState& state) {
  return fmt::format("{} {} {} {} {} {} {}", state.epoch, state.epochs, state.step_of_epoch,
                     state.steps_per_epoch, state.loss, state.samples_per_second,
                     state.seconds_left);
}

std::optional<ProgressState> progress_from_text(const std::string& text) {
  std::istringstream words(text);
  std::array<std::string, 3> reals;
  ProgressState state;
  words >> state.epoch >> state.epochs >> state.step_of_epoch >> state.steps_per_epoch;
  words >> reals[0] >> reals[1] >> reals[2];
  if (!words) return std::nullopt;
  // A stream does not read nan, the loss of a training run that has diverged.
  state.loss = std::strtod(reals[0].c_str(), nullptr);
  state.samples_per_second = std::strtod(reals[1].c_str(), nullptr);
  state.seconds_left = std::strtod(reals[2].c_str(), nullptr);
  return state;
}

std::optional<ProgressState> ProgressMeter::step(const RunSteps& run, const StepSummary& step) {
  const auto now = Clock::now();
  const std::int64_t number = run.in_run(step);
  if (!last_) {
    start_ = now;
    first_step_ = number;
  }
  samples_ += step.samples * run.ranks;
  const bool last_step = number == run.all();
  if (last_ && now - *last_ < kRedrawInterval && !last_step) return std::nullopt;
  const double loss = step.loss.item<double>();  // waits for pending work on a GPU
  if (last_) {
    const double since = std::chrono::duration<double>(now - *last_).count();
    const double rate = static_cast<double>(samples_) / std::max(since, 1e-9);
    // A moving mean over about a second, which a reader can follow.
    rate_ = rate_ == 0 ? rate : 0.8 * rate_ + 0.2 * rate;
  }
  last_ = now;
  samples_ = 0;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const auto left = static_cast<double>(run.all() - number);
  return ProgressState{
      .epoch = step.epoch + 1,
      .epochs = run.epochs,
      .step_of_epoch = run.in_epoch(step),
      .steps_per_epoch = run.per_epoch,
      .loss = loss,
      .samples_per_second = rate_,
      // The elapsed time starts after the first step.
      .seconds_left =
          elapsed / static_cast<double>(std::max<std::int64_t>(number - first_step_, 1)) * left};
}

}  // namespace lockstep
