// SPDX-License-Identifier: BSD-3-Clause
// The secret that the ranks of one user's jobs share: the contents of a file, which is given by
// name or as an inherited open descriptor.
#pragma once

#include <string>

namespace lockstep {

// Tell ranks where the secret is: the file's name, or the descriptor's number.
inline constexpr const char* kSecretFileVariable = "LOCKSTEP_SECRET_FILE";
inline constexpr const char* kSecretFdVariable = "LOCKSTEP_SECRET_FD";

// UsageError if the file cannot be read, belongs to another user, may be read by anyone else (its
// mode must be 0600 or 0400), or has fewer than 16 or more than 4096 bytes.
std::string read_secret(const std::string& file);

// Reads from the beginning and leaves the descriptor's offset alone, so that all ranks can share
// it. UsageError if it is not open, is not a file (the first rank would drain a pipe), or has a
// wrong length, as above. Ownership is not checked; that is the opener's job.
std::string read_secret(int fd);

// The secret that the environment names, by file or descriptor; empty if it names none. UsageError
// if it names both.
std::string secret_of_environment();

}  // namespace lockstep
