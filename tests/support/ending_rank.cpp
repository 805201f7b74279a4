// SPDX-License-Identifier: BSD-3-Clause
// A program for launchers: its ranks sum numbers until one of them ends in the way that it is told.
//
// ending_rank BACKEND RANK HOW [RANKS]: RANK ends as HOW says; the others catch what the loss of a
// peer throws, print it and return 7. With RANKS it spawns them itself.
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <signal.h>

#include "lockstep/comm/backends.h"
#include "lockstep/comm/core/make_backends.h"
#include "lockstep/comm/init_process_group.h"
#include "lockstep/core/environment.h"
#include "lockstep/launch/spawn.h"
#include "lockstep/rendezvous/rendezvous.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// Delays the end of a rank that throws.
struct Slow {
  ~Slow() { std::this_thread::sleep_for(300ms); }
};

std::shared_ptr<ProcessGroup> kept_group;

std::shared_ptr<ProcessGroup> join(const std::string& backend, std::chrono::milliseconds timeout) {
  if (backend != "hosts") return init_process_group({.backend = backend, .timeout = timeout});
  // Two ranks a host.
  Membership member = rendezvous({.timeout = timeout});
  const std::string host = fmt::format("host {}", member.rank / 2);
  auto joined =
      make_hierarchical_backend(member, {.timeout = timeout}, host, backend_row("gloo").join);
  return std::make_shared<ProcessGroup>(std::move(member), GroupOptions{.timeout = timeout},
                                        std::move(joined));
}

[[noreturn]] void fail() {
  throw std::runtime_error("my own fault\nin two lines");
}

void end(const std::string& how) {
  std::cout << "ending by " << how << std::endl;
  if (how.starts_with("throw") || how == "swallowed") fail();
  if (how == "exit0") std::exit(0);
  if (how == "stop") ::raise(SIGSTOP);
}

void work(const std::string& backend, bool victim, const std::string& how) {
  if (victim && how == "before_joining") fail();
  const auto group = join(backend, 60s);
  if (how == "kept") kept_group = group;
  std::shared_ptr<ProcessGroup> second;
  if (how == "throw_two_groups") second = join(backend, 60s);
  const bool slow = victim && how == "throw_slowly";
  const std::unique_ptr<Slow> late = slow ? std::make_unique<Slow>() : nullptr;
  at::Tensor sum = at::ones({1000});
  for (int step = 0;; ++step) {
    if (victim && step == 20) {
      if (how == "kept") return;
      end(how);
    }
    try {
      Work work = group->all_reduce(sum);
      how == "stop" && step >= 20 ? work.wait(Deadline::after(5s)) : work.wait();
      if (second) second->all_reduce(sum).wait();
    } catch (const Error& error) {
      if (how != "swallowed") throw;
      std::cout << "goes on after " << error.what() << std::endl;
      std::this_thread::sleep_for(60s);
    }
  }
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  const std::string backend = argv[1];
  const int victim = std::atoi(argv[2]);
  const std::string how = argv[3];
  if (argc == 5) {
    try {
      lockstep::spawn(std::atoi(argv[4]),
                      [&](int rank) { lockstep::work(backend, rank == victim, how); });
    } catch (const lockstep::RankFailed& error) {
      std::cerr << error.what() << std::endl;
      return error.failure().exit_code;
    }
    return 0;
  }
  const bool is_victim = lockstep::environment_int("RANK") == victim;
  try {
    lockstep::work(backend, is_victim, how);
  } catch (const std::exception& error) {
    std::cerr << "ending_rank: " << error.what() << std::endl;
    return is_victim ? 1 : 7;
  }
  return is_victim ? 4 : 7;
}
