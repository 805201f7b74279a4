// SPDX-License-Identifier: BSD-3-Clause
// Files that are replaced as a whole: by whom, in which places, and what a kill leaves.
#include "lockstep/core/file/whole_file.h"

#include <fstream>
#include <sstream>

#include "support/kill_at_call.h"
#include "support/limits.h"
#include "support/private_tmpdir.h"
#include "support/rank_processes.h"
#include "support/skip_or_fail.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lockstep/core/error.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

std::string content(const fs::path& file) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

void put(const fs::path& file, const std::string& text) {
  std::ofstream(file) << text;
}

void replace(const fs::path& file, const std::string& text) {
  WholeFile whole(file);
  whole.write(text.data(), text.size());
  whole.commit();
}

mode_t mode_of(const fs::path& file) {
  struct stat status {};
  ::stat(file.c_str(), &status);
  return status.st_mode & 07777;
}

class WholeFileTest : public ::testing::Test {
 protected:
  fs::path in(const std::string& name) const { return tmpdir.path() / name; }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(tmpdir.path())) {
      names.push_back(entry.path().filename());
    }
    std::ranges::sort(names);
    return names;
  }

  const PrivateTmpdir tmpdir;
};

TEST_F(WholeFileTest, ReplacesTheOldOneOnCommitOnly) {
  put(in("net.pt"), "old");
  {
    WholeFile whole(in("net.pt"));
    whole.write("new", 3);
    EXPECT_EQ(content(in("net.pt")), "old");
  }
  EXPECT_EQ(content(in("net.pt")), "old");
  EXPECT_THAT(entries(), ElementsAre("net.pt"));
  replace(in("net.pt"), "new");
  EXPECT_EQ(content(in("net.pt")), "new");
  EXPECT_THAT(entries(), ElementsAre("net.pt"));
}

TEST_F(WholeFileTest, KeepsTheModeAndForANewFileTakesTheUmasks) {
  replace(in("new"), "text");
  const mode_t mask = ::umask(0);
  ::umask(mask);
  EXPECT_EQ(mode_of(in("new")), 0666 & ~mask);
  for (const mode_t mode : {0600, 0640, 0755}) {
    ::chmod(in("new").c_str(), mode);
    replace(in("new"), "other");
    EXPECT_EQ(mode_of(in("new")), mode);
  }
}

TEST_F(WholeFileTest, KeepsTheOwner) {
  if (::geteuid() != 0) return skip_or_fail("only root may give files away");
  put(in("theirs"), "old");
  ASSERT_EQ(::chown(in("theirs").c_str(), 12, 34), 0);
  ASSERT_EQ(::chmod(in("theirs").c_str(), 0640), 0);
  replace(in("theirs"), "new");
  struct stat status {};
  ASSERT_EQ(::stat(in("theirs").c_str(), &status), 0);
  EXPECT_EQ(status.st_uid, 12u);
  EXPECT_EQ(status.st_gid, 34u);
  EXPECT_EQ(mode_of(in("theirs")), 0640u);
}

TEST_F(WholeFileTest, FollowsLinksAndNeverReplacesThem) {
  fs::create_directory(in("elsewhere"));
  fs::create_symlink("elsewhere/real", in("middle"));
  fs::create_symlink("middle", in("link"));
  for (const std::string text : {"made where the link leads", "replaced there"}) {
    replace(in("link"), text);
    EXPECT_EQ(content(in("elsewhere/real")), text);
    EXPECT_FALSE(fs::is_symlink(in("elsewhere/real")));
  }
  EXPECT_TRUE(fs::is_symlink(in("link")) && fs::is_symlink(in("middle")));
  EXPECT_THAT(entries(), ElementsAre("elsewhere", "link", "middle"));
  fs::create_symlink("circle", in("circle"));
  EXPECT_THAT([&] { check_can_write(in("circle")); },
              ThrowsMessage<UsageError>(HasSubstr("Too many levels of symbolic links")));
}

TEST_F(WholeFileTest, TakesEveryNameThatTheFileSystemTakes) {
  const std::string longest(255, 'n');
  replace(in(longest), "text");
  EXPECT_THAT(entries(), ElementsAre(longest));
  EXPECT_THAT([&] { check_can_write(in(longest + "n")); },
              ThrowsMessage<UsageError>(HasSubstr("File name too long")));
}

TEST_F(WholeFileTest, RefusesAnImpossiblePath) {
  put(in("file"), "text");
  ASSERT_EQ(::mkfifo(in("pipe").c_str(), 0600), 0);
  const std::vector<std::pair<fs::path, std::string>> cases{
      {"", "this names no file"},
      {in(""), "this names no file"},
      {in("."), "this is not a file"},
      {tmpdir.path(), "this is not a file"},
      {in("pipe"), "this is not a file"},
      {in("absent/net.pt"), "No such file or directory"},
      {in("file/net.pt"), "Not a directory"},
      {"/proc/net.pt", "/proc/net.pt"}};
  for (const auto& [path, why] : cases) {
    EXPECT_THAT([&path = path] { check_can_write(path); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr("cannot write"), HasSubstr(why))))
        << path;
  }
  EXPECT_THAT(entries(), ElementsAre("file", "pipe"));
}

