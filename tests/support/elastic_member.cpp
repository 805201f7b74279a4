// SPDX-License-Identifier: BSD-3-Clause
// A program for `lockstep run --elastic`: its members count steps together, as a training loop
// does, and follow from generation to generation. Links no libtorch.
//
// elastic_member [HOW]: with "lobby", newcomers join once the folder TMPDIR has a file "join"; with
// a number, they end with this exit code. When there is a file "finish", all finish at the same
// step; with "leave_1", member 1 finishes alone; with "hang_1", it hangs in its part of a step.
// While there is a file "work", members that have finished go on with something else.
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include <fmt/format.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/elastic_job.h"
#include "lockstep/rendezvous/exchange.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

Deadline soon() {
  return Deadline::after(60s);
}

bool is_there(const std::string& file) {
  return std::filesystem::exists(environment("TMPDIR").value() + "/" + file);
}

void say(const std::string& line) {
  std::puts(line.c_str());
}

void wait_in_lobby(ElasticJob& job, const std::string& how) {
  int exit_code = 0;
  const char* const end = how.data() + how.size();
  if (std::from_chars(how.data(), end, exit_code).ptr == end && !how.empty()) std::_Exit(exit_code);
  say("in the lobby");
  while (how == "lobby" && !is_there("join")) std::this_thread::sleep_for(1ms);
  job.join();
}

// One generation's loop. False once all have finished.
class Counting {
 public:
  Counting(ElasticJob& job, const Generation& generation)
      : job_(job), generation_(generation), membership_(job.membership(generation)) {}

  bool run(std::int64_t& steps) {
    for (const std::string& of_rank :
         exchange(membership_, "align", std::to_string(steps), soon())) {
      steps = std::max<std::int64_t>(steps, std::stoll(of_rank));
    }
    job_.note_step(steps);
    say(fmt::format("generation {}: rank {} of {} goes on at step {}", generation_.number,
                    membership_.rank, membership_.world_size, steps));
    while (true) {
      if (is_there(fmt::format("leave_{}", job_.member()))) return false;
      const std::string word = is_there("finish")                      ? "finish"
                               : job_.wants_change(generation_.number) ? "change"
                                                                       : "";
      while (is_there(fmt::format("hang_{}", job_.member()))) std::this_thread::sleep_for(1ms);
      job_.note_waiting();
      const auto words = exchange(membership_, "step", word, soon());
      job_.note_step(++steps);
      if (steps == 1) say("first step done");
      if (std::ranges::count(words, "finish") > 0) return false;
      if (std::ranges::count(words, "change") > 0) return true;
    }
  }

 private:
  ElasticJob& job_;
  const Generation& generation_;
  const Membership membership_;
};

void count_steps(const std::string& how) {
  const auto job = ElasticJob::of_this_process();
  if (job->is_newcomer()) wait_in_lobby(*job, how);
  std::int64_t steps = 0;
  Generation generation{.number = -1};
  while (true) {
    const auto next = job->wait_for_generation(generation.number, soon());
    if (!next) return say(fmt::format("left after generation {}", generation.number));
    generation = *next;
    try {
      if (!Counting(*job, generation).run(steps)) break;
    } catch (const PeerLost&) {
      // The next generation is without the lost member.
    }
  }
  job->note_end();
  say(fmt::format("finished after generation {}", generation.number));
  while (is_there("work")) std::this_thread::sleep_for(1ms);
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  try {
    lockstep::count_steps(count > 1 ? arguments[1] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
