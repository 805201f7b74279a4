// SPDX-License-Identifier: BSD-3-Clause
// Passes counts through the launcher's store.
#include "tools/bench/bench_progress.h"

#include <optional>
#include <sstream>

#include <fmt/format.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/rendezvous/local_store.h"
#include "tools/recipes/progress_bar.h"

namespace lockstep::bench {
namespace {

constexpr const char* kBenchProgressKey = "bench/progress";

}  // namespace

StatusLine bench_status(OutputStream stream, const std::string& what) {
  return {.stream = stream,
          .key = kBenchProgressKey,
          .render = [=](const std::string& value, int columns) {
            std::istringstream words(value);
            int measured = 0;
            int all = 0;
            if (!(words >> measured >> all)) return std::string();
            std::optional<double> seconds_left;
            if (double left = 0; words >> left) seconds_left = left;
            return count_bar(what, measured, all, seconds_left, columns, coloured(stream));
          }};
}

BenchProgress::BenchProgress(std::chrono::steady_clock::time_point start) : start_(start) {
  const auto path = environment("LOCKSTEP_STORE");
  if (path && is_rank()) {
    store_ = std::make_unique<LocalStore>(*path, StoreUser{.patience = std::chrono::seconds(1)});
  }
}

void BenchProgress::done(int measured, int all) {
  if (!store_) return;
  std::string state = fmt::format("{} {}", measured, all);
  if (measured > 0) {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start_;
    state += fmt::format(" {}", elapsed.count() / measured * (all - measured));
  }
  try {
    store_->set(kBenchProgressKey, state);
  } catch (const Error&) {
    store_.reset();  // the measurement does not need its bar
  }
}

}  // namespace lockstep::bench
