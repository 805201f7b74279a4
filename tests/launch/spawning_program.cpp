// SPDX-License-Identifier: BSD-3-Clause
// A program that calls spawn(), mostly with StartMethod::spawn, in the way that its first argument
// says.
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/launch/start_method.h"
#include "lockstep/rendezvous/elastic_job.h"
#include "lockstep/rendezvous/store_client.h"

namespace lockstep {
namespace {

using Arguments = std::vector<std::string>;

const SpawnOptions kRerun{.start_method = StartMethod::spawn};

void say(const std::string& line) {
  std::puts(line.c_str());
  std::fflush(stdout);
}

void results(const Arguments& arguments) {
  say(fmt::format("main of {}", fmt::join(arguments, "|")));
  const auto numbers = spawn(
      2, [](int rank) { return rank * 1.5; }, kRerun);
  const auto strings = spawn(
      2, [](int rank) { return std::string(static_cast<std::size_t>(rank) * 1000000, 'x'); },
      kRerun);
  spawn(
      2, [](int) {}, kRerun);
  say(fmt::format("{} {} {}", numbers[0], numbers[1], strings[1].size()));
}

// A thread that runs and holds a lock, as one of libtorch may.
void threads(const Arguments&) {
  const std::jthread thread([](std::stop_token stop) {
    while (!stop.stop_requested()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  const auto numbers = spawn(2, [](int rank) { return rank + 10; });
  say(fmt::format("{} {}", numbers[0], numbers[1]));
}

// What a call returned or threw, and in which process it did: in a rank it must be the parent's.
template <class Function>
std::string outcome(int ranks, Function function, SpawnOptions options) try {
  std::string all;
  for (const int value : spawn(ranks, function, options)) all += fmt::format("{} ", value);
  return all;
} catch (const RankFailed& error) {
  return fmt::format("{} {} {} {}", error.what(), error.failure().rank, error.failure().cause,
                     fmt::join(error.failure().last_lines, ","));
} catch (const UsageError& error) {
  return error.what();
}

void earlier_calls(const Arguments&) {
  const SpawnOptions quiet{.on_line = [](const OutputLine&) {}};
  const auto fails = [](int rank) {
    say("a last line");
    if (rank == 1) throw std::runtime_error(fmt::format("pid {}", ::getpid()));
    return 0;
  };
  std::string seen;
  seen += outcome(
              3, [](int) { return ::getpid(); }, quiet) +
          "\n";
  seen += outcome(2, fails, quiet) + "\n";
  seen += outcome(0, [](int) { return 0; }, {}) + "\n";
  seen += outcome(
              2, [](int) { return ::getpid(); }, kRerun) +
          "\n";
  const auto in_ranks = spawn(
      2, [&](int) { return seen; }, kRerun);
  say(in_ranks[0] == seen && in_ranks[1] == seen ? "the same:" : "other:");
  say(seen);
}

void throws(const Arguments&) {
  spawn(
      3,
      [](int rank) {
        say("before the end");
        if (rank == 1) throw std::runtime_error("no more data");
        LocalStore(*environment("LOCKSTEP_STORE"))
            .get("never", Deadline::after(std::chrono::seconds(60)));
      },
      kRerun);
}

void nested(const Arguments&) {
  const auto sums = spawn(
      2,
      [](int rank) {
        int sum = 0;
        for (const int value : spawn(2, [&](int inner) { return 10 * rank + inner; })) sum += value;
        return sum;
      },
      kRerun);
  say(fmt::format("{} {}", sums[0], sums[1]));
  for (const StartMethod method : {StartMethod::fork, StartMethod::spawn}) {
    try {
      spawn(1,
            [](int) {
              spawn(
                  1, [](int) {}, kRerun);
            },
            {.start_method = method});
    } catch (const RankFailed& error) {
      say(error.what());
    }
  }
}

void forked(const Arguments&) {
  if (const pid_t child = ::fork(); child != 0) {
    ::waitpid(child, nullptr, 0);
    return;
  }
  try {
    spawn(
        1, [](int) {}, kRerun);
  } catch (const UsageError& error) {
    say(error.what());
  }
  ::_exit(0);
}

void environments(const Arguments&) {
  // Each is done again in the ranks.
  std::filesystem::current_path("folder");
  const std::string path = environment("SEARCHED").value_or("") + ":more";
  ::setenv("SEARCHED", path.c_str(), 1);
  const auto facts = [&] {
    return fmt::format(
        "RANK={} OMP={} cores={} SEARCHED={} {} {}", environment("RANK").value_or(""),
        environment("OMP_NUM_THREADS").value_or(""), allowed_cores().size(), path,
        std::filesystem::current_path().filename().string(), is_rank() ? "rank" : "parent");
  };
  const std::string before = facts();
  const auto within =
      spawn(static_cast<int>(allowed_cores().size()), [&](int) { return before + "\n" + facts(); },
            {.start_method = StartMethod::spawn, .threads = 1});
  say(before);
  say(within.back());
}

void another_call(const Arguments&) {
  spawn(
      is_rank() ? 3 : 2, [](int) {}, kRerun);
}

void no_call(const Arguments&) {
  if (is_rank()) return;
  spawn(
      2, [](int) {}, kRerun);
}

void no_call_of_rank_1(const Arguments&) {
  if (const RankStart* start = pending_start(); start != nullptr && start->rank == 1) return;
  spawn(
      2, [](int) { ::pause(); }, kRerun);
}

// For what its parent holds.
void waits_before(const Arguments&) {
  if (is_rank()) ::pause();
  spawn(2, [](int) {},
        {.start_method = StartMethod::spawn, .start_timeout = std::chrono::milliseconds(200)});
}

void removed(const Arguments&) {
  if (!is_rank()) std::filesystem::remove(std::filesystem::read_symlink("/proc/self/exe"));
  const auto numbers = spawn(
      2, [](int rank) { return rank; }, kRerun);
  say(fmt::format("{} {}", numbers[0], numbers[1]));
}

// As programs do that show their state in ps.
void overwrites_its_name(const Arguments&) {
  const std::string name = program_invocation_name;
  std::ranges::fill_n(program_invocation_name, static_cast<std::ptrdiff_t>(name.size()), 'x');
  const auto names = spawn(
      1, [&](int) { return name; }, kRerun);
  say(names[0] == name ? "the same" : names[0]);
}

void waits(const Arguments&) {
  spawn(
      2,
      [](int) {
        say(fmt::format("pid {}", ::getpid()));
        LocalStore(*environment("LOCKSTEP_STORE"))
            .get("never", Deadline::after(std::chrono::seconds(600)));
      },
      kRerun);
}

// A rank for each of two cores first, then too many, twice.
void oversubscribes(const Arguments&) {
  std::vector<int> cores = allowed_cores();
  cores.resize(std::min<std::size_t>(cores.size(), 2));
  pin_to_cores(cores);
  for (const int extra : {0, 1, 2}) {
    spawn(available_cores() + extra, [](int) {});
    std::fprintf(stderr, "%d more\n", extra);
  }
}

std::filesystem::path told_file() {
  return std::filesystem::path(environment("TMPDIR").value()) / "told";
}

// Prints each event of an elastic job, and makes a file at the one with this text.
std::function<void(const std::string&)> telling(const std::string& text) {
  return [text](const std::string& line) {
    say("event: " + line);
    if (line.find(text) != std::string::npos) std::ofstream(told_file()).put('\n');
  };
}

void wait_until_told() {
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  while (!deadline.passed() && !std::filesystem::exists(told_file())) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  std::filesystem::remove(told_file());
}

// The program's second argument.
StartMethod method_of(const Arguments& arguments) {
  return arguments.at(1) == "fork" ? StartMethod::fork : StartMethod::spawn;
}

// Members 0 and 2 return; nobody replaces member 1.
void elastic(const Arguments& arguments) {
  // main is no member, though a rank runs it again.
  if (ElasticJob::of_this_process()) throw std::logic_error("this is no member yet");
  const auto members =
      spawn(3,
            [](int member) {
              if (ElasticJob::of_this_process()->member() != member)
                throw std::logic_error("another");
              if (member == 1) ::raise(SIGKILL);
              if (member == 0) wait_until_told();
              return member;
            },
            {.start_method = method_of(arguments),
             .elastic = ElasticOptions{.replacements = 0, .on_event = telling("was lost")}});
  say(fmt::format("returned {}", fmt::join(members, " ")));
}

// All but member 0 fail, which fails at the end.
void elastic_crash_loop(const Arguments& arguments) {
  spawn(2,
        [](int member) {
          if (member != 0) throw std::runtime_error(fmt::format("no data for {}", member));
          wait_until_told();
          throw std::runtime_error("no data for the last one");
        },
        {.start_method = method_of(arguments),
         .elastic =
             ElasticOptions{.replacements = 2, .on_event = telling("no replacement is left")}});
}

void elastic_mistake(const Arguments& arguments) {
  spawn(2,
        [](int member) {
          if (member == 1) throw UsageError("there is no such model");
          ::pause();
        },
        {.start_method = method_of(arguments), .elastic = ElasticOptions{}});
}

// A replacement reads what main has opened.
void elastic_files(const Arguments&) {
  const UniqueFd file(::memfd_create("opened", MFD_CLOEXEC));
  const std::string text = "opened before";
  if (::write(file.get(), text.data(), text.size()) < 0) throw std::runtime_error("write");
  spawn(2,
        [&](int member) {
          std::string found = text;
          const ssize_t count = ::pread(file.get(), found.data(), found.size(), 0);
          say(fmt::format("{} has what was {}", member, count < 0 ? "closed" : found));
          if (member == 1) ::raise(SIGKILL);
          if (member == 0) wait_until_told();
        },
        {.start_method = StartMethod::fork,
         .elastic = ElasticOptions{.on_event = telling("ended with code 0 before it joined")}});
}

bool is_replacement(int founders) {
  const RankStart* const start = pending_start();
  return start != nullptr && start->rank >= founders;
}

// Replacements do not come to the call, or not in time.
void elastic_absence(const Arguments& arguments) {
  if (is_replacement(2)) {
    if (arguments.at(1) == "never") return;
    ::pause();
  }
  spawn(2,
        [](int member) {
          if (member == 1) ::raise(SIGKILL);
          wait_until_told();
        },
        {.start_method = StartMethod::spawn,
         .start_timeout = std::chrono::seconds(arguments.at(1) == "never" ? 60 : 8),
         .elastic = ElasticOptions{
             .replacements = 1,
             .on_event = telling(arguments.at(1) == "never" ? "ended with code 0" : "no repl")}});
}

void elastic_nested(const Arguments&) {
  const auto answers = spawn(1,
                             [](int) -> std::string {
                               const auto inner = spawn(
                                   1, [](int) { return ElasticJob::of_this_process() == nullptr; });
                               try {
                                 spawn(1, [](int) {}, {.elastic = ElasticOptions{}});
                               } catch (const UsageError& error) {
                                 return fmt::format("{} {}", inner[0], error.what());
                               }
                               return "";
                             },
                             {.start_method = StartMethod::fork, .elastic = ElasticOptions{}});
  say(answers[0]);
}

// Until it is killed.
void elastic_waits(const Arguments& arguments) {
  spawn(2,
        [](int member) {
          say(fmt::format("pid {}", ::getpid()));
          if (member == 1) ::raise(SIGKILL);
          ::pause();
        },
        {.start_method = method_of(arguments), .elastic = ElasticOptions{}});
}

const std::map<std::string, void (*)(const Arguments&)> ways{
    {"elastic", elastic},
    {"elastic_absence", elastic_absence},
    {"elastic_crash_loop", elastic_crash_loop},
    {"elastic_files", elastic_files},
    {"elastic_mistake", elastic_mistake},
    {"elastic_nested", elastic_nested},
    {"elastic_waits", elastic_waits},
    {"results", results},
    {"threads", threads},
    {"earlier_calls", earlier_calls},
    {"throws", throws},
    {"nested", nested},
    {"forked", forked},
    {"environments", environments},
    {"another_call", another_call},
    {"oversubscribes", oversubscribes},
    {"no_call", no_call},
    {"no_call_of_rank_1", no_call_of_rank_1},
    {"overwrites_its_name", overwrites_its_name},
    {"removed", removed},
    {"waits_before", waits_before},
    {"waits", waits}};

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) try {
  const lockstep::Arguments arguments(argv + 1, argv + argc);
  lockstep::ways.at(arguments.at(0))(arguments);
  return 0;
} catch (const lockstep::RankFailed& error) {
  std::fprintf(stderr, "%s\nexit code %d, signal %d\n", error.what(), error.failure().exit_code,
               error.failure().signal);
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
