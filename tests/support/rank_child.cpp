// SPDX-License-Identifier: BSD-3-Clause
// Runs a rank's function and sends its failures to the test.
#include "support/rank_child.h"

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <typeinfo>

#include <cxxabi.h>
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "lockstep/core/error.h"

// Under AddressSanitizer: reports leaks now, and returns non-zero if there are any.
extern "C" __attribute__((weak)) int __lsan_do_recoverable_leak_check();

namespace lockstep::testing {
namespace {

// Sends failures to the test instead of recording them in this process, where nobody would look.
class FailureForwarder : public ::testing::ScopedFakeTestPartResultReporter {
 public:
  FailureForwarder(InterceptMode mode, Rank::State& state)
      : ScopedFakeTestPartResultReporter(mode, nullptr), state_(state) {}

  void ReportTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    state_.failed = true;
    std::string message = result.message();
    if (message.starts_with("Failed\n")) message.erase(0, 7);  // said once more in the test
    state_.send({MessageType::failure, result.line_number(),
                 result.file_name() ? result.file_name() : "", message});
  }

 private:
  Rank::State& state_;
};

std::string type_name(const std::exception& error) {
  int status = 0;
  char* name = abi::__cxa_demangle(typeid(error).name(), nullptr, nullptr, &status);
  std::string result = name ? name : typeid(error).name();
  std::free(name);
  const std::string_view own = "lockstep::";
  return result.starts_with(own) ? result.substr(own.size()) : result;
}

void run_function(Rank::State& state, Rank& rank, const std::function<void(Rank&)>& function) {
  try {
    function(rank);
  } catch (const PeerLost& lost) {
    state.send({MessageType::error, lost.rank(), type_name(lost), lost.what()});
  } catch (const std::exception& error) {
    state.send({MessageType::error, -1, type_name(error), error.what()});
  } catch (...) {
    state.send({MessageType::error, -1, "unknown", "not a std::exception"});
  }
}

}  // namespace

void run_child(Rank::State& state, Rank& rank, const std::function<void(Rank&)>& function) {
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
  // A crash is to be a death at once, without a dump: not even one into a pipe, which 0 would
  // allow.
  const rlimit no_dump{1, 1};
  ::setrlimit(RLIMIT_CORE, &no_dump);
  {
    using Mode = ::testing::ScopedFakeTestPartResultReporter;
    FailureForwarder all_threads(Mode::INTERCEPT_ALL_THREADS, state);
    FailureForwarder this_thread(Mode::INTERCEPT_ONLY_CURRENT_THREAD, state);
    run_function(state, rank, function);
    if (state.looks_for_leaks && __lsan_do_recoverable_leak_check &&
        __lsan_do_recoverable_leak_check() != 0) {
      ADD_FAILURE() << "this rank leaked memory: see standard error";
    }
  }
  state.send({MessageType::ended, 0, "", ""});
  std::fflush(nullptr);
  ::_exit(0);
}

}  // namespace lockstep::testing
