// SPDX-License-Identifier: BSD-3-Clause
// Starts local ranks, watches them until the last has ended, and leaves no process behind. Follows
// torchrun's environment variables; restarts.h has its restarts. With several machines each runs an
// agent, and ranks detect by themselves when ranks of another machine end.
#pragma once

#include <string>

#include "lockstep/launch/agent_options.h"

namespace lockstep {

class OtherAgents;
class SignalWatch;

// Blocks until all ranks have ended. UsageError for impossible options; BackendError if ranks
// cannot be started. A program that cannot be executed is a failure of its rank, with exit code 127
// or 126. More ranks than cores cause a warning, once in a process.
//
// Each rank has its own process group, reads from /dev/null and prints to a pseudo-terminal, so
// that its lines appear as it prints them; its TERM is "dumb" unless the output ends on a
// terminal. The ranks' parent is their keeper, a process between them and this one, which also ends
// processes that they leave behind.
//
// When a rank fails, the other ranks' process groups get SIGTERM, and SIGKILL after the grace. If
// it failed because it lost another rank, that rank first has two seconds to end by itself. SIGINT,
// SIGTERM, SIGHUP and SIGQUIT go to all ranks, which then have the longer grace; a second signal
// kills them. Notices (SignalMeaning) go to all ranks, and the job continues. SIGTSTP suspends the
// ranks and this process, SIGCONT continues them; meanwhile no deadline passes here. If this
// process or the keeper is killed, the ranks die with it; a killed keeper is a BackendError.
AgentResult run_agent(const AgentOptions& options);

// Like the function above, for ranks that call a function; spawn() uses it.
AgentResult run_agent(const AgentOptions& options, const RankBody& body);

// Like the first function, for an attempt that may be followed by others: takes signals from the
// caller's `signals`. `others` is null if there is one machine; otherwise it says when ranks of
// another machine have failed, whereupon these end with exit code 1 and without a failure.
AgentResult run_agent(const AgentOptions& options, SignalWatch& signals, OtherAgents* others);

// The message for the user: the rank that failed first, the cause, and its last lines. Ends with a
// newline; empty if all went well. `ranks` counts the ranks of all machines.
std::string report(const AgentResult& result, int ranks);

}  // namespace lockstep
