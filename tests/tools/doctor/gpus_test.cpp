// SPDX-License-Identifier: BSD-3-Clause
// The diagnosis of GPUs.
#include "tools/doctor/gpus.h"

#include <filesystem>
#include <fstream>

#include "support/private_tmpdir.h"
#include <gmock/gmock.h>

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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