TEST_F(WholeFileTest, RefusesWhatTheUserMayNotWrite) {
  if (::geteuid() != 0) return skip_or_fail("only root can become another user");
  put(in("read-only"), "text");
  ::chmod(in("read-only").c_str(), 0444);
  fs::create_directory(in("sticky"));
  put(in("sticky/roots"), "text");
  ::chmod(in("sticky/roots").c_str(), 0666);
  ::chmod(in("sticky").c_str(), 01777);
  fs::create_directory(in("closed"));
  run_ranks(1, [&](Rank&) {
    ASSERT_EQ(::chmod(tmpdir.path().c_str(), 0777), 0);
    ASSERT_EQ(::seteuid(12345), 0);
    for (const char* name : {"read-only", "sticky/roots", "closed/net.pt"}) {
      EXPECT_THROW(check_can_write(in(name)), UsageError) << name;
    }
    check_can_write(in("free"));
    ASSERT_EQ(::seteuid(0), 0);
  });
}

TEST_F(WholeFileTest, RemovesLeftoversOfTheDeadOnly) {
  put(in(".lockstep-unfinished-0badcafe"), "of a process that was killed");
  WholeFile living(in("one"));
  living.write("one", 3);
  EXPECT_THAT(entries(), SizeIs(1));
  replace(in("two"), "two");
  EXPECT_THAT(entries(), SizeIs(2));
  living.commit();
  EXPECT_EQ(content(in("one")), "one");
  EXPECT_THAT(entries(), ElementsAre("one", "two"));
}

TEST_F(WholeFileTest, AKillAtAnyCallLeavesTheOldOrTheNew) {
  if (const std::string why = why_no_tracing(); !why.empty()) return skip_or_fail(why);
  int call = 0;
  bool killed = true;
  int replaced = 0;
  while (killed) {
    put(in("net.pt"), "old");
    killed = killed_at_call(++call, [&] {
      WholeFile whole(in("net.pt"));
      for (const char* part : {"n", "e", "w"}) whole.write(part, 1);
      whole.commit();
    });
    const std::string found = content(in("net.pt"));
    EXPECT_THAT(found, AnyOf(Eq("old"), Eq("new"))) << "call " << call;
    if (found == "new") ++replaced;
    replace(in("net.pt"), "next");
    EXPECT_EQ(content(in("net.pt")), "next") << "call " << call;
    EXPECT_THAT(entries(), ElementsAre("net.pt")) << "call " << call;
  }
  EXPECT_GT(call - replaced, 10) << "kills before the rename";
  EXPECT_GT(replaced, 1) << "kills after it";
}

TEST_F(WholeFileTest, AFullDiskKeepsTheOldAndSaysWhatIsNeeded) {
  const auto outcomes = run_ranks(1, [&](Rank& rank) {
    if (!mount_disk(tmpdir.path(), 2 << 20)) return rank.report("skipped");
    put(in("net.pt"), "old");
    const std::string big(3 << 20, 'x');
    EXPECT_THAT([&] { replace(in("net.pt"), big); },
                ThrowsMessage<BackendError>(
                    AllOf(HasSubstr("net.pt: No space left on device: 3.0 MiB are needed, "),
                          HasSubstr(fmt::format(" MiB are free on {};", tmpdir.path().string())))));
    EXPECT_EQ(content(in("net.pt")), "old");
    EXPECT_THAT(entries(), ElementsAre("net.pt"));
    replace(in("net.pt"), "new");
    EXPECT_EQ(content(in("net.pt")), "new");
  });
  if (outcomes[0].result == "skipped") skip_or_fail("a mount needs a namespace of its own");
}

TEST_F(WholeFileTest, AFlushOrRenameThatFailsKeepsTheOld) {
  fs::create_directory(in("folder"));
  put(in("folder/net.pt"), "old");
  for (const long call : {SYS_fsync, SYS_renameat}) {
    const auto outcomes = run_ranks(1, [&](Rank& rank) {
      if (!fail_call(call, EIO)) return rank.report("skipped");
      EXPECT_THAT([&] { replace(in("folder/net.pt"), "new"); },
                  ThrowsMessage<BackendError>(
                      AllOf(HasSubstr("cannot write "), HasSubstr("net.pt: Input/output error"))));
    });
    if (outcomes[0].result == "skipped") return skip_or_fail("the kernel has no seccomp filters");
    EXPECT_EQ(content(in("folder/net.pt")), "old") << call;
    const fs::directory_iterator left(in("folder"));
    EXPECT_EQ(std::distance(begin(left), end(left)), 1) << call;
  }
}

TEST_F(WholeFileTest, ALimitOfTheFilesSizeIsAnErrorNotASignal) {
  fs::create_directory(in("folder"));
  run_ranks(1, [&](Rank&) {
    const rlimit limit{1000, 1000};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_THAT([&] { replace(in("folder/net.pt"), std::string(3 << 20, 'x')); },
                ThrowsMessage<BackendError>(HasSubstr("File too large: 3.0 MiB are needed")));
    EXPECT_TRUE(fs::is_empty(in("folder")));
  });
}

}  // namespace
}  // namespace lockstep::testing
