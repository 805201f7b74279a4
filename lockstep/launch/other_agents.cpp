// SPDX-License-Identifier: BSD-3-Clause
// Connects to machine 0, and follows the meetings and attempts from this machine's side.
#include "lockstep/launch/other_agents.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include <fmt/format.h>
#include <poll.h>

#include "lockstep/core/error.h"
#include "lockstep/core/net/tcp_socket.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// How long an attempt to connect may keep signals waiting.
constexpr std::chrono::milliseconds kConnectSlice = 2s;
// The server knows which machines are missing, and says so at its own deadline.
constexpr auto kServerPatience = 2s;

}  // namespace

OtherAgents::OtherAgents(const Node& node, const std::string& secret, const Hello& job,
                         const MeetingLimits& limits)
    : node_(node), secret_(secret), job_(job), limits_(limits) {
  if (job.machine != 0) return;
  const std::string host = reachable_host(node.host, Deadline::after(limits.first));
  server_.emplace(host, static_cast<std::uint16_t>(node.port), secret, job, limits);
}

void OtherAgents::connect(SignalWatch& signals, const Deadline& deadline) {
  const auto has_signal = [&] {
    pollfd entry{signals.descriptor(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1;
  };
  while (!deadline.passed() && !has_signal()) {
    const Deadline slice = Deadline::after(std::min(kConnectSlice, deadline.remaining()));
    std::string host;
    try {
      host = server_ ? server_->host() : reachable_host(node_.host, slice);
    } catch (const BackendError&) {
      continue;  // Kubernetes creates the names of machines while it starts them.
    }
    try {
      const auto port = static_cast<std::uint16_t>(node_.port);
      connection_.emplace(ForkSafeFd(enter(host, port, agents_key(secret_), slice)));
      return connection_->send(job_);
    } catch (const TimeoutError&) {
    } catch (const ConnectionRefused&) {
    } catch (const HostUnreachable&) {
    } catch (const ConnectionClosed& error) {
      // Later, it may be an agent that is just ending.
      if (!met_) throw BackendError(error.what());
    }
  }
}

std::optional<AgentMessage> OtherAgents::wait(SignalWatch& signals, const Deadline& deadline) {
  while (true) {
    if (const auto signal = signals.next_stop()) {
      say_stopping(*signal);
      return stopped_by(*signal);
    }
    if (!connection_) throw ConnectionClosed("there is no connection to machine 0");
    connection_->flush();
    if (auto message = connection_->next()) return message;
    if (deadline.passed()) return std::nullopt;
    std::array<pollfd, 2> entries{
        {{connection_->descriptor(), connection_->events(), 0}, {signals.descriptor(), POLLIN, 0}}};
    ::poll(entries.data(), entries.size(), static_cast<int>(deadline.remaining().count()));
  }
}

std::variant<Start, Verdict> OtherAgents::meet(int attempt, SignalWatch& signals) {
  const auto limit = met_ ? limits_.later : limits_.first;
  const Deadline deadline = Deadline::after(limit + kServerPatience);
  bool said_ready = false;
  while (true) {
    try {
      if (!connection_) {
        said_ready = false;
        connect(signals, deadline);
      }
      if (connection_ && !said_ready) connection_->send(Ready{attempt});
      said_ready = true;
      if (!connection_) {
        if (const auto signal = signals.next_stop()) return stopped_by(*signal);
        if (!deadline.passed()) continue;
      }
      const auto message = connection_ ? wait(signals, deadline) : std::nullopt;
      if (!message) {
        throw TimeoutError(
            ErrorContext{},
            fmt::format("the `lockstep run` of machine 0 did not answer at {} within {} s",
                        in_words(Endpoint{node_.host, static_cast<std::uint16_t>(node_.port)}),
                        deadline.span() / 1s),
            "is it running there, with the same --rdzv-endpoint and --max-restarts?");
      }
      if (const auto* refused = std::get_if<Refused>(&*message)) throw UsageError(refused->reason);
      if (const auto* start = std::get_if<Start>(&*message)) {
        met_ = true;
        return *start;
      }
      // Other messages are about an attempt that this agent has left or was not part of.
      const auto* verdict = std::get_if<Verdict>(&*message);
      if (verdict != nullptr && !verdict->why_final.empty()) return *verdict;
    } catch (const ConnectionClosed&) {
      connection_.reset();
    }
  }
}

std::optional<int> OtherAgents::order() {
  if (!connection_) return std::nullopt;
  try {
    connection_->flush();
    while (const auto message = connection_->next()) {
      if (const auto* stop = std::get_if<Stop>(&*message)) return stop->signal;
    }
    return std::nullopt;
  } catch (const Error&) {
    connection_.reset();
    return 0;
  }
}

void OtherAgents::say_stopping(int signal) {
  if (connection_) connection_->send(Stopping{signal});
}

Verdict OtherAgents::settle(const AttemptEnd& end, SignalWatch& signals) {
  try {
    if (connection_) connection_->send(Ended{end});
    while (true) {
      // Other machines' ranks may train for days; the connection shows that the server is there.
      const auto message = wait(signals, Deadline::after(24h));
      if (!message) continue;
      if (const auto* verdict = std::get_if<Verdict>(&*message)) return *verdict;
    }
  } catch (const Error&) {
    connection_.reset();
    AttemptEnd whole = end;
    if (!whole.failed()) {
      whole.exit_code = 1;
      whole.machine = 0;
      whole.fault = "the `lockstep run` of machine 0 was lost";
    }
    return {whole, why_no_restart(whole, job_.max_restarts)};
  }
}

void OtherAgents::leave(const std::string& why) {
  if (!connection_) return;
  connection_->send(Ended{{.exit_code = 1,
                           .why_last = "a launcher cannot go on",
                           .machine = job_.machine,
                           .fault = why}});
}

}  // namespace lockstep
