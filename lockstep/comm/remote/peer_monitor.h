// SPDX-License-Identifier: BSD-3-Clause
// A rank's connection to the monitor's server in rank 0's process (peer_monitor_server.h). While it
// is open, the rank is alive: the rank's death closes it, and the loss of its machine is detected
// after about ten seconds. It also carries the reason why a group ends, and the call that a rank
// waits in. Tensors travel over the transport instead.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/core/group_state.h"
#include "lockstep/comm/remote/monitor_message.h"
#include "lockstep/comm/remote/peer_monitor_server.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/net/authentication.h"
#include "lockstep/core/process/process_watch.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep::remote {

// Not thread-safe: its engine holds a lock.
class PeerMonitor {
 public:
  // Blocks until all ranks of the membership have joined. They rendezvous in its store, and rank 0
  // listens on the membership's address, on a free port. TimeoutError names the ranks that did not
  // join, PeerLost a rank that joined and died.
  PeerMonitor(const Membership& membership, std::string_view backend, const Deadline& deadline);

  // The prefix that distinguishes this group's entries in the store from those of other groups:
  // "gloo/0/3".
  const std::string& store_prefix() const { return store_prefix_; }
  // The local address that leads to rank 0; for rank 0, the one it listens on.
  const std::string& own_host() const { return own_host_; }
  // Whether the ranks connect over loopback; the same on all ranks.
  bool within_machine() const { return within_machine_; }
  // "rank 3 (pid 4711)"
  std::string name(int rank) const;
  // The process ids of all ranks if they connect over loopback, else none.
  std::vector<int> local_pids() const { return within_machine_ ? pids_ : std::vector<int>(); }

  // Says that this rank's transport is connected.
  void say_connected();
  // Processes what has arrived, without blocking.
  void look();
  // The same, but waits briefly for something to arrive.
  void wait_for_news();

  // As far as look() has seen: whether all ranks have said that they are connected.
  bool all_connected() const { return all_connected_; }
  // The ranks that have not connected, once they are late.
  const std::optional<std::vector<int>>& absent_ranks() const { return absent_; }
  // The first rank that ended the group, and why.
  const std::optional<AbortNotice>& aborted() const { return aborted_; }
  // The first rank whose connection ended without a farewell, and whether its process is known to
  // have ended; if not, the network may be the cause.
  std::optional<int> lost() const { return lost_; }
  bool lost_by_death() const { return lost_by_death_; }
  // The loss in words, while a transport connects: "rank 3 (pid 12) died while ..."
  std::string lost_while_joining() const;
  // The ranks that left.
  struct Farewell {
    std::uint64_t last_call;
    // The reason, if the rank left during an exception; else empty.
    std::string reason;
    int culprit;
    std::chrono::steady_clock::time_point when;
  };
  const std::map<int, Farewell>& left() const { return left_; }

  // Says that this rank has waited in a call for a while; number 0 for a message between two ranks.
  void report_waiting(std::uint64_t number, const std::string& call);
  // The ranks that have not waited in a call with this number. Rank 0 if the monitor's server does
  // not answer within a second.
  Absent absent_from(std::uint64_t number);
  // One rank, with the call it was last seen waiting in. Asks the monitor's server, for at most a
  // second.
  Absent absent(int rank);
  // Ends the group for all ranks. The culprit is a job rank.
  void tell(AbortCause cause, int lost_rank, int culprit, const std::string& reason);
  // Blocks until the monitor's server has passed on what this rank told it, for at most a second.
  void flush();
  // Says farewell; during an exception, with the reason. Only the first farewell counts.
  void say_farewell(std::uint64_t last_call, const std::string& reason = {}, int culprit = -1);
  // Waits briefly for the others to leave too. Data on its way to them would be lost if this rank
  // closed its connections at once.
  void wait_for_farewells();

 private:
  void join(const Membership& membership, const Deadline& deadline);
  UniqueFd connect_to_monitor(const std::string& host, std::uint16_t port, const Key& key,
                              const Deadline& deadline) const;
  void wait_for_all(const Deadline& deadline);
  ErrorContext joining() const;
  void send(const MonitorMessage& message);
  // Waits for messages; false at the deadline, or when the connection has ended.
  bool receive(const Deadline& deadline);
  // Receives what has already arrived; false if nothing has, or if the connection has ended.
  bool take_arrived();
  void take(const MonitorMessage& message);
  // Empty if the monitor's server does not answer.
  std::optional<Absent> ask(const MonitorMessage& question);

  std::string backend_;
  int rank_;
  int size_;
  std::string store_prefix_;
  std::string own_host_;
  bool within_machine_ = false;
  std::unique_ptr<PeerMonitorServer> server_;  // on rank 0
  ForkSafeFd socket_;
  MonitorReader reader_;
  std::vector<int> pids_;
  int pid_of_rank_0_ = 0;
  int lost_pid_ = 0;
  std::optional<std::vector<int>> absent_;
  bool all_connected_ = false;
  std::string refused_;
  std::optional<MonitorMessage> answer_;
  std::optional<AbortNotice> aborted_;
  std::optional<int> lost_;
  bool lost_by_death_ = false;
  ProcessWatch rank_0_;  // if it is on this machine
  std::map<int, Farewell> left_;
  bool all_left_ = false;
  bool said_farewell_ = false;
};

}  // namespace lockstep::remote
