// SPDX-License-Identifier: BSD-3-Clause
// What a process may use of the machine, in processes with limits.
#include "support/rank_processes.h"
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "lockstep/core/process/cpu.h"
#include "tools/doctor/probes.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(InBytes, TakesTheUnitThatFits) {
  EXPECT_EQ(in_bytes(0), "0 MiB");
  EXPECT_EQ(in_bytes(64 << 20), "64 MiB");
  EXPECT_EQ(in_bytes(std::int64_t{3} << 29), "1.5 GiB");
}

TEST(CoresProbe, TellsTheMaskFromTheMachine) {
  run_ranks(1, [](Rank&) {
    const int core = allowed_cores().back();
    pin_to_cores({core});
    EXPECT_THAT(probe_cores().found,
                HasSubstr("allows 1 (" + std::to_string(core) + "); with the quota, 1 at once"));
  });
}

TEST(MemoryProbe, KnowsTheLimitOfTheAddressSpace) {
  run_ranks(1, [](Rank&) {
    constexpr rlim_t kBytes = rlim_t{1} << 60;
    const rlimit limit{kBytes, kBytes};
    ASSERT_EQ(::setrlimit(RLIMIT_AS, &limit), 0);
    const Finding finding = probe_memory();
    EXPECT_EQ(finding.state, Finding::State::note);
    EXPECT_THAT(finding.found,
                AllOf(HasSubstr("1073741824.0 GiB (RLIMIT_AS)"), HasSubstr("/dev/shm")));
    EXPECT_THAT(finding.advice, HasSubstr("ulimit -v"));
  });
}

Finding threads_with(const char* name, const std::string& value) {
  ::setenv(name, value.c_str(), 1);
  return probe_threads();
}

TEST(ThreadsProbe, SaysWhatTheEnvironmentSays) {
  run_ranks(1, [](Rank&) {
    ::unsetenv("OMP_WAIT_POLICY");
    const Finding finding = probe_threads();
    EXPECT_EQ(finding.state, Finding::State::ok) << finding.advice;
    EXPECT_THAT(finding.found, AllOf(HasSubstr("libtorch uses 1"), HasSubstr("OMP_NUM_THREADS=1"),
                                     HasSubstr("OPENBLAS_NUM_THREADS=1"),
                                     HasSubstr("OMP_WAIT_POLICY is not set")));
    EXPECT_THAT(threads_with("OMP_WAIT_POLICY", "active").advice, HasSubstr("OMP_WAIT_POLICY"));
    EXPECT_THAT(threads_with("OMP_NUM_THREADS", "2,1").advice, Not(HasSubstr("OMP_NUM_THREADS=")));
    for (const char* nonsense : {"many", "0", "-1", "2x"}) {
      const Finding refused = threads_with("OMP_NUM_THREADS", nonsense);
      EXPECT_EQ(refused.state, Finding::State::broken);
      EXPECT_THAT(refused.advice, AllOf(HasSubstr("OMP_NUM_THREADS=\"" + std::string(nonsense)),
                                        HasSubstr("give a whole number from 1 to")));
    }
    ::setenv("OMP_NUM_THREADS", "1", 1);
    EXPECT_EQ(threads_with("OPENBLAS_NUM_THREADS", "2x").state, Finding::State::note);
  });
}

TEST(ThreadsProbe, MoreThanTheCoresIsANote) {
  run_ranks(1, [](Rank&) {
    at::set_num_threads(available_cores() + 1);
    const Finding finding = probe_threads();
    EXPECT_EQ(finding.state, Finding::State::note);
    EXPECT_THAT(finding.advice, HasSubstr("lockstep run"));
  });
}

}  // namespace
}  // namespace lockstep::testing
