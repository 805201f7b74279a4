// SPDX-License-Identifier: BSD-3-Clause
// Shows on a terminal how far a measurement by ranks has come.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "lockstep/launch/rank_reports.h"
#include "lockstep/rendezvous/store.h"

namespace lockstep::bench {

// For SpawnOptions: a bar that begins with `what`, on this stream.
StatusLine bench_status(OutputStream stream, const std::string& what);

// In the rank that reports; under a launcher, which shows no bar, it does nothing.
class BenchProgress {
 public:
  // `start` is that of all measurements, for the remaining time.
  explicit BenchProgress(
      std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now());

  // Takes up to a millisecond: call it between measurements. Never throws.
  void done(int measured, int all);

 private:
  std::unique_ptr<Store> store_;
  std::chrono::steady_clock::time_point start_;
};

}  // namespace lockstep::bench
