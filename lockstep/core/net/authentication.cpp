// SPDX-License-Identifier: BSD-3-Clause
// Computes and checks proofs with libsodium; the accepting end closes connections that answer
// wrongly, too slowly or not at all.
#include "lockstep/core/net/authentication.h"

#include <cerrno>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sodium.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "lockstep/core/net/tcp_socket.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

constexpr auto kAnswerTimeout = 5s;
constexpr std::size_t kMaxPendingPeers = 256;
constexpr int kAttempts = 3;
constexpr int kRetryInterval = 100;  // in milliseconds
// Bounded, since refused peers may come from anywhere.
constexpr std::size_t kMostRefusedHosts = 8;

constexpr std::array<char, 16> kMagic = {'l', 'o', 'c',  'k', 's', 't', 'e', 'p',
                                         ' ', '1', '\n', 0,   0,   0,   0,   0};
constexpr std::byte kConnecting{'c'};
constexpr std::byte kAccepting{'a'};

static_assert(sizeof(Key) == crypto_auth_hmacsha256_KEYBYTES);
static_assert(sizeof(Proof) == crypto_auth_hmacsha256_BYTES);

unsigned char* bytes(Proof& array) {
  return reinterpret_cast<unsigned char*>(array.data());
}
template <class Bytes>
const unsigned char* bytes(const Bytes& array) {
  return reinterpret_cast<const unsigned char*>(array.data());
}

Proof hmac(const Key& key, std::byte end, const Nonce& others, const Nonce& own) {
  Proof proof{};
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, bytes(key), key.size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(&end), 1);
  crypto_auth_hmacsha256_update(&state, bytes(others), others.size());
  crypto_auth_hmacsha256_update(&state, bytes(own), own.size());
  crypto_auth_hmacsha256_final(&state, bytes(proof));
  return proof;
}

bool equal(const Proof& left, const Proof& right) {
  return ::sodium_memcmp(left.data(), right.data(), left.size()) == 0;
}

Nonce make_nonce() {
  static const int ready = ::sodium_init();  // Thread-safe, since callers may be threads.
  if (ready < 0) throw BackendError("there is no source of random numbers");
  Nonce nonce{};
  ::randombytes_buf(nonce.data(), nonce.size());
  return nonce;
}

Challenge make_challenge() {
  return {kMagic, make_nonce()};
}

bool is_right(const Answer& answer, const Challenge& challenge, const Key& key) {
  return equal(answer.proof, hmac(key, kConnecting, challenge.nonce, answer.nonce));
}

Proof prove(const Answer& answer, const Challenge& challenge, const Key& key) {
  return hmac(key, kAccepting, answer.nonce, challenge.nonce);
}

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
    ::poll(nullptr, 0, kRetryInterval);
  }
}

}  // namespace

std::string make_token() {
  const Nonce nonce = make_nonce();
  std::array<char, 33> token{};
  ::sodium_bin2hex(token.data(), token.size(), bytes(nonce), token.size() / 2);
  return token.data();
}

Key make_key(std::string_view token, std::string_view secret) {
  Key key{};
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, bytes(secret), secret.size());
  crypto_auth_hmacsha256_update(&state, bytes(token), token.size());
  crypto_auth_hmacsha256_final(&state, bytes(key));
  return key;
}

void authenticate(int socket, const Key& key, const Deadline& deadline) {
  Challenge challenge{};
  // Received separately: another program's greeting may be shorter than a challenge.
  receive_all(socket, std::as_writable_bytes(std::span(challenge.magic)), deadline);
  if (challenge.magic != kMagic) {
    throw BackendError(
        "the process that listens there is not Lockstep, or runs another version of it");
  }
  receive_all(socket, std::as_writable_bytes(std::span(challenge.nonce)), deadline);
  Answer answer{make_nonce(), {}};
  answer.proof = hmac(key, kConnecting, challenge.nonce, answer.nonce);
  send_all(socket, std::as_bytes(std::span(&answer, 1)), deadline);
  Proof proof{};
  try {
    receive_all(socket, std::as_writable_bytes(std::span(&proof, 1)), deadline);
  } catch (const ConnectionClosed&) {
    throw ConnectionClosed(
        "the other end refused this rank's secret, or has just ended; give all ranks the same one");
  }
  if (!equal(proof, prove(answer, challenge, key))) {
    throw BackendError("the other end does not know the secret; something else listens there");
  }
}

UniqueFd enter(const std::string& host, std::uint16_t port, const Key& key,
               const Deadline& deadline) {
  return enter_by([&] { return connect_tcp(host, port, deadline); }, key, deadline);
}

UniqueFd enter_at_once(const std::string& host, std::uint16_t port, const Key& key,
                       const Deadline& deadline) {
  return enter_by([&] { return connect_tcp_at_once(host, port, deadline); }, key, deadline);
}

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
    const Verdict verdict = receive(*peer);
    if (verdict == Verdict::undecided) continue;
    epoll_.remove(fd);
    if (verdict == Verdict::authentic) authentic.push_back(std::move(peer->socket));
    by_descriptor_.erase(found);
    pending_.erase(peer);
  }
  for (auto& socket : listener_.accept()) greet(std::move(socket));
  drop_slow_peers();
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

AuthenticatingAcceptor::Verdict AuthenticatingAcceptor::receive(PendingPeer& peer) {
  auto* end = reinterpret_cast<char*>(&peer.answer) + peer.received;
  const int fd = peer.socket.get();
  const ssize_t count = ::recv(fd, end, sizeof peer.answer - peer.received, 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return Verdict::undecided;
  if (count <= 0) return Verdict::refused;
  peer.received += static_cast<std::size_t>(count);
  if (peer.received < sizeof peer.answer) return Verdict::undecided;
  if (!is_right(peer.answer, peer.challenge, key_)) {
    if (const std::string host = peer_host(fd); !host.empty()) note_refused(host);
    return Verdict::refused;
  }
  const Proof proof = prove(peer.answer, peer.challenge, key_);
  ::send(fd, proof.data(), proof.size(), MSG_NOSIGNAL);
  return Verdict::authentic;
}

void AuthenticatingAcceptor::drop_slow_peers() {
  while (!pending_.empty() &&
         (pending_.size() > capacity_ || Clock::now() - pending_.front().since > kAnswerTimeout)) {
    drop_oldest();
  }
}

void AuthenticatingAcceptor::drop_oldest() {
  const int fd = pending_.front().socket.get();
  epoll_.remove(fd);
  by_descriptor_.erase(fd);
  pending_.pop_front();
}

void AuthenticatingAcceptor::note_refused(const std::string& host) {
  const std::lock_guard lock(refused_mutex_);
  if (refused_hosts_.size() < kMostRefusedHosts) refused_hosts_.insert(host);
}

std::string AuthenticatingAcceptor::refused() const {
  std::string text;
  {
    const std::lock_guard lock(refused_mutex_);
    if (!refused_hosts_.empty()) {
      text = fmt::format(
          "; a process on host {} was refused, since it knew another secret: give all ranks the "
          "same one",
          fmt::join(refused_hosts_, ", "));
    }
  }
  const std::string limit = listener_.limit_met();
  return text + (limit.empty() ? "" : "; connections could not be taken here: " + limit);
}

void AuthenticatingAcceptor::close() {
  listener_.close();
  while (!pending_.empty()) drop_oldest();
}

}  // namespace lockstep
