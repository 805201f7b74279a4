// SPDX-License-Identifier: BSD-3-Clause
// The error of a rank whose call differs from a peer's. Users see a UsageError; hierarchical groups
// translate it into their own ranks and call numbers.
#pragma once

#include <string>

#include "lockstep/comm/core/call.h"
#include "lockstep/core/error.h"

namespace lockstep {

// "this rank called broadcast #3 (...), but rank 1 called barrier #3; every rank must ...". Names
// the function that only one of them called, if that is not a step of training.
std::string describe_difference(const std::string& name, const Call& call,
                                const std::string& others_name, const Call& others_call);

// The same for a send and a recv that do not fit each other, of this rank and a peer.
std::string describe_message_difference(const Call& own, const std::string& peers_name,
                                        const Call& peers_call);

class CallsDiffer : public UsageError {
 public:
  // `where` begins the message, and `name` names the peer in it.
  CallsDiffer(const std::string& where, const Call& own, int peer, const std::string& name,
              const Call& peers_call);

  const Call& own() const { return own_; }
  int peer() const { return peer_; }
  const Call& peers_call() const { return peers_call_; }

 private:
  Call own_;
  int peer_;
  Call peers_call_;
};

}  // namespace lockstep
