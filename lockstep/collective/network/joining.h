// SPDX-License-Identifier: BSD-3-Clause
// Watches the ranks while a carrier connects them: all have come to the hub of the lifelines, which
// reports those that die or give up meanwhile.
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "lockstep/collective/network/lifeline.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep::network {

class Joining {
 public:
  Joining(Lifeline& lifeline, std::string_view backend, const Membership& membership);

  // The address of this machine that leads to rank 0; for rank 0, the one it listens on.
  const std::string& own_host() const { return lifeline_.own_host(); }
  // "rank 3 (pid 4711)"
  std::string name(int rank) const { return lifeline_.name(rank); }
  // "[gloo] joining, rank 1 of 4: "
  const std::string& where() const { return where_; }

  // Throws if another rank has died or given up. Does not block: whoever waits for another rank
  // calls it several times a second.
  void check();

  // For a rank that cannot connect. Waits a moment for news of another rank that has ended, and if
  // there is any, throws that as the cause; otherwise tells all ranks about the error.
  void give_up(const std::exception& error);

 private:
  Lifeline& lifeline_;
  std::string where_;
};

}  // namespace lockstep::network
