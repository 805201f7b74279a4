// SPDX-License-Identifier: BSD-3-Clause
// Diagnoses the BLAS: its name, its speed, and the advice about a slow one.
#include "tools/doctor/blas.h"

#include "support/rank_processes.h"
#include <gmock/gmock.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(Blas, FindsTheOneThatIsLoaded) {
  testing::run_ranks(1, [](testing::Rank&) {
    const Blas blas = find_blas();
    EXPECT_THAT(blas.file, Not(IsEmpty()));
    // The scripts install one of these.
    EXPECT_THAT(blas.name, ::testing::ContainsRegex("OpenBLAS|Math Kernel Library|BLIS"));
    EXPECT_GT(measure_product(), 0);
  });
}

TEST(Blas, AFastOneIsFine) {
  const Finding finding = judge_blas({"OpenBLAS 0.3.21", "/lib/libblas.so.3"}, 93.71);
  EXPECT_EQ(finding.state, Finding::State::ok);
  EXPECT_EQ(finding.found,
            "OpenBLAS 0.3.21; /lib/libblas.so.3; 93.7 GFLOP/s in a product of 256 x 256 floats");
  EXPECT_THAT(finding.advice, IsEmpty());
}

TEST(Blas, OneWithoutANameIsSlowAndHasARemedy) {
  const Finding finding = judge_blas({"", "/lib/blas/libblas.so.3.11.0"}, 3.8);
  EXPECT_EQ(finding.state, Finding::State::note);
  EXPECT_THAT(finding.found, AllOf(HasSubstr("/lib/blas/libblas.so.3.11.0"),
                                   HasSubstr("25 times slower"), HasSubstr("3.8 GFLOP/s")));
  EXPECT_THAT(finding.advice, HasSubstr("libopenblas0-pthread"));
}

TEST(Blas, OneThatCannotBeToldIsANote) {
  const Finding finding = judge_blas({}, 50);
  EXPECT_EQ(finding.state, Finding::State::note);
  EXPECT_THAT(finding.found, HasSubstr("50.0 GFLOP/s"));
}

}  // namespace
}  // namespace lockstep
