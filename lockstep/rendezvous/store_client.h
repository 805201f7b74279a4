// SPDX-License-Identifier: BSD-3-Clause
// The clients of a StoreServer: the base class, and the store of ranks that one launcher started on
// this machine. tcp_store.h has the client of rank 0's store.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/rendezvous/store.h"
#include "lockstep/rendezvous/store_protocol.h"

namespace lockstep {

// The client of a store, for its errors, and the limit for an answer that depends on no other rank.
struct StoreUser {
  ErrorContext context = {};
  std::chrono::milliseconds patience = std::chrono::minutes(1);
};

// Each call makes its own connection, so the object has no state: any thread and any forked child
// may use it.
class StoreClient : public Store {
 public:
  // Returns when the server has stored the value; TimeoutError if it does not answer in time.
  // UsageError if key and value exceed store_protocol::kMaxEntry, or if the server has no room for
  // them (kMaxStore).
  void set(const std::string& key, const std::string& value) override;

  // The number is stored as decimal text, as in libtorch's stores. UsageError if the key holds
  // something else or the sum overflows.
  std::int64_t add(const std::string& key, std::int64_t amount) override;

  // TimeoutError names the key.
  std::string get(const std::string& key, const Deadline& deadline) override;

 protected:
  enum class Server { rank_0, launcher };
  // The store's address is for messages.
  StoreClient(std::string address, Server server, StoreUser user)
      : address_(std::move(address)), server_(server), user_(std::move(user)) {}

 private:
  // A connection for one request.
  virtual UniqueFd connect(const Deadline& deadline) const = 0;

  // UsageError if the server has no room for the request.
  std::string ask(store_protocol::Operation operation, const std::string& key,
                  const std::string& value, const Deadline& deadline) const;
  std::string change(store_protocol::Operation operation, const std::string& key,
                     const std::string& value) const;
  const char* server() const { return server_ == Server::rank_0 ? "rank 0" : "the launcher"; }
  [[noreturn]] void throw_gone(const std::string& key, const std::exception& error) const;

  std::string address_;
  Server server_;
  StoreUser user_;
};

// The client of the launcher's LocalStoreServer, whose Unix socket path the ranks find in
// LOCKSTEP_STORE.
class LocalStore final : public StoreClient {
 public:
  // `path` is the server's socket. Connects at the first call.
  explicit LocalStore(std::string path, StoreUser user = {})
      : StoreClient(path, Server::launcher, std::move(user)), path_(std::move(path)) {}

 private:
  UniqueFd connect(const Deadline& deadline) const override;

  std::string path_;
};

}  // namespace lockstep
