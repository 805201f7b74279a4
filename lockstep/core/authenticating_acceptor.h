// SPDX-License-Identifier: BSD-3-Clause
// Where those who connect over TCP show that they know the key, before anything is done for them:
// the accepting end of handshake.h, for an event loop. A stranger gets 64 bytes of memory and five
// seconds.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "lockstep/core/epoll.h"
#include "lockstep/core/fork_safe_fd.h"
#include "lockstep/core/handshake.h"
#include "lockstep/core/listener.h"
#include "lockstep/core/refusals.h"

namespace lockstep {

class AuthenticatingAcceptor {
 public:
  // Keeps at most 256 + `guests` connections that have not proved themselves yet; one more drops
  // the oldest.
  AuthenticatingAcceptor(UniqueFd listener, const Key& key, int guests);

  // To be polled for POLLIN.
  int descriptor() const { return epoll_.get(); }

  // Does what can be done without blocking, and returns the connections of those who have shown
  // that they know the key. To be called at least every few seconds. Never throws for what a
  // stranger does.
  std::vector<ForkSafeFd> serve();

  // Sends all strangers away and takes no more.
  void close();

  // The end of a message about ranks that do not come: the hosts of those who did not know the key,
  // and whether this process ran out of descriptors. Empty if neither. Thread-safe.
  std::string refused() const;

 private:
  using Clock = std::chrono::steady_clock;

  struct PendingPeer {
    ForkSafeFd socket;
    Challenge challenge;
    Clock::time_point since;
    Answer answer{};
    std::size_t received = 0;
  };
  enum class Verdict { undecided, authentic, refused };

  void greet(UniqueFd socket);
  Verdict hear(PendingPeer& peer);
  void send_away_the_slow();
  void send_away_first();

  Epoll epoll_;
  Listener listener_;
  Key key_;
  std::size_t places_;
  // In the order in which they came.
  std::list<PendingPeer> pending_;
  std::map<int, std::list<PendingPeer>::iterator> by_descriptor_;
  Refusals refusals_;
};

// The connecting end: returns a connection on which both ends have proved that they know the key.
// While nobody listens there, enter tries again, and throws TimeoutError at the deadline;
// enter_at_once throws ConnectionRefused. If the listener closes the connection, perhaps because a
// crowd of strangers came first, both try a few more times before they throw ConnectionClosed.
// BackendError as from authenticate.
UniqueFd enter(const std::string& host, std::uint16_t port, const Key& key,
               const Deadline& deadline);
UniqueFd enter_at_once(const std::string& host, std::uint16_t port, const Key& key,
                       const Deadline& deadline);

}  // namespace lockstep
