// SPDX-License-Identifier: BSD-3-Clause
// Diagnoses the BLAS (its name, its speed, the advice about a slow one) and the GPUs.
#include <filesystem>
#include <fstream>

#include "support/private_tmpdir.h"
#include "support/rank_processes.h"
#include <gmock/gmock.h>

#include "tools/doctor/probes.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
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

void describe_gpu(const std::filesystem::path& folder, const std::string& text) {
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "information") << text;
}

TEST(Gpus, TheirModelsComeFromTheDriver) {
  const testing::PrivateTmpdir driver;
  describe_gpu(driver.path() / "0000:3b:00.0", "Model: \t\t NVIDIA A100\nIRQ:   \t\t 17\n");
  describe_gpu(driver.path() / "0000:5e:00.0", "Model: \t\t NVIDIA H100\n");
  describe_gpu(driver.path() / "0000:86:00.0", "IRQ: \t 17\nModel:\n");
  EXPECT_THAT(gpu_models(driver.path()),
              ElementsAre("NVIDIA A100", "NVIDIA H100", "without a name"));
  EXPECT_THAT(gpu_models("/absent"), IsEmpty());
}

TEST(Gpus, NoneIsFineWhereThereAreNone) {
  const Finding finding = judge_gpus({});
  EXPECT_EQ(finding.state, Finding::State::ok);
  EXPECT_EQ(finding.found, "none: this machine shows no NVIDIA GPU");
}

TEST(Gpus, ThoseThatCanBeUsedAreCounted) {
  const Finding finding = judge_gpus({.models = {"NVIDIA A100", "NVIDIA A100"},
                                      .usable = 1,
                                      .libtorch_has_cuda = true,
                                      .visible_devices = "1"});
  EXPECT_EQ(finding.state, Finding::State::ok);
  EXPECT_EQ(finding.found,
            "libtorch can use 1 (CUDA_VISIBLE_DEVICES=1); this machine has NVIDIA A100, NVIDIA "
            "A100");
}

TEST(Gpus, SaysWhyThereIsNone) {
  Gpus gpus{.models = {"NVIDIA A100"}};
  EXPECT_EQ(judge_gpus(gpus).state, Finding::State::note);
  EXPECT_THAT(judge_gpus(gpus).found, HasSubstr("without CUDA"));
  gpus.libtorch_has_cuda = true;
  EXPECT_EQ(judge_gpus(gpus).state, Finding::State::broken);
  EXPECT_THAT(judge_gpus(gpus).advice, HasSubstr("driver"));
  gpus.visible_devices = "";
  EXPECT_EQ(judge_gpus(gpus).state, Finding::State::note);
  EXPECT_THAT(judge_gpus(gpus).found,
              AllOf(HasSubstr("CUDA_VISIBLE_DEVICES="), HasSubstr("NVIDIA A100")));
}

}  // namespace
}  // namespace lockstep
