// SPDX-License-Identifier: BSD-3-Clause
// The store of ranks that one launcher started on this machine: a client of the LocalStoreServer
// that the launcher serves on a Unix socket, whose path the ranks find in LOCKSTEP_STORE.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "lockstep/rendezvous/store.h"

namespace lockstep {

// Each call makes a connection of its own, so the object has no state: any thread may use it, and
// so may a forked child. BackendError when the launcher is gone.
class LocalStore : public Store {
 public:
  // The most that a key and its value may have together, in bytes.
  static constexpr std::size_t max_size = std::size_t{64} << 20;

  // The path of the server's socket. Connects at the first call.
  explicit LocalStore(std::string path) : path_(std::move(path)) {}

  // Returns when the server has the value; TimeoutError if it does not answer for a minute.
  // UsageError if key and value exceed max_size.
  void set(const std::string& key, const std::string& value) override;

  // The number is kept as decimal text, as libtorch's stores do. UsageError if the key holds
  // something else, or if the sum does not fit.
  std::int64_t add(const std::string& key, std::int64_t amount) override;

  // TimeoutError names the key.
  std::string get(const std::string& key, const Deadline& deadline) override;

 private:
  std::string path_;
};

}  // namespace lockstep
