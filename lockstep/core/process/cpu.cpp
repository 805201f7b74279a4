// SPDX-License-Identifier: BSD-3-Clause
// Asks the kernel, the control group and loaded thread libraries about cores and threads.
#include "lockstep/core/process/cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include <dlfcn.h>
#include <fmt/format.h>
#include <sched.h>

#include "lockstep/core/process/cgroup.h"

namespace lockstep {
namespace {

template <class... Arguments>
void call_if_loaded(const char* function, Arguments... arguments) {
  if (auto* address = dlsym(RTLD_DEFAULT, function)) {
    reinterpret_cast<void (*)(Arguments...)>(address)(arguments...);
  }
}

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

std::vector<int> allowed_cores(pid_t process) {
  std::vector<int> cores;
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (sched_getaffinity(process, sizeof mask, &mask) != 0) {
    return process == 0 ? std::vector{0} : std::vector<int>();
  }
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &mask)) cores.push_back(core);
  }
  return cores;
}

int cut_to_quota(int cores) {
  const double quota = Cgroup().cpu_quota().value_or(cores);
  return std::max(1, quota < cores ? static_cast<int>(std::ceil(quota)) : cores);
}

int available_cores() {
  return cut_to_quota(static_cast<int>(allowed_cores().size()));
}

void pin_to_cores(const std::vector<int>& cores, pid_t thread) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  for (int core : cores) CPU_SET(core, &mask);
  sched_setaffinity(thread, sizeof mask, &mask);
}

void limit_threads(int threads) {
  const std::string count = std::to_string(threads);
  setenv("OMP_NUM_THREADS", count.c_str(), 1);
  setenv("OPENBLAS_NUM_THREADS", count.c_str(), 1);
  limit_loaded_threads(threads);
}

void limit_loaded_threads(int threads) {
  call_if_loaded("omp_set_num_threads", threads);
  call_if_loaded("openblas_set_num_threads", threads);
}

void set_openmp_threads(int threads) {
  static auto* const set =
      reinterpret_cast<void (*)(int)>(dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (set != nullptr) set(threads);
}

void renew_libtorchs_threads() {
  call_if_loaded("_ZN2at16init_num_threadsEv");  // at::init_num_threads()
}

std::string oversubscription(int ranks, int cores) {
  if (ranks <= cores) return "";
  return fmt::format(
      "{} ranks share {} core{} and take turns, which slows them down; start at most {} on this "
      "machine (`lockstep doctor` shows what limits its cores)",
      ranks, cores, cores == 1 ? "" : "s", cores);
}

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
