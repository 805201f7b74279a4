// SPDX-License-Identifier: BSD-3-Clause
// What the agents of a job's machines and the server in machine 0's agent tell each other, on a
// connection whose ends have authenticated each other.
//   length of the rest (8 bytes) | kind and members, packed
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <variant>

#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/attempt_end.h"

namespace lockstep {

// From an agent: its first message. The members but `machine` and `grace` must be the same on all
// machines.
struct Hello {
  int machine = 0;
  int machines = 0;
  // On each machine.
  int ranks = 0;
  int max_restarts = 0;
  // The longest time that its ranks have between SIGTERM and SIGKILL.
  std::chrono::milliseconds grace{};
};
// From an agent: no process of an earlier attempt is left, and it expects this attempt.
struct Ready {
  int attempt = 0;
};
// From an agent: it ends its ranks because of this signal, or because of a failure (0).
struct Stopping {
  int signal = 0;
};
// From an agent: its ranks have ended.
struct Ended {
  AttemptEnd end;
};

// To all agents, once all are ready.
struct Start {
  int attempt = 0;
  // A port for rank 0 that no attempt before this one has used.
  int master_port = 0;
  std::string run_id{};
};
// To the other agents: end the ranks, as after a failure (0) or with this signal.
struct Stop {
  int signal = 0;
};
// To all agents, once all ranks have ended: the attempt's end, and why no other attempt follows;
// empty if one does.
struct Verdict {
  AttemptEnd end;
  std::string why_final{};
};
inline Verdict stopped_by(int signal) {
  return {{.exit_code = 128 + signal, .signal = signal, .why_last = kToldToStop}, kToldToStop};
}
// To an agent that cannot take part.
struct Refused {
  std::string reason;
};

using AgentMessage = std::variant<Hello, Ready, Stopping, Ended, Start, Stop, Verdict, Refused>;

// One end of a connection, for an event loop.
class AgentConnection {
 public:
  explicit AgentConnection(ForkSafeFd socket) : socket_(std::move(socket)) {}

  int descriptor() const { return socket_.get(); }
  // The events of poll() to wait for.
  short events() const;
  // Sends as much as possible without blocking; flush() sends the rest. A lost connection shows in
  // next().
  void send(const AgentMessage& message);
  void flush();
  // The next message; nullopt if none has arrived. ConnectionClosed when the other end has gone,
  // BackendError if its bytes are no message.
  std::optional<AgentMessage> next();

 private:
  ForkSafeFd socket_;
  std::string unsent_;
  std::string received_;
};

}  // namespace lockstep
