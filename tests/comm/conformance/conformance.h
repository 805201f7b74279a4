// SPDX-License-Identifier: BSD-3-Clause
// What every backend of ProcessGroup must do. A backend instantiates the suites in a file of
// its own (shm_conformance_test.cpp); it says how ranks start, how they join, and what it can do.
#pragma once

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "support/join.h"
#include "support/rank_processes.h"
#include <gtest/gtest.h>

#include "lockstep/comm/process_group.h"

namespace lockstep::testing {

struct TestedBackend {
  // As ProcessGroup::backend() says it.
  std::string name;
  std::function<std::shared_ptr<ProcessGroup>(Rank&, const JoinOptions&)> join;
  // So many are made in a loop to see whether they leave anything behind. Connecting takes time.
  int groups_in_a_loop = 500;
  at::DeviceType device = at::kCPU;
  // Ranks reach each other's tensors where they lie.
  bool shares_memory = false;
  // It leaves sums to a library, which rounds where it likes, and may lose a NaN in a minimum.
  bool sums_by_a_library = false;
  // Runs the function on that many ranks: run_ranks for processes.
  std::function<std::vector<RankOutcome>(int size, const std::function<void(Rank&)>& function,
                                         const LaunchOptions& options, std::source_location where)>
      run = run_ranks;
};

struct Case {
  TestedBackend backend;
  int size = 1;
};

// One case for each world size.
std::vector<Case> cases(const TestedBackend& backend, const std::vector<int>& sizes);
// "of_4": the end of the test's name.
std::string case_name(const ::testing::TestParamInfo<Case>& info);
void PrintTo(const Case& value, std::ostream* stream);

class Conformance : public ::testing::TestWithParam<Case> {
 protected:
  int size() const { return GetParam().size; }
  const TestedBackend& backend() const { return GetParam().backend; }

  std::shared_ptr<ProcessGroup> join(Rank& rank, JoinOptions options = {}) const {
    return backend().join(rank, options);
  }

  // Runs the function on every rank.
  std::vector<RankOutcome> run(const std::function<void(Rank&)>& function,
                               const LaunchOptions& options = {},
                               std::source_location where = std::source_location::current()) const {
    return backend().run(size(), function, options, where);
  }

  // The same with a group that the rank has joined.
  std::vector<RankOutcome> run_in_group(
      const std::function<void(Rank&, ProcessGroup&)>& function, const LaunchOptions& options = {},
      std::source_location where = std::source_location::current()) const;

  // That `actual` is the reduction of all ranks' inputs: to the last bit, but for means that a
  // library computes.
  void expect_reduced(const at::Tensor& actual, const std::vector<at::Tensor>& inputs,
                      const AllReduceOptions& options, const std::string& what) const;
};

// What each collective computes, for all types, sizes and kinds of memory.
class ResultsConformance : public Conformance {};
// Works, groups and tensors: order of waiting and of destruction, several groups.
class LifetimeConformance : public Conformance {};
// Many more ranks than cores, for backends that share memory.
class OversubscriptionConformance : public Conformance {};
// Wrong arguments, and calls that do not match.
class CallsConformance : public Conformance {};
// Ranks that leave, abort, or do not call. For world sizes of 2 and more, like the next.
class AbsenceConformance : public Conformance {};
// Ranks that die, stop, or never come: for backends whose ranks are processes.
class FaultConformance : public Conformance {};
// Models in DistributedDataParallel, and in both that and DataParallel.
class TrainingConformance : public Conformance {};

}  // namespace lockstep::testing
