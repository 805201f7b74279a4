// SPDX-License-Identifier: BSD-3-Clause
// Runs a job again, as a whole, when one of its ranks has failed. Follows torchrun: its environment
// variables tell a rank which attempt it belongs to, and programs continue from their newest
// checkpoint.
#pragma once

#include <functional>
#include <string>

#include "lockstep/launch/agent_options.h"

namespace lockstep {

struct RestartOptions {
  // After the first attempt. With 0, this is run_agent(), and agents do not meet.
  int max_restarts = 0;
  // With which the agents of several machines authenticate each other; may be empty.
  std::string secret{};
  // Gets a line about each failure that is followed by a restart. May block.
  std::function<void(const std::string&)> on_restart{};
};

struct RestartResult {
  int exit_code = 0;
  // For the user: why the job failed or was stopped; after restarts, a line for each attempt. Ends
  // with a newline; empty if all went well.
  std::string report;
};

// Blocks until the job has ended. Errors as from run_agent(). Restarts when run_agent() reports a
// failure, or when the keeper was killed. All processes of an attempt have ended before the next
// one starts, which gets a new store and a new MASTER_PORT, and writes its log files into the
// folder attempt_1 and so on of options.log_dir. Between attempts there is a pause (back_off()).
// Signals that stop this process end the job, in a pause too; others that arrive in a pause reach
// no rank.
//
// With several machines, each agent calls this with the same number of restarts. The agents meet at
// the node's host and port, which machine 0's agent serves, before each attempt; rank 0 gets
// another port. When ranks of one machine fail, or its agent is lost, all agents end their ranks
// and start the next attempt together.
RestartResult run_with_restarts(const AgentOptions& options, const RestartOptions& restarts);

}  // namespace lockstep
