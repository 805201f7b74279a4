// SPDX-License-Identifier: BSD-3-Clause
// Where the agents of a job's machines meet before each attempt, and learn that ranks of another
// machine have failed. Machine 0's agent has it, in a thread of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/net/authentication.h"
#include "lockstep/core/net/service_thread.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/launch/agent_messages.h"

namespace lockstep {

// How long agents wait for each other.
struct MeetingLimits {
  // Before the first attempt: machines of a cluster start at different times.
  std::chrono::milliseconds first = std::chrono::minutes(30);
  // Before a restart, after the ranks of all machines have ended.
  std::chrono::milliseconds later = std::chrono::minutes(5);
};

// The key with which agents authenticate each other.
Key agents_key(const std::string& secret);

class AgentsServer {
 public:
  // Listens on this host, an address of this machine, and port. `job` is what machine 0 says of the
  // job. AddressInUse if the port is taken, BackendError if it cannot be used.
  AgentsServer(const std::string& host, std::uint16_t port, const std::string& secret,
               const Hello& job, const MeetingLimits& limits);

  // Where this machine's own agent reaches it.
  const std::string& host() const { return host_; }

 private:
  // One machine's agent.
  struct Machine {
    std::optional<AgentConnection> connection{};
    std::chrono::milliseconds grace{};
    // The attempt that it expects, once it is ready.
    std::optional<int> ready{};
    // How the running attempt ended there.
    std::optional<AttemptEnd> end{};
  };
  // An agent that has not said yet which machine it is on.
  struct Arrival {
    AgentConnection connection;
    Deadline deadline;
  };
  enum class Phase { meeting, running, over };

  void run(int stop);
  void introduce();
  // False if the agent has not said anything yet. Throws as AgentConnection::next().
  bool introduce(Arrival& arrival);
  std::string why_refused(const Hello& hello) const;
  void receive_from(int machine);
  void take(int machine, const AgentMessage& message);
  void start_if_all_ready();
  // The machine's agent ends its ranks, and so must the others.
  void stop_others(int machine, int signal);
  void settle_if_all_ended();
  void lose(int machine, const std::string& how);
  void take_deadline();
  // Ends the job for all agents.
  void finish(const Verdict& verdict);
  void tell_all(const AgentMessage& message);
  bool all_gone() const;

  const Hello job_;
  const MeetingLimits limits_;
  const std::string host_;
  AuthenticatingAcceptor acceptor_;
  std::list<Arrival> arrivals_;
  std::vector<Machine> machines_;
  const std::string run_id_;
  Phase phase_ = Phase::meeting;
  int attempt_ = 0;
  // The signal with which the attempt is being stopped, or 0 after a failure.
  std::optional<int> stopping_;
  // In a meeting, for the agents to be ready; in an attempt that is being stopped, for its ranks to
  // have ended.
  std::optional<Deadline> deadline_;
  ServiceThread thread_;
};

}  // namespace lockstep
