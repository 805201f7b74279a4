// SPDX-License-Identifier: BSD-3-Clause
// A client of etcd, a store that outlives any machine of a job: keys under leases, atomic
// replacement, and waits for changes. Speaks JSON with etcd's gateway (/v3/...), without TLS and
// without a password.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/http_post.h"
#include "lockstep/core/net/tcp_socket.h"

namespace lockstep {

// The lease has expired, or was revoked: its keys are gone.
class LeaseLost : public ErrorType<LeaseLost, BackendError> {
 public:
  using ErrorType::ErrorType;
};

struct EtcdEntry {
  std::string value;
  // The store's revisions in which the key was made, and last changed.
  std::int64_t made = 0;
  std::int64_t changed = 0;

  bool operator==(const EtcdEntry&) const = default;
};

// Each call makes a connection of its own, and blocks until it is answered, `patience` at most:
// TimeoutError then; BackendError if etcd cannot be reached, refuses, or gives no answer of etcd.
// Keys and values are bytes. Thread-safe.
//
// The server's name may have the addresses of several members of etcd, which are tried one after
// another, beginning with the one that answered last. It is looked up, which may take longer than
// `patience`, by the first call and after one in which none of them could be reached.
class EtcdClient {
 public:
  EtcdClient(Endpoint server, std::chrono::milliseconds patience)
      : server_(std::move(server)), patience_(patience) {}
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // Returns the number of a new lease, whose keys are deleted `life` after its last renewal.
  std::int64_t grant_lease(std::chrono::seconds life) const;
  // Renews it. LeaseLost if it has expired.
  void keep_alive(std::int64_t lease) const;
  // Deletes its keys. Does nothing if it has expired.
  void revoke(std::int64_t lease) const;

  // All keys that begin with the prefix, which is not empty, as they were at one moment.
  struct Snapshot {
    std::int64_t revision = 0;
    std::map<std::string, EtcdEntry> entries = {};
  };
  Snapshot read(const std::string& prefix) const;

  // Sets the key for as long as the lease lives. LeaseLost if it has expired.
  void put(const std::string& key, const std::string& value, std::int64_t lease) const;
  // Sets the key, without a lease, if it was last changed in revision `changed`; 0: if it does not
  // exist. False, and nothing happens, if that is not so.
  bool replace(const std::string& key, std::int64_t changed, const std::string& value) const;
  // Deletes the key, on the same condition.
  bool remove(const std::string& key, std::int64_t changed) const;

  // Blocks until a key that begins with the prefix has changed after this revision, until the
  // deadline has passed, or until the descriptor `wake` is readable.
  void wait_for_change(const std::string& prefix, std::int64_t revision, const Deadline& deadline,
                       int wake) const;

 private:
  nlohmann::json ask(const std::string& path, const nlohmann::json& request) const;
  // Sends the request to the first address that takes it, and has `read` take the answer.
  template <class Reading>
  auto post(const std::string& path, const nlohmann::json& request, const Deadline& deadline,
            const Reading& read) const;
  HttpPost send(const std::string& path, const nlohmann::json& request,
                const Deadline& deadline) const;
  std::vector<Endpoint> addresses() const;
  // The next calls try this address last.
  void pass_over(const Endpoint& address) const;
  bool change_if(const std::string& key, std::int64_t changed, nlohmann::json operation) const;
  std::string name() const { return "etcd at " + in_words(server_); }

  const Endpoint server_;
  const std::chrono::milliseconds patience_;
  mutable std::mutex mutex_;
  mutable std::vector<Endpoint> addresses_;
};

}  // namespace lockstep
