// SPDX-License-Identifier: BSD-3-Clause
// The store of ranks that one launcher started on this machine: a client of the launcher's
// LocalStoreServer, whose Unix socket path the ranks find in LOCKSTEP_STORE.
#pragma once

#include <string>

#include "lockstep/rendezvous/store_client.h"

namespace lockstep {

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
