// SPDX-License-Identifier: BSD-3-Clause
// An agent's connection to the server at which the agents of a job's machines meet
// (agents_server.h): before each attempt, during it, and after it.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "lockstep/core/deadline.h"
#include "lockstep/launch/agent_messages.h"
#include "lockstep/launch/agents_server.h"
#include "lockstep/launch/rank_environment.h"
#include "lockstep/launch/signal_watch.h"

namespace lockstep {

class OtherAgents {
 public:
  // Machine 0's agent also runs the server, at the node's host and port. Errors as from
  // AgentsServer.
  OtherAgents(const Node& node, const std::string& secret, const Hello& job,
              const MeetingLimits& limits = {});

  // The functions below that take signals return when one that stops this process arrives, and tell
  // the other agents; the verdict then is that the job was stopped. Other signals have no effect.

  // Blocks until the agents of all machines are ready for an attempt, which may have a larger
  // number than `attempt` if this agent was started anew; or until the job is over. TimeoutError if
  // machine 0 does not answer in time, UsageError if it refuses this agent, BackendError if it has
  // another secret.
  std::variant<Start, Verdict> meet(int attempt, SignalWatch& signals);

  // Readable when order() has news; -1 if there will be none.
  int descriptor() const { return connection_ ? connection_->descriptor() : -1; }
  // During an attempt: the signal with which this agent's ranks must end, 0 for a failure on
  // another machine; nullopt if they may go on. A lost server counts as a failure.
  std::optional<int> order();
  // This agent ends its ranks, after a failure (0) or with this signal.
  void say_stopping(int signal);

  // After the end of this machine's ranks: blocks until those of all machines have ended. Decides
  // by itself if machine 0 is lost.
  Verdict settle(const AttemptEnd& end, SignalWatch& signals);
  // The same for an agent that ends because of an error; does not wait.
  void leave(const std::string& why);

 private:
  // Returns at the deadline or when a signal arrives, with or without a connection.
  void connect(SignalWatch& signals, const Deadline& deadline);
  // The next message; nullopt if none came by the deadline. After a signal that stops this process,
  // the verdict about that. Throws as AgentConnection::next().
  std::optional<AgentMessage> wait(SignalWatch& signals, const Deadline& deadline);

  const Node node_;
  const std::string secret_;
  const Hello job_;
  const MeetingLimits limits_;
  std::optional<AgentsServer> server_;
  std::optional<AgentConnection> connection_;
  bool met_ = false;
};

}  // namespace lockstep
