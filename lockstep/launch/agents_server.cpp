// SPDX-License-Identifier: BSD-3-Clause
// Counts the agents that are ready, starts attempts, and collects their ends.
#include "lockstep/launch/agents_server.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <memory>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>

#include "lockstep/core/error.h"
#include "lockstep/core/net/tcp_socket.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// No event signals that a silent peer has run out of time.
constexpr int kServerPollMilliseconds = 200;
constexpr auto kIntroductionTimeout = 5s;
// How much longer than its grace a machine's ranks may take to end.
constexpr auto kEndingTimeout = 60s;
// How long an ending server waits for agents to take its last message.
constexpr auto kServerLinger = 2s;

double seconds_of(std::chrono::milliseconds span) {
  return std::chrono::duration<double>(span).count();
}

std::string machine_words(int machine) {
  return fmt::format("machine {}", machine);
}

AttemptEnd fault_end(std::string fault, std::optional<int> machine = {}) {
  return {.exit_code = 1, .machine = machine, .fault = std::move(fault)};
}

// A port that nobody uses at this moment, for rank 0.
int port_for_rank_0(const std::string& host) {
  const UniqueFd socket = listen_tcp(host, 0);
  return local_address(socket.get()).port;
}

}  // namespace

Key agents_key(const std::string& secret) {
  return make_key("agents", secret);
}

AgentsServer::AgentsServer(const std::string& host, std::uint16_t port, const std::string& secret,
                           const Hello& job, const MeetingLimits& limits)
    : job_(job),
      limits_(limits),
      host_(host),
      acceptor_(listen_tcp(host, port), agents_key(secret), job.machines),
      machines_(static_cast<std::size_t>(job.machines)),
      run_id_("lockstep-" + make_token()),
      deadline_(Deadline::after(limits.first)),
      thread_([this](int stop) { run(stop); }) {}

void AgentsServer::run(int stop) {
  std::optional<Deadline> linger;
  while (!linger || (!linger->passed() && !all_gone())) {
    std::vector<pollfd> entries{{linger ? -1 : stop, POLLIN, 0},
                                {acceptor_.descriptor(), POLLIN, 0}};
    for (const Machine& machine : machines_) {
      if (!machine.connection) continue;
      entries.push_back({machine.connection->descriptor(), machine.connection->events(), 0});
    }
    for (const Arrival& arrival : arrivals_) {
      entries.push_back({arrival.connection.descriptor(), POLLIN, 0});
    }
    ::poll(entries.data(), entries.size(), kServerPollMilliseconds);
    if (entries[0].revents != 0) linger = Deadline::after(kServerLinger);
    for (ForkSafeFd& socket : acceptor_.serve()) {
      arrivals_.push_back(
          {AgentConnection(std::move(socket)), Deadline::after(kIntroductionTimeout)});
    }
    introduce();
    for (int machine = 0; machine < job_.machines; ++machine) receive_from(machine);
    take_deadline();
  }
}

void AgentsServer::introduce() {
  std::erase_if(arrivals_, [this](Arrival& arrival) {
    try {
      return introduce(arrival) || arrival.deadline.passed();
    } catch (const std::exception&) {
      return true;  // It is no agent, or has gone.
    }
  });
}

bool AgentsServer::introduce(Arrival& arrival) {
  const auto message = arrival.connection.next();
  if (!message) return false;
  const auto& hello = std::get<Hello>(*message);
  if (const std::string reason = why_refused(hello); !reason.empty()) {
    arrival.connection.send(Refused{reason});
    return true;
  }
  Machine& machine = machines_[static_cast<std::size_t>(hello.machine)];
  machine.connection.emplace(std::move(arrival.connection));
  machine.grace = hello.grace;
  machine.ready.reset();
  return true;
}

std::string AgentsServer::why_refused(const Hello& hello) const {
  if (hello.machine < 0 || hello.machine >= job_.machines || hello.machines != job_.machines) {
    return fmt::format("--nnodes is {} on machine {}, and {} on machine 0", hello.machines,
                       hello.machine, job_.machines);
  }
  if (hello.ranks != job_.ranks) {
    return fmt::format(
        "machine {} has {} ranks, and machine 0 has {}; give the same "
        "--nproc-per-node on every machine",
        hello.machine, hello.ranks, job_.ranks);
  }
  if (hello.max_restarts != job_.max_restarts) {
    return fmt::format(
        "--max-restarts is {} on machine {}, and {} on machine 0; give the same "
        "number on every machine",
        hello.max_restarts, hello.machine, job_.max_restarts);
  }
  if (machines_[static_cast<std::size_t>(hello.machine)].connection) {
    return fmt::format(
        "another `lockstep run` says that it is machine {}; give each its own "
        "--node-rank",
        hello.machine);
  }
  return phase_ == Phase::over ? "the job has ended" : "";
}

