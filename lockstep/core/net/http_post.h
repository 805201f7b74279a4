// SPDX-License-Identifier: BSD-3-Clause
// One HTTP request: POST with a JSON body, over HTTP/1.0 without TLS, for services such as etcd's
// gateway.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "lockstep/core/deadline.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

// Everything throws TimeoutError at the deadline, ConnectionClosed if the server closes the
// connection too early, and BackendError if it does not answer as an HTTP server does, or with more
// than kMaxHead or kMaxBody bytes. For one thread.
class HttpPost {
 public:
  static constexpr std::size_t kMaxHead = 16 << 10;
  // Of a whole body, or of a line of one.
  static constexpr std::size_t kMaxBody = 8 << 20;

  // Connects to the address and sends the request, for the server of this name. Also
  // ConnectionRefused and HostUnreachable, as from connect_tcp_at_once().
  HttpPost(const Endpoint& address, const Endpoint& name, const std::string& path,
           const std::string& body, const Deadline& deadline);
  HttpPost(const Endpoint& server, const std::string& path, const std::string& body,
           const Deadline& deadline)
      : HttpPost(server, server, path, body, deadline) {}

  const Endpoint& address() const { return address_; }

  // Blocks until the head of the answer has arrived: 200 means success.
  int status(const Deadline& deadline);
  // Blocks until the answer has ended, and returns its body. Not together with line().
  std::string body(const Deadline& deadline);
  // For a server that answers in lines, over a long time: blocks until the next one has arrived.
  // nullopt if the descriptor `wake` is readable first.
  std::optional<std::string> line(const Deadline& deadline, int wake = -1);

 private:
  // Takes what has arrived; false if `wake` is readable first.
  bool receive(const Deadline& deadline, int wake = -1);
  void read_head(const Deadline& deadline);
  [[noreturn]] void throw_no_http(const std::string& what) const;

  const Endpoint address_;
  UniqueFd socket_;
  int status_ = 0;
  std::optional<std::size_t> length_;
  // What has arrived and was not returned.
  std::string received_;
  bool ended_ = false;
};

}  // namespace lockstep
