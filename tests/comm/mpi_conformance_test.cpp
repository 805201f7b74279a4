// SPDX-License-Identifier: BSD-3-Clause
// The mpi backend does what every backend must do. mpirun starts this program as every rank, so
// that all of them run all tests, each its own part.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "comm/conformance/conformance.h"
#include "comm/join_on_hosts.h"
#include "support/rank_state.h"
#include <dlfcn.h>
#include <fmt/format.h>

#include "lockstep/comm/core/make_backends.h"
#include "lockstep/rendezvous/mpi_library.h"

namespace lockstep::testing {
namespace {

using namespace std::chrono_literals;

// Announces points by files in the folder that the ranks of one run share.
struct MpiState : Rank::State {
  void announce(std::string_view cue) override { std::ofstream(file(rank, cue)) << "here"; }
  void wait_for(int from, std::string_view cue) override {
    const Deadline deadline = Deadline::after(60s);
    while (!std::filesystem::exists(file(from, cue))) {
      if (deadline.passed()) throw std::runtime_error("rank " + std::to_string(from) + " is late");
      std::this_thread::sleep_for(1ms);
    }
  }
  std::string file(int from, std::string_view cue) const {
    return fmt::format("{}/cue {} {}", folder, from, cue);
  }
};

// A process that had a group fail leaves MPI without a farewell, and mpirun takes that for a
// failure of the job. Here all ranks are known to be there.
class FarewellToMpi : public ::testing::Environment {
 public:
  void TearDown() override {
    if (used) reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "MPI_Finalize"))();
  }
  static inline bool used = false;
};
[[maybe_unused]] const auto* const farewell =
    ::testing::AddGlobalTestEnvironment(new FarewellToMpi);

// LOCKSTEP_TEST_FOLDER is one for all ranks, and new.
std::vector<RankOutcome> run_mpi(int size, const std::function<void(Rank&)>& function,
                                 const LaunchOptions& /*options*/, std::source_location /*where*/) {
  const MpiLibrary& mpi = MpiLibrary::get();
  FarewellToMpi::used = true;
  static int runs = 0;
  if (mpi.size() != size) {
    throw std::runtime_error(fmt::format("start it with mpirun -n {}, not {}", size, mpi.size()));
  }
  std::vector<BoardEntry> board(static_cast<std::size_t>(size));
  MpiState state;
  state.rank = mpi.rank();
  state.size = size;
  state.board = board.data();
  state.folder = fmt::format("{}/{}", std::getenv("LOCKSTEP_TEST_FOLDER"), runs++);
  std::filesystem::create_directories(state.folder);
  Rank rank(state);
  try {
    function(rank);
  } catch (const std::exception& error) {
    ADD_FAILURE() << "rank " << rank.rank() << ": " << error.what();
  }
  return std::vector<RankOutcome>(static_cast<std::size_t>(size));
}

std::shared_ptr<ProcessGroup> join_by_mpi(Rank& rank, JoinOptions options) {
  options.backend = "mpi";
  return join(rank, options);
}

const TestedBackend kMpi = {
    .name = "mpi", .join = join_by_mpi, .groups_in_a_loop = 100, .run = run_mpi};
const TestedBackend kHierarchicalMpi = {.name = "hierarchical",
                                        .join =
                                            [](Rank& rank, const JoinOptions& options) {
                                              return join_on_hosts(rank, options, make_mpi_backend);
                                            },
                                        .groups_in_a_loop = 50,
                                        .run = run_mpi};

INSTANTIATE_TEST_SUITE_P(mpi, ResultsConformance, ::testing::ValuesIn(cases(kMpi, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(mpi, LifetimeConformance, ::testing::ValuesIn(cases(kMpi, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(mpi, CallsConformance, ::testing::ValuesIn(cases(kMpi, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(mpi, AbsenceConformance, ::testing::ValuesIn(cases(kMpi, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(mpi, TrainingConformance, ::testing::ValuesIn(cases(kMpi, {2, 3})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical_mpi, ResultsConformance,
                         ::testing::ValuesIn(cases(kHierarchicalMpi, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical_mpi, LifetimeConformance,
                         ::testing::ValuesIn(cases(kHierarchicalMpi, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical_mpi, CallsConformance,
                         ::testing::ValuesIn(cases(kHierarchicalMpi, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical_mpi, AbsenceConformance,
                         ::testing::ValuesIn(cases(kHierarchicalMpi, {3})), case_name);
INSTANTIATE_TEST_SUITE_P(hierarchical_mpi, TrainingConformance,
                         ::testing::ValuesIn(cases(kHierarchicalMpi, {3})), case_name);

}  // namespace
}  // namespace lockstep::testing
