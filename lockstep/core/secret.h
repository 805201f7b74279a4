// SPDX-License-Identifier: BSD-3-Clause
// What the ranks of one user's jobs know and nobody else: the contents of a file, which is named,
// or inherited as an open descriptor.
#pragma once

#include <string>

namespace lockstep {

// Tell ranks which file it is: its name, or the number of the descriptor.
inline constexpr const char* kSecretFileVariable = "LOCKSTEP_SECRET_FILE";
inline constexpr const char* kSecretFdVariable = "LOCKSTEP_SECRET_FD";

// UsageError if it cannot be read, belongs to another user, may be read by anyone else (its mode
// must be 0600 or 0400), or has less than 16 or more than 4096 bytes.
std::string read_secret(const std::string& file);

// Reads from the beginning and leaves the descriptor as it was, so that all ranks can share it.
// UsageError if it is not open, is no file (the first rank would empty a pipe), or has a wrong
// length, as above. Ownership is not checked; that is the opener's job.
std::string read_secret(int fd);

// Of the file or the descriptor that the environment names; empty if it names none. UsageError if
// it names both.
std::string secret_of_environment();

}  // namespace lockstep