void AgentsServer::receive_from(int number) {
  Machine& machine = machines_[static_cast<std::size_t>(number)];
  if (!machine.connection) return;
  try {
    machine.connection->flush();
    while (const auto message = machine.connection->next()) take(number, *message);
  } catch (const std::exception&) {
    machine.connection.reset();
    machine.ready.reset();
    if (phase_ == Phase::running && !machine.end) lose(number, "was lost");
  }
}

void AgentsServer::take(int number, const AgentMessage& message) {
  Machine& machine = machines_[static_cast<std::size_t>(number)];
  if (const auto* ready = std::get_if<Ready>(&message)) {
    machine.ready = ready->attempt;
    return start_if_all_ready();
  }
  if (const auto* stopping = std::get_if<Stopping>(&message)) {
    return stop_others(number, stopping->signal);
  }
  if (phase_ != Phase::running) return;
  machine.end = std::get<Ended>(message).end;
  if (machine.end->failed() && !machine.end->machine) machine.end->machine = number;
  if (machine.end->failed() || machine.end->signal != 0) stop_others(number, machine.end->signal);
  settle_if_all_ended();
}

void AgentsServer::start_if_all_ready() {
  if (phase_ != Phase::meeting || !std::ranges::all_of(machines_, [](const Machine& machine) {
        return machine.ready.has_value();
      })) {
    return;
  }
  // An agent that was started anew does not know how many attempts there were.
  attempt_ = 0;
  for (Machine& machine : machines_) {
    attempt_ = std::max(attempt_, *machine.ready);
    machine.ready.reset();
    machine.end.reset();
  }
  try {
    tell_all(Start{attempt_, port_for_rank_0(host_), run_id_});
  } catch (const BackendError& error) {
    return finish({fault_end(error.what(), 0), "machine 0 has no port for rank 0"});
  }
  phase_ = Phase::running;
  stopping_.reset();
  deadline_.reset();
}

void AgentsServer::stop_others(int number, int signal) {
  if (phase_ == Phase::meeting && signal != 0) {
    return finish(stopped_by(signal));
  }
  // A signal comes through also when ranks are ended because of a failure.
  if (phase_ != Phase::running || (stopping_ && (signal == 0 || *stopping_ != 0))) return;
  stopping_ = signal;
  std::chrono::milliseconds grace{};
  for (int other = 0; other < job_.machines; ++other) {
    Machine& machine = machines_[static_cast<std::size_t>(other)];
    grace = std::max(grace, machine.grace);
    if (other != number && machine.connection && !machine.end) {
      machine.connection->send(Stop{signal});
    }
  }
  deadline_ = Deadline::after(grace + kEndingTimeout);
}

void AgentsServer::settle_if_all_ended() {
  std::vector<AttemptEnd> ends;
  for (const Machine& machine : machines_) {
    if (!machine.end) return;
    ends.push_back(*machine.end);
  }
  AttemptEnd end = whole_end(ends);
  end.attempt = attempt_;
  // Machines whose ranks had ended before the signal came.
  if (stopping_.value_or(0) != 0) end.why_last = kToldToStop;
  const std::string why = why_no_restart(end, job_.max_restarts);
  if (!why.empty()) return finish({end, why});
  tell_all(Verdict{end});
  phase_ = Phase::meeting;
  deadline_ = Deadline::after(limits_.later);
}

void AgentsServer::lose(int number, const std::string& how) {
  machines_[static_cast<std::size_t>(number)].end =
      fault_end(fmt::format("the `lockstep run` of machine {} {}", number, how), number);
  stop_others(number, 0);
  settle_if_all_ended();
}

void AgentsServer::take_deadline() {
  if (!deadline_ || !deadline_->passed()) return;
  const auto span = deadline_->span();
  deadline_.reset();
  if (phase_ == Phase::running) {
    for (int number = 0; number < job_.machines; ++number) {
      Machine& machine = machines_[static_cast<std::size_t>(number)];
      if (machine.end) continue;
      machine.connection.reset();
      lose(number, fmt::format("did not end its ranks within {:.1f} s", seconds_of(span)));
    }
    return;
  }
  std::vector<std::string> absent;
  for (int number = 0; number < job_.machines; ++number) {
    if (!machines_[static_cast<std::size_t>(number)].ready) absent.push_back(machine_words(number));
  }
  finish({fault_end(fmt::format("the `lockstep run` of {} did not come within {:.1f} s{}",
                                fmt::join(absent, ", "), seconds_of(span), acceptor_.refused())),
          "not all machines are there"});
}

void AgentsServer::finish(const Verdict& verdict) {
  phase_ = Phase::over;
  deadline_.reset();
  tell_all(verdict);
}

void AgentsServer::tell_all(const AgentMessage& message) {
  for (Machine& machine : machines_) {
    if (machine.connection) machine.connection->send(message);
  }
}

bool AgentsServer::all_gone() const {
  return std::ranges::none_of(
      machines_, [](const Machine& machine) { return machine.connection.has_value(); });
}

}  // namespace lockstep
