// SPDX-License-Identifier: BSD-3-Clause
// Reads /proc/stat and the scheduler's account of a thread.
#include "lockstep/core/process/load.h"

#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include <fmt/format.h>

#include "lockstep/core/process/cpu.h"

namespace lockstep {
namespace {

struct CoreTicks {
  double idle = 0;
  double all = 0;
};

// "cpu1 user nice system idle iowait irq softirq steal ...", a line for each core.
std::map<int, CoreTicks> ticks_of_cores(const std::string& stat) {
  std::map<int, CoreTicks> cores;
  std::istringstream lines(stat);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("cpu") || line.starts_with("cpu ")) continue;
    std::istringstream fields(line.substr(3));
    int core = 0;
    fields >> core;
    CoreTicks ticks;
    double number = 0;
    constexpr int kIdle = 3;
    constexpr int kIoWait = 4;
    constexpr int kGuest = 8;  // counted in user and nice
    for (int i = 0; i < kGuest && fields >> number; ++i) {
      ticks.all += number;
      if (i == kIdle || i == kIoWait) ticks.idle += number;
    }
    cores[core] = ticks;
  }
  return cores;
}

std::string text_of(const char* path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

std::optional<double> idle_cores(const std::string& before, const std::string& after,
                                 const std::vector<int>& cores) {
  const auto then = ticks_of_cores(before);
  const auto now = ticks_of_cores(after);
  double idle = 0;
  for (const int core : cores) {
    if (!then.contains(core) || !now.contains(core)) return {};
    const double all = now.at(core).all - then.at(core).all;
    if (all <= 0) return {};
    idle += (now.at(core).idle - then.at(core).idle) / all;
  }
  return idle;
}

std::optional<double> idle_cores(std::chrono::milliseconds window) {
  const std::string before = text_of("/proc/stat");
  std::this_thread::sleep_for(window);
  return idle_cores(before, text_of("/proc/stat"), allowed_cores());
}

CoreWait::CoreWait() : start_(times()) {}

std::optional<CoreWait::Times> CoreWait::times() {
  std::ifstream file("/proc/thread-self/schedstat");
  Times times;
  if (!(file >> times.running >> times.waiting)) return {};
  return times;
}

std::optional<double> CoreWait::share() const {
  const auto now = times();
  if (!start_ || !now) return {};
  const double waiting = now->waiting - start_->waiting;
  const double all = waiting + now->running - start_->running;
  return all > 0 ? waiting / all : 0;
}

std::string overload(std::optional<double> core_wait) {
  constexpr double kNoticeable = 0.1;
  if (core_wait.value_or(0) < kNoticeable) return {};
  return fmt::format(
      "The load exceeds the cores: a rank waited for one {:.0f} % of its time. Stop other "
      "programs.",
      *core_wait * 100);
}

}  // namespace lockstep
