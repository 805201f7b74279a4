// SPDX-License-Identifier: BSD-3-Clause
// What a measurement shows: its progress on a terminal, and its results as text and as JSON, whose
// fields docs/cli.md documents.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/launch/rank_reports.h"
#include "lockstep/rendezvous/store.h"
#include "tools/bench/collective_bench.h"
#include "tools/bench/dp_bench.h"
#include "tools/bench/memory_plan.h"
#include "tools/bench/step_bench.h"

namespace lockstep::bench {

// Returns, for SpawnOptions, a progress bar that begins with `what`, on this stream.
StatusLine bench_status(OutputStream stream, const std::string& what);

// Reports progress from a rank. Does nothing under a launcher, which shows no bar.
class BenchProgress {
 public:
  // `start` is when the first of all measurements began, for the remaining time.
  explicit BenchProgress(
      std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now());

  // `measured` of `all` measurements are done. Takes up to a millisecond: call it between
  // measurements. Never throws.
  void done(int measured, int all);

 private:
  std::unique_ptr<Store> store_;
  std::chrono::steady_clock::time_point start_;
};

// Returns the measured collective and the column names; ends with a newline.
std::string heading(const CollectiveBench& bench, int ranks);
// Returns a row that is as wide as the heading's columns; ends with a newline.
std::string to_line(const CollectiveRow& row);
// Returns one object, on one line.
std::string to_json(const CollectiveBench& bench, int ranks,
                    const std::vector<CollectiveRow>& rows);

// Formats the steps of a model. The cost of DDP is its difference from the floor, the second row.
std::string to_table(const TrainingStep& step, const StepRows& rows);
std::string to_json(const TrainingStep& step, const StepRows& rows);

// Formats the rows with the speedup of each over the first.
std::string to_table(const TrainingStep& step, const std::vector<DpRow>& rows);
std::string to_json(const TrainingStep& step, const std::vector<DpRow>& rows);

// Formats plans of the same number of ranks. `available`: bytes that all processes of this machine
// can still allocate together.
std::string to_table(const TrainingStep& step, const std::vector<MemoryPlan>& plans,
                     std::int64_t available);
std::string to_json(const TrainingStep& step, const std::vector<MemoryPlan>& plans,
                    std::int64_t available);

}  // namespace lockstep::bench
