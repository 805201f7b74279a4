// SPDX-License-Identifier: BSD-3-Clause
// A server that answers whatever it is asked with the same bytes.
#pragma once

#include <array>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <poll.h>
#include <sys/socket.h>

#include "lockstep/core/error.h"
#include "lockstep/core/net/tcp_socket.h"

namespace lockstep::testing {

// Closes each connection after its answer, or keeps it open until the end.
class CannedServer {
 public:
  explicit CannedServer(std::string answer, bool closes = true)
      : listener_(listen_tcp("127.0.0.1", 0)),
        thread_([this, answer = std::move(answer), closes](const std::stop_token& stop) {
          serve(stop, answer, closes);
        }) {}

  Endpoint endpoint() const { return local_address(listener_.get()); }

 private:
  void serve(const std::stop_token& stop, const std::string& answer, bool closes) {
    std::vector<UniqueFd> kept;
    while (!stop.stop_requested()) {
      pollfd entry{listener_.get(), POLLIN, 0};
      if (::poll(&entry, 1, 20) == 0) continue;
      const Deadline deadline = Deadline::after(std::chrono::seconds(5));
      UniqueFd socket = accept_connection(listener_.get(), deadline);
      try {
        read_request(socket.get(), deadline);
        send_all(socket.get(), std::as_bytes(std::span(answer)), deadline);
      } catch (const Error&) {
        continue;  // it has read enough
      }
      if (!closes) kept.push_back(std::move(socket));
    }
  }

  // A JSON object is its body. With bytes unread, the kernel would reset the connection.
  static void read_request(int socket, const Deadline& deadline) {
    std::string request;
    while (!request.ends_with("}")) {
      std::array<char, 4096> bytes{};
      request.append(bytes.data(),
                     static_cast<std::size_t>(transfer(socket, POLLIN, deadline, "receiving", [&] {
                       return ::recv(socket, bytes.data(), bytes.size(), 0);
                     })));
    }
  }

  UniqueFd listener_;
  std::jthread thread_;
};

}  // namespace lockstep::testing
