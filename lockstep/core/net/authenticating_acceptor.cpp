// SPDX-License-Identifier: BSD-3-Clause
// Challenges new connections, and closes those that answer wrongly, too slowly or not at all.
#include "lockstep/core/net/authenticating_acceptor.h"

#include <cerrno>
#include <utility>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "lockstep/core/net/tcp_socket.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 5s;
constexpr std::size_t kMaxPendingPeers = 256;
constexpr int kAttempts = 3;
constexpr int kPauseMs = 100;

template <class Connect>
UniqueFd enter_by(const Connect& connect, const Key& key, const Deadline& deadline) {
  for (int attempt = 1;; ++attempt) {
    UniqueFd socket = connect();
    keep_alive(socket.get());
    try {
      authenticate(socket.get(), key, deadline);
      return socket;
    } catch (const ConnectionClosed&) {
      if (attempt == kAttempts) throw;
    }
    ::poll(nullptr, 0, kPauseMs);
  }
}

}  // namespace

AuthenticatingAcceptor::AuthenticatingAcceptor(UniqueFd listener, const Key& key, int guests)
    : listener_(std::move(listener)),
      key_(key),
      capacity_(kMaxPendingPeers + static_cast<std::size_t>(guests)) {
  epoll_.add(listener_.descriptor(), EPOLLIN);
}

std::vector<ForkSafeFd> AuthenticatingAcceptor::serve() {
  std::vector<ForkSafeFd> authentic;
  for (const int fd : epoll_.ready()) {
    const auto found = by_descriptor_.find(fd);
    if (found == by_descriptor_.end()) continue;
    const auto peer = found->second;
    const Verdict verdict = hear(*peer);
    if (verdict == Verdict::undecided) continue;
    epoll_.remove(fd);
    if (verdict == Verdict::authentic) authentic.push_back(std::move(peer->socket));
    by_descriptor_.erase(found);
    pending_.erase(peer);
  }
  for (auto& socket : listener_.accept()) greet(std::move(socket));
  send_away_the_slow();
  return authentic;
}

void AuthenticatingAcceptor::greet(UniqueFd socket) {
  const int fd = socket.get();
  const Challenge challenge = make_challenge();
  keep_alive(fd);
  // Fits into the empty send buffer of a new connection.
  ::send(fd, &challenge, sizeof challenge, MSG_NOSIGNAL);
  if (!epoll_.try_add(fd, EPOLLIN)) return;
  pending_.push_back({ForkSafeFd(std::move(socket)), challenge, Clock::now()});
  by_descriptor_[fd] = std::prev(pending_.end());
}

AuthenticatingAcceptor::Verdict AuthenticatingAcceptor::hear(PendingPeer& peer) {
  auto* end = reinterpret_cast<char*>(&peer.answer) + peer.received;
  const int fd = peer.socket.get();
  const ssize_t count = ::recv(fd, end, sizeof peer.answer - peer.received, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Verdict::undecided;
  if (count <= 0) return Verdict::refused;
  peer.received += static_cast<std::size_t>(count);
  if (peer.received < sizeof peer.answer) return Verdict::undecided;
  if (!is_right(peer.answer, peer.challenge, key_)) {
    if (const std::string host = peer_host(fd); !host.empty()) refusals_.add(host);
    return Verdict::refused;
  }
  const Proof proof = prove(peer.answer, peer.challenge, key_);
  ::send(fd, proof.data(), proof.size(), MSG_NOSIGNAL);
  return Verdict::authentic;
}

void AuthenticatingAcceptor::send_away_the_slow() {
  while (!pending_.empty() &&
         (pending_.size() > capacity_ || Clock::now() - pending_.front().since > kPatience)) {
    send_away_first();
  }
}

void AuthenticatingAcceptor::send_away_first() {
  const int fd = pending_.front().socket.get();
  epoll_.remove(fd);
  by_descriptor_.erase(fd);
  pending_.pop_front();
}

std::string AuthenticatingAcceptor::refused() const {
  const std::string limit = listener_.limit_met();
  return refusals_.in_words() +
         (limit.empty() ? "" : "; connections could not be taken here: " + limit);
}

void AuthenticatingAcceptor::close() {
  listener_.close();
  while (!pending_.empty()) send_away_first();
}

UniqueFd enter(const std::string& host, std::uint16_t port, const Key& key,
               const Deadline& deadline) {
  return enter_by([&] { return connect_tcp(host, port, deadline); }, key, deadline);
}

UniqueFd enter_at_once(const std::string& host, std::uint16_t port, const Key& key,
                       const Deadline& deadline) {
  return enter_by([&] { return connect_tcp_at_once(host, port, deadline); }, key, deadline);
}

}  // namespace lockstep
