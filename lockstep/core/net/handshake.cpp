// SPDX-License-Identifier: BSD-3-Clause
// Computes and checks the handshake's proofs with libsodium.
#include "lockstep/core/net/handshake.h"

#include <sodium.h>

#include "lockstep/core/net/stream_socket.h"

namespace lockstep {
namespace {

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

}  // namespace lockstep
