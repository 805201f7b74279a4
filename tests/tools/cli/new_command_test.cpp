// SPDX-License-Identifier: BSD-3-Clause
// The files of a new project. tests/package builds and trains it.
#include <filesystem>
#include <fstream>
#include <sstream>

#include "support/program.h"
#include "support/temporary_folder.h"
#include <gmock/gmock.h>

namespace lockstep {
namespace {

using testing::Ended;
using ::testing::HasSubstr;
using ::testing::Not;

// With a copy of the command, which is in no build folder, as after an installation.
Ended write_project(const std::string& folder) {
  const testing::TemporaryFolder prefix;
  const std::filesystem::path bin = prefix.path() / "bin";
  std::filesystem::create_directory(bin);
  std::filesystem::copy_file(LOCKSTEP_PROGRAM, bin / "lockstep");
  return testing::run_to_end({bin / "lockstep", "new", folder});
}

std::string text_of(const std::filesystem::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

TEST(NewCommand, WritesAProject) {
  const testing::TemporaryFolder folder;
  const std::filesystem::path project = folder.path() / "digits-1";
  const Ended ended = write_project(project.string() + "/");
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("cmake --build --preset release"));
  for (const char* file : {"main.cpp", "model.h", "model_test.cpp", ".gitignore", "README.md",
                           "CMakePresets.json", ".devcontainer/Dockerfile",
                           ".devcontainer/devcontainer.json", ".github/workflows/build.yml"}) {
    const std::string text = text_of(project / file);
    EXPECT_FALSE(text.empty()) << file;
    for (const char* mark : {"@NAME@", "@VERSION@", "@PREFIX@"}) {
      EXPECT_THAT(text, Not(HasSubstr(mark))) << file;
    }
  }
  EXPECT_THAT(text_of(project / "CMakeLists.txt"), HasSubstr("project(digits-1 LANGUAGES CXX)"));
  const std::string program = text_of(project / "main.cpp");
  EXPECT_THAT(program, HasSubstr("DistributedDataParallel model(net, group)"));
  // What it prints is of all ranks.
  EXPECT_THAT(program, HasSubstr("lockstep::mean_over_ranks("));
  EXPECT_THAT(program, HasSubstr("lockstep::accuracy("));
}

TEST(NewCommand, TouchesNoFolderWithFilesAndTakesNoImpossibleName) {
  const testing::TemporaryFolder folder;
  const std::string full = folder.path() / "full";
  const std::string file = folder.path() / "file";
  std::filesystem::create_directory(full);
  std::ofstream(full + "/notes.txt") << "mine";
  std::ofstream(file) << "mine";
  const Ended in_full = write_project(full);
  EXPECT_EQ(in_full.code, 2);
  EXPECT_THAT(in_full.err, HasSubstr("full is not empty; name a new folder"));
  EXPECT_FALSE(std::filesystem::exists(full + "/main.cpp"));
  const Ended on_file = write_project(file);
  EXPECT_EQ(on_file.code, 2);
  EXPECT_THAT(on_file.err, HasSubstr("file is a file"));
  for (const char* name : {"1st", "two words", "a\"b"}) {
    const Ended wrong = write_project(folder.path() / name);
    EXPECT_EQ(wrong.code, 2) << name;
    EXPECT_THAT(wrong.err, HasSubstr("cannot be the name of a project")) << name;
  }
}

TEST(NewCommand, OfABuildFolderAsksForAnInstallation) {
  const testing::TemporaryFolder folder;
  const std::filesystem::path project = folder.path() / "digits";
  const Ended ended = testing::run_to_end({LOCKSTEP_PROGRAM, "new", project});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.err, HasSubstr("install it with cmake --install "));
  EXPECT_FALSE(std::filesystem::exists(project));
}

}  // namespace
}  // namespace lockstep
