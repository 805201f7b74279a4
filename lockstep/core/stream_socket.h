// SPDX-License-Identifier: BSD-3-Clause
// What all stream sockets have in common, within a machine and between machines. Every call that
// waits takes a deadline and throws TimeoutError at it; other failures are BackendError. A peer
// that closed its end shows as ConnectionClosed.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <span>

#include <sys/types.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

class ConnectionClosed : public BackendError {
 public:
  using BackendError::BackendError;
};

// Nobody listens there, or a firewall says so.
class ConnectionRefused : public ConnectionClosed {
 public:
  using ConnectionClosed::ConnectionClosed;
};

// The host cannot be reached for another reason, which may pass.
class HostUnreachable : public ConnectionClosed {
 public:
  using ConnectionClosed::ConnectionClosed;
};

// All sockets are non-blocking and are not inherited by programs that this process executes.
UniqueFd accept_connection(int listener, const Deadline& deadline);

void send_all(int socket, std::span<const std::byte> data, const Deadline& deadline);
void receive_all(int socket, std::span<std::byte> data, const Deadline& deadline);

// Runs a system call on the socket until it has moved something, waiting for the events of poll()
// where it would block. `what` is for messages.
ssize_t transfer(int socket, short events, const Deadline& deadline, const char* what,
                 const std::function<ssize_t()>& call);

}  // namespace lockstep
