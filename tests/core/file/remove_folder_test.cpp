// SPDX-License-Identifier: BSD-3-Clause
// Folders that go away with what is in them, and those that cannot.
#include "lockstep/core/file/remove_folder.h"

#include <filesystem>
#include <fstream>
#include <system_error>

#include "support/temporary_folder.h"
#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep {
namespace {

namespace fs = std::filesystem;

class RemoveFolder : public ::testing::Test {
 protected:
  fs::path in(const char* name) const { return folder_.path() / name; }
  const testing::TemporaryFolder folder_;
};

TEST_F(RemoveFolder, RemovesFoldersFilesAndLinksButNotWhatTheseLeadTo) {
  fs::create_directories(in("whole/deep/deeper"));
  std::ofstream(in("whole/deep/file")) << "text";
  std::ofstream(in("kept")) << "text";
  fs::create_directory(in("kept_folder"));
  std::ofstream(in("kept_folder/file")) << "text";
  fs::create_symlink(in("kept"), in("whole/link"));
  fs::create_directory_symlink(in("kept_folder"), in("whole/deep/link"));
  EXPECT_FALSE(remove_folder(in("whole")));
  EXPECT_FALSE(fs::exists(in("whole")));
  EXPECT_TRUE(fs::exists(in("kept")));
  EXPECT_TRUE(fs::exists(in("kept_folder/file")));
  EXPECT_FALSE(remove_folder(in("kept")));
  EXPECT_FALSE(fs::exists(in("kept")));
}

TEST_F(RemoveFolder, IsContentIfThereIsNone) {
  EXPECT_FALSE(remove_folder(in("nothing")));
}

// Root may remove everything.
class NotRoot {
 public:
  NotRoot() {
    if (::geteuid() == 0) is_changed_ = ::seteuid(kNobody) == 0;
  }
  ~NotRoot() {
    if (is_changed_ && ::seteuid(0) != 0) ADD_FAILURE() << "cannot become root again";
  }
  NotRoot(const NotRoot&) = delete;
  NotRoot& operator=(const NotRoot&) = delete;

 private:
  static constexpr uid_t kNobody = 65534;
  bool is_changed_ = false;
};

TEST_F(RemoveFolder, ReturnsTheErrorAndRemovesTheRest) {
  fs::create_directories(in("whole/locked/deep"));
  std::ofstream(in("whole/file")) << "text";
  fs::permissions(folder_.path(), fs::perms::all);
  fs::permissions(in("whole"), fs::perms::all);
  fs::permissions(in("whole/locked"), fs::perms(0555));
  {
    const NotRoot user;
    EXPECT_EQ(remove_folder(in("whole")), std::errc::permission_denied);
  }
  EXPECT_FALSE(fs::exists(in("whole/file")));
  EXPECT_TRUE(fs::exists(in("whole/locked/deep")));
  fs::permissions(in("whole/locked"), fs::perms::all);
}

}  // namespace
}  // namespace lockstep
