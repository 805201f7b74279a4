// SPDX-License-Identifier: BSD-3-Clause
// The accepting end of handshake.h, for an event loop: TCP peers prove that they know the key
// before anything else is done for them. A pending peer gets 64 bytes of memory and five seconds.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "lockstep/core/file/fork_safe_fd.h"
#include "lockstep/core/net/epoll.h"
#include "lockstep/core/net/handshake.h"
#include "lockstep/core/net/listener.h"
#include "lockstep/core/net/refusals.h"

namespace lockstep {

class AuthenticatingAcceptor {
 public:
  // Keeps at most 256 + `guests` pending peers; one more drops the oldest.
  AuthenticatingAcceptor(UniqueFd listener, const Key& key, int guests);

  // Poll it for POLLIN.
  int descriptor() const { return epoll_.get(); }

  // Serves all ready sockets without blocking, and returns the connections of peers that have
  // proved that they know the key. Call it at least every few seconds. A pending peer cannot make
  // it throw.
  std::vector<ForkSafeFd> serve();

  // Closes all pending connections and accepts no more.
  void close();

  // The end of a message about missing ranks: the hosts of peers that did not know the key, and
  // whether this process ran out of descriptors. Empty if neither. Thread-safe.
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
  std::size_t capacity_;
  // In order of arrival.
  std::list<PendingPeer> pending_;
  std::map<int, std::list<PendingPeer>::iterator> by_descriptor_;
  Refusals refusals_;
};

// The connecting end. Returns a connection on which both ends have proved that they know the key.
// While nobody listens there, enter retries, and throws TimeoutError at the deadline; enter_at_once
// throws ConnectionRefused. If the listener closes the connection, perhaps because too many others
// are pending, both retry a few times before they throw ConnectionClosed. BackendError as from
// authenticate.
UniqueFd enter(const std::string& host, std::uint16_t port, const Key& key,
               const Deadline& deadline);
UniqueFd enter_at_once(const std::string& host, std::uint16_t port, const Key& key,
                       const Deadline& deadline);

}  // namespace lockstep
