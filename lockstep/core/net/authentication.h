// SPDX-License-Identifier: BSD-3-Clause
// Both ends of a connection prove that they know the same key, without sending it: each answers the
// other's nonce with an HMAC-SHA256. Messages have a fixed size.
//
//   accepting end:   magic, nonce
//   connecting end:  nonce, HMAC(key, 'c' | accepting end's nonce | its own)
//   accepting end:   HMAC(key, 'a' | connecting end's nonce | its own)
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/deadline.h"
#include "lockstep/core/net/listener.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

using Key = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

// The messages of the accepting and of the connecting end.
struct Challenge {
  std::array<char, 16> magic;
  Nonce nonce;
};
struct Answer {
  Nonce nonce;
  Proof proof;
};

// 128 random bits in hexadecimal. Only a process that was given them can know them.
std::string make_token();
// Derived from a token that all ranks of one group know, and the secret of all jobs if there is
// one.
Key make_key(std::string_view token, std::string_view secret);

// The connecting end. Returns a connection on which both ends have proved that they know the key.
// While nobody listens there, enter retries, and throws TimeoutError at the deadline; enter_at_once
// throws ConnectionRefused. If the listener closes the connection, perhaps because too many others
// are pending, both retry a few times before they throw ConnectionClosed. BackendError as from
// authenticate.
UniqueFd enter(const std::string& host, std::uint16_t port, const Key& key,
               const Deadline& deadline);
UniqueFd enter_at_once(const std::string& host, std::uint16_t port, const Key& key,
                       const Deadline& deadline);

// The connecting end on a connection that exists. BackendError if the other end is not Lockstep or
// does not know the key; ConnectionClosed if it closes the connection.
void authenticate(int socket, const Key& key, const Deadline& deadline);

// The accepting end, for an event loop: TCP peers prove that they know the key before anything else
// is done for them. A pending peer gets 64 bytes of memory and five seconds.
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
  Verdict receive(PendingPeer& peer);
  void note_refused(const std::string& host);
  void drop_slow_peers();
  void drop_oldest();

  Epoll epoll_;
  Listener listener_;
  Key key_;
  std::size_t capacity_;
  // In order of arrival.
  std::list<PendingPeer> pending_;
  std::map<int, std::list<PendingPeer>::iterator> by_descriptor_;
  mutable std::mutex refused_mutex_;
  std::set<std::string> refused_hosts_;
};

}  // namespace lockstep
