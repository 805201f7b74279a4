// SPDX-License-Identifier: BSD-3-Clause
// Secrets from files and descriptors, and which of them are refused.
#include "lockstep/core/net/secret.h"

#include <filesystem>
#include <fstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {
namespace {

using ::testing::HasSubstr;

class Secret : public ::testing::Test {
 protected:
  void write(const std::string& text, mode_t mode) {
    std::ofstream(file_) << text;
    ::chmod(file_.c_str(), mode);
  }
  void expect_refused(const std::string& why) {
    try {
      read_secret(file_);
      ADD_FAILURE() << "it was read";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
      EXPECT_THAT(error.what(), HasSubstr(file_));
    }
  }
  ~Secret() override { std::filesystem::remove(file_); }

  const std::string file_ = ::testing::TempDir() + "/lockstep-secret-" + std::to_string(::getpid());
};

TEST_F(Secret, IsReadFromAFileOfTheUsersOwn) {
  for (const mode_t mode : {0600, 0400}) {
    write("0123456789abcdef\n", 0600);
    ::chmod(file_.c_str(), mode);
    EXPECT_EQ(read_secret(file_), "0123456789abcdef\n");
    ::chmod(file_.c_str(), 0600);
  }
}

TEST_F(Secret, OthersMustNotReadIt) {
  for (const mode_t mode : {0644, 0640, 0604, 0660, 0700}) {
    write("0123456789abcdef", mode);
    expect_refused("chmod 600");
  }
}

TEST_F(Secret, MustHaveAUsefulLength) {
  write("short", 0600);
  expect_refused("16 to 4096 bytes");
  write(std::string(5000, 'x'), 0600);
  expect_refused("16 to 4096 bytes");
}

TEST_F(Secret, MustBeThere) {
  expect_refused("No such file");
}

// Every rank has the same descriptor, and with it the same place in the file.
TEST_F(Secret, IsReadFromADescriptorAgainAndAgain) {
  write("0123456789abcdef", 0600);
  const UniqueFd fd(::open(file_.c_str(), O_RDONLY));
  EXPECT_EQ(read_secret(fd.get()), "0123456789abcdef");
  EXPECT_EQ(read_secret(fd.get()), "0123456789abcdef");
}

TEST_F(Secret, ADescriptorMustBeAFileThatIsOpen) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const UniqueFd reading(ends[0]);
  const UniqueFd writing(ends[1]);
  const auto expect_error = [](int fd, const std::string& why) {
    try {
      read_secret(fd);
      ADD_FAILURE() << "it was read";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr(why));
      EXPECT_THAT(error.what(), HasSubstr("descriptor " + std::to_string(fd)));
    }
  };
  expect_error(ends[0], "a pipe");
  expect_error(1234, "must leave it open");
  write("short", 0600);
  const UniqueFd file(::open(file_.c_str(), O_RDONLY));
  expect_error(file.get(), "and has 5");
}

}  // namespace
}  // namespace lockstep
