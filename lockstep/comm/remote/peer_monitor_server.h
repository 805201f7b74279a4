// SPDX-License-Identifier: BSD-3-Clause
// The server of a group's peer monitors, in rank 0's process. It tells all ranks which rank died,
// left, gave up or did not join. It has a thread of its own, since rank 0 may be computing.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/remote/monitor_message.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/net/authentication.h"
#include "lockstep/core/net/service_thread.h"
#include "lockstep/core/process/process_identity.h"
#include "lockstep/core/process/process_watch.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep::remote {

class PeerMonitorServer {
 public:
  // Tells the others which ranks have not joined and connected by the deadline, or whose processes
  // end before all have joined. `processes` are the ranks' processes, as far as they are known. The
  // destructor waits briefly for all ranks to leave.
  PeerMonitorServer(UniqueFd listener, const Key& key, std::vector<ProcessIdentity> processes,
                    const Deadline& deadline);

 private:
  using Clock = std::chrono::steady_clock;

  // A peer that knows the key, but has not yet sent its rank.
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
    bool connected = false;
    bool left = false;
    // The number and the description of the call that the rank waits in.
    std::uint64_t waits_in = 0;
    std::string call;
    // The last wait that the rank reported: in a call, or for a message, which has number 0.
    std::uint64_t last_number = 0;
    std::string last_wait;
  };

  void run(int stop);
  void serve_once(int stop, std::chrono::milliseconds at_most);
  // Makes the peer a member if it sends its rank.
  void introduce(Arrival& arrival);
  void welcome();
  void receive_from(int rank);
  void take(int rank, const MonitorMessage& message);
  void note_connected(int rank);
  // The ranks that are absent from a call, and why, for a rank that waits in it.
  MonitorMessage answer(int asking, const MonitorMessage& question) const;
  void note_waiting(int rank, const MonitorMessage& message);
  void send(int rank, const MonitorMessage& message);
  void flush(int rank);
  void tell_all(const MonitorMessage& message);
  void lose(int rank);
  void name_absent();
  void name_ended();
  bool all_here() const;
  // Whether every rank has been told whether the group can be joined, or no longer needs to be.
  bool all_notified() const;
  bool all_gone() const;

  AuthenticatingAcceptor acceptor_;
  Deadline deadline_;
  const std::vector<ProcessIdentity> processes_;
  std::list<Arrival> arrivals_;
  std::vector<Member> members_;
  bool welcomed_ = false;
  bool all_connected_ = false;
  // Why the group can no longer be joined, for late ranks.
  std::optional<MonitorMessage> refusal_;
  ServiceThread thread_;
};

}  // namespace lockstep::remote
