// SPDX-License-Identifier: BSD-3-Clause
// Watches the ranks while a transport connects them. All ranks have joined the peer monitors'
// server, which reports those that die or give up meanwhile.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/comm/remote/peer_monitor.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep::remote {

class Joining {
 public:
  Joining(PeerMonitor& monitor, std::string_view backend, const Membership& membership);

  // The local address that leads to rank 0; for rank 0, the one it listens on.
  const std::string& own_host() const { return monitor_.own_host(); }
  // "rank 3 (pid 4711)"
  std::string name(int rank) const { return monitor_.name(rank); }
  // Where the errors of this rank occur: "[gloo] joining, rank 1 of 4".
  const ErrorContext& context() const { return context_; }
  // The error that these ranks have not connected to `other_end` by the deadline.
  TimeoutError did_not_connect(const std::vector<int>& ranks, const Deadline& deadline,
                               std::string_view other_end) const;

  // Throws if another rank has died or given up. Does not block. A rank that waits for another
  // calls it several times a second.
  void check();

  // For a rank that has connected. Blocks until all ranks have: what a rank does next may end the
  // group, and the others would mistake that for a failure to connect. Throws as check() does, and
  // TimeoutError with the ranks that have not connected by the deadline.
  void wait_for_all(const Deadline& deadline);

  // For a rank that lacks something of its own, and has not tried to connect. Tells all ranks about
  // the error without first looking for other ranks' errors: several ranks may lack the same thing,
  // and each must report it.
  void cannot_begin(const std::exception& error);
  // For a rank that cannot connect. Waits briefly for news of another rank that has ended, and
  // throws that as the cause if there is any; otherwise tells all ranks about the error.
  void give_up(const std::exception& error);

 private:
  PeerMonitor& monitor_;
  ErrorContext context_;
};

}  // namespace lockstep::remote
