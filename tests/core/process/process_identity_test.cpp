// SPDX-License-Identifier: BSD-3-Clause
// A process is told from later processes with its id.
#include "lockstep/core/process/process_identity.h"

#include <array>
#include <csignal>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace lockstep {
namespace {

// A child that tells who it is and waits for a signal.
class Child {
 public:
  Child() {
    std::array<int, 2> ends{};
    if (::pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      const std::string text = ProcessIdentity::own().as_text();
      if (::write(ends[1], text.data(), text.size()) < 0) ::_exit(1);
      while (true) ::pause();
    }
    std::array<char, 500> text{};
    if (::read(ends[0], text.data(), text.size() - 1) <= 0) throw std::runtime_error("no text");
    identity_ = ProcessIdentity::from_text(text.data());
    for (const int end : ends) ::close(end);
  }
  ~Child() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  const ProcessIdentity& identity() const { return identity_; }
  // It stays a zombie.
  void kill() const {
    ::kill(pid_, SIGKILL);
    siginfo_t info{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOWAIT);
  }

 private:
  pid_t pid_ = -1;
  ProcessIdentity identity_;
};

TEST(ProcessIdentity, IsTheSameAfterItWasText) {
  const ProcessIdentity own = ProcessIdentity::own();
  const ProcessIdentity read = ProcessIdentity::from_text(own.as_text());
  EXPECT_EQ(read.pid, ::getpid());
  EXPECT_EQ(read.started, own.started);
  EXPECT_EQ(read.machine, own.machine);
  EXPECT_FALSE(read.has_ended());
  const ProcessIdentity unknown = ProcessIdentity::from_text(ProcessIdentity{.pid = 7}.as_text());
  EXPECT_EQ(unknown.pid, 7);
  EXPECT_EQ(unknown.machine, "");
}

TEST(ProcessIdentity, AZombieHasEndedAndSoHasOneThatIsGone) {
  ProcessIdentity gone;
  {
    const Child child;
    gone = child.identity();
    EXPECT_FALSE(gone.has_ended());
    child.kill();
    EXPECT_TRUE(gone.has_ended());
  }
  EXPECT_TRUE(gone.has_ended());
}

TEST(ProcessIdentity, AnotherProcessOfItsIdMeansThatItHasEnded) {
  ProcessIdentity earlier = ProcessIdentity::own();
  earlier.started = "1";
  EXPECT_TRUE(earlier.has_ended());
}

TEST(ProcessIdentity, NothingIsKnownOfAnotherMachine) {
  const Child child;
  ProcessIdentity elsewhere = child.identity();
  child.kill();
  elsewhere.machine += "-other";
  EXPECT_FALSE(elsewhere.has_ended());
  elsewhere.machine = "";
  EXPECT_FALSE(elsewhere.has_ended());
}

}  // namespace
}  // namespace lockstep
