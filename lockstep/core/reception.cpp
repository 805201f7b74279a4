// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/core/reception.h"

#include <cerrno>
#include <utility>

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "lockstep/core/tcp_socket.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr auto kPatience = 5s;
constexpr std::size_t kMaxStrangers = 256;
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

Reception::Reception(UniqueFd listener, const Key& key, int guests)
    : listener_(std::move(listener)),
      key_(key),
      places_(kMaxStrangers + static_cast<std::size_t>(guests)) {
  epoll_.add(listener_.descriptor(), EPOLLIN);
}

std::vector<OwnFd> Reception::serve() {
  std::vector<OwnFd> authentic;
  for (const int fd : epoll_.ready()) {
    const auto found = by_descriptor_.find(fd);
    if (found == by_descriptor_.end()) continue;
    const auto stranger = found->second;
    const Verdict verdict = hear(*stranger);
    if (verdict == Verdict::undecided) continue;
    epoll_.remove(fd);
    if (verdict == Verdict::authentic) authentic.push_back(std::move(stranger->socket));
    by_descriptor_.erase(found);
    strangers_.erase(stranger);
  }
  for (auto& socket : listener_.accept()) greet(std::move(socket));
  send_away_the_slow();
  return authentic;
}

void Reception::greet(UniqueFd socket) {
  const int fd = socket.get();
  const Challenge challenge = make_challenge();
  keep_alive(fd);
  // It fits into the empty buffer of a new connection.
  ::send(fd, &challenge, sizeof challenge, MSG_NOSIGNAL);
  if (!epoll_.try_add(fd, EPOLLIN)) return;
  strangers_.push_back({OwnFd(std::move(socket)), challenge, Clock::now()});
  by_descriptor_[fd] = std::prev(strangers_.end());
}

Reception::Verdict Reception::hear(Stranger& stranger) {
  auto* place = reinterpret_cast<char*>(&stranger.answer) + stranger.received;
  const int fd = stranger.socket.get();
  const ssize_t count = ::recv(fd, place, sizeof stranger.answer - stranger.received, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Verdict::undecided;
  if (count <= 0) return Verdict::refused;
  stranger.received += static_cast<std::size_t>(count);
  if (stranger.received < sizeof stranger.answer) return Verdict::undecided;
  if (!is_right(stranger.answer, stranger.challenge, key_)) {
    if (const std::string host = peer_host(fd); !host.empty()) refusals_.add(host);
    return Verdict::refused;
  }
  const Proof proof = prove(stranger.answer, stranger.challenge, key_);
  ::send(fd, proof.data(), proof.size(), MSG_NOSIGNAL);
  return Verdict::authentic;
}

void Reception::send_away_the_slow() {
  while (!strangers_.empty() &&
         (strangers_.size() > places_ || Clock::now() - strangers_.front().since > kPatience)) {
    send_away_first();
  }
}

void Reception::send_away_first() {
  const int fd = strangers_.front().socket.get();
  epoll_.remove(fd);
  by_descriptor_.erase(fd);
  strangers_.pop_front();
}

std::string Reception::refused() const {
  const std::string limit = listener_.limit_met();
  return refusals_.in_words() +
         (limit.empty() ? "" : "; connections could not be taken here: " + limit);
}

void Reception::close() {
  listener_.close();
  while (!strangers_.empty()) send_away_first();
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
