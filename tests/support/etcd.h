// SPDX-License-Identifier: BSD-3-Clause
// A real etcd for tests, with its data in a temporary folder.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "support/program.h"
#include "support/temporary_folder.h"

namespace lockstep::testing {

class Etcd {
 public:
  // Why there can be none here; empty if there can.
  static std::string why_not();

  // Returns once it serves clients at a free port of this address. Runs the command that `on` makes
  // of its own, such as on another host.
  using Command = std::vector<std::string>;
  explicit Etcd(const std::string& address = "127.0.0.1",
                const std::function<Command(Command)>& on = {});

  // "127.0.0.1:2379"
  const std::string& endpoint() const { return endpoint_; }
  int port() const { return port_; }
  void signal(int signal) const { server_->signal(signal); }

 private:
  TemporaryFolder folder_;
  int port_;
  std::string endpoint_;
  std::unique_ptr<Program> server_;
};

}  // namespace lockstep::testing
