// SPDX-License-Identifier: BSD-3-Clause
// The command line of `lockstep run`, and the number of ranks that it means.
#include "tools/cli/run_command.h"

#include <filesystem>
#include <fstream>

#include "support/private_tmpdir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"

namespace lockstep::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

struct Split {
  std::vector<std::string> options;
  std::vector<std::string> program;
};

Split split(std::vector<std::string> arguments) {
  ::CLI::App app;
  RunCommand command;
  command.describe(app);
  command.take_program(app, arguments);
  return {arguments, command.program};
}

TEST(RunCommand, FindsTheProgramAmongTheOptions) {
  Split parts = split({"-n", "2", "prog", "-n", "3", "--", "--no-prefix"});
  EXPECT_THAT(parts.options, ElementsAre("-n", "2"));
  EXPECT_THAT(parts.program, ElementsAre("prog", "-n", "3", "--", "--no-prefix"));
  parts = split({"--nproc_per_node=2", "--standalone", "--log-dir", "logs", "prog"});
  EXPECT_THAT(parts.options,
              ElementsAre("--nproc_per_node=2", "--standalone", "--log-dir", "logs"));
  EXPECT_THAT(parts.program, ElementsAre("prog"));
  parts = split({"-n4", "--local-ranks-filter", "0,1", "--", "-odd", "--", "x"});
  EXPECT_THAT(parts.options, ElementsAre("-n4", "--local-ranks-filter", "0,1"));
  EXPECT_THAT(parts.program, ElementsAre("-odd", "--", "x"));
  parts = split({"--no-prefix", "-n"});
  EXPECT_THAT(parts.options, ElementsAre("--no-prefix", "-n"));
  EXPECT_THAT(parts.program, IsEmpty());
}

class Gpus : public ::testing::Test {
 protected:
  Gpus() {
    for (const char* name :
         {"nvidia0", "nvidia1", "nvidia10", "nvidiactl", "nvidia-uvm", "nvidia"}) {
      std::ofstream(tmpdir.path() / name);
    }
    ::unsetenv("CUDA_VISIBLE_DEVICES");
  }
  ~Gpus() override { ::unsetenv("CUDA_VISIBLE_DEVICES"); }

  int count() const { return count_gpus(tmpdir.path()); }
  int count_visible(const char* list) const {
    ::setenv("CUDA_VISIBLE_DEVICES", list, 1);
    return count();
  }

  const lockstep::testing::PrivateTmpdir tmpdir;
};

TEST_F(Gpus, AreThoseThatCudaMaySee) {
  EXPECT_EQ(count(), 3);
  EXPECT_EQ(count_visible("1"), 1);
  EXPECT_EQ(count_visible("0,1"), 2);
  EXPECT_EQ(count_visible("0,1,2,3,4"), 3);
  EXPECT_EQ(count_visible(""), 0);
  EXPECT_EQ(count_visible("-1"), 0);
  EXPECT_EQ(count_visible("0,-1,1"), 1);
  EXPECT_EQ(count_visible("GPU-8932f937,GPU-1234"), 2);
  EXPECT_EQ(count_gpus("/nowhere"), 0);
}

TEST_F(Gpus, DecideTheNumberOfRanks) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
  EXPECT_EQ(parse_ranks("auto"), available_cores());
  EXPECT_EQ(parse_ranks("cpu"), available_cores());
  EXPECT_EQ(parse_ranks("17"), 17);
  EXPECT_THAT([] { parse_ranks("gpu"); }, ThrowsMessage<UsageError>(HasSubstr("no NVIDIA GPU")));
  for (const char* text : {"0", "-1", "two", "2x", "", "99999999999", "0x2", " 2", "+2"}) {
    EXPECT_THAT([&] { parse_ranks(text); },
                ThrowsMessage<UsageError>(HasSubstr('"' + std::string(text) + '"')));
  }
}

}  // namespace
}  // namespace lockstep::cli
