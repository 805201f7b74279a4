// SPDX-License-Identifier: BSD-3-Clause
// Starts etcd, and waits until it says that it serves clients.
#include "support/etcd.h"

#include "support/free_port.h"
#include <fmt/format.h>

namespace lockstep::testing {

std::string Etcd::why_not() {
  const bool is_there =
      Program({"/bin/sh", "-c", "command -v etcd && command -v etcdctl"}).wait() == 0;
  return is_there ? "" : "there is no etcd and etcdctl (Debian: etcd-server, etcd-client)";
}

Etcd::Etcd(const std::string& address, const std::function<Command(Command)>& on)
    : port_(free_port()), endpoint_(fmt::format("{}:{}", address, port_)) {
  const std::string clients = "http://" + endpoint_;
  const std::string peers = fmt::format("http://127.0.0.1:{}", free_port());
  Command command{"sh",
                  "-c",
                  "exec \"$@\" 2>&1",
                  "sh",
                  "etcd",
                  "--data-dir",
                  (folder_.path() / "data").string(),
                  "--listen-client-urls",
                  clients,
                  "--advertise-client-urls",
                  clients,
                  "--listen-peer-urls",
                  peers,
                  "--initial-advertise-peer-urls",
                  peers,
                  "--initial-cluster",
                  "default=" + peers};
  server_ = std::make_unique<Program>(on ? on(command) : command);
  server_->wait_for("serving insecure client requests on");
}

}  // namespace lockstep::testing
