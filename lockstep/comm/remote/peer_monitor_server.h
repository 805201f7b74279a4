// SPDX-License-Identifier: BSD-3-Clause
// Where the peer monitors of a group's ranks come together, in rank 0's process: it tells all of
// them who has died, left or given up, and who does not come. It has a thread of its own, since
// rank 0 may be computing.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/remote/monitor_message.h"
#include "lockstep/core/authenticating_acceptor.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/fork_safe_fd.h"
#include "lockstep/core/process_identity.h"
#include "lockstep/core/process_watch.h"
#include "lockstep/core/service_thread.h"

namespace lockstep::remote {

class PeerMonitorServer {
 public:
  // Ranks that have not come by the deadline, or whose processes end before all have come, are
  // named to the others; `processes` are those of the ranks, as far as they are known. When it is
  // destroyed it ends when all ranks have gone, or after a moment.
  PeerMonitorServer(UniqueFd listener, const Key& key, std::vector<ProcessIdentity> processes,
                    const Deadline& deadline);

 private:
  using Clock = std::chrono::steady_clock;

  // Knows the key, and has not said yet which rank it is.
  struct Arrival {
    ForkSafeFd socket;
    Clock::time_point since;
  };
  struct Member {
    ForkSafeFd socket;
    MonitorReader reader;
    std::string unsent;
    int pid = 0;
    // Set only for ranks of this machine.
    ProcessWatch process;
    bool left = false;
    // Number and description of the call that it waits in.
    std::uint64_t waits_in = 0;
    std::string call;
    // The last that it said it waits in: a call, or a message, which has number 0.
    std::uint64_t last_number = 0;
    std::string last_wait;
  };

  void run(int stop);
  void serve_once(int stop, std::chrono::milliseconds at_most);
  // A member, if it says which rank it is.
  void introduce(Arrival& arrival);
  void welcome();
  void hear(int rank);
  void take(int rank, const MonitorMessage& message);
  // Who is absent from a call, and why, for one of those that wait in it.
  MonitorMessage answer(int asking, const MonitorMessage& question) const;
  void note_waiting(int rank, const MonitorMessage& message);
  void send(int rank, const MonitorMessage& message);
  void flush(int rank);
  void tell_all(const MonitorMessage& message);
  void lose(int rank);
  void name_absent();
  void name_ended();
  bool all_here() const;
  // Whether no rank is still to come and hear whether the group can be joined.
  bool all_told() const;
  bool all_gone() const;

  AuthenticatingAcceptor acceptor_;
  Deadline deadline_;
  const std::vector<ProcessIdentity> processes_;
  std::list<Arrival> arrivals_;
  std::vector<Member> members_;
  bool welcomed_ = false;
  // Why the group cannot be joined any more, for those who come late.
  std::optional<MonitorMessage> refusal_;
  ServiceThread thread_;
};

}  // namespace lockstep::remote
