// SPDX-License-Identifier: BSD-3-Clause
// Both ends of a connection prove that they know the same key, without sending it: each answers the
// other's nonce with an HMAC-SHA256. Messages have a fixed size, and a pending peer costs no more
// memory than one message.
//
//   accepting end:   magic, nonce
//   connecting end:  nonce, HMAC(key, 'c' | accepting end's nonce | its own)
//   accepting end:   HMAC(key, 'a' | connecting end's nonce | its own)
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/core/deadline.h"

namespace lockstep {

using Key = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;

// 128 random bits in hexadecimal. Only a process that was given them can know them.
std::string make_token();
// Derived from a token that all ranks of one group know, and the secret of all jobs if there is
// one.
Key make_key(std::string_view token, std::string_view secret);

struct Challenge {
  std::array<char, 16> magic;
  Nonce nonce;
};
struct Answer {
  Nonce nonce;
  Proof proof;
};

Nonce make_nonce();
Challenge make_challenge();
bool is_right(const Answer& answer, const Challenge& challenge, const Key& key);
Proof prove(const Answer& answer, const Challenge& challenge, const Key& key);

// The connecting end. BackendError if the other end is not Lockstep or does not know the key;
// ConnectionClosed if it closes the connection.
void authenticate(int socket, const Key& key, const Deadline& deadline);

}  // namespace lockstep
