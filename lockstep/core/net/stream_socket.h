// SPDX-License-Identifier: BSD-3-Clause
// The parts that stream sockets within a machine and between machines share. Every blocking call
// takes a deadline and throws TimeoutError when it passes; other failures are BackendError. A peer
// that closed its end causes ConnectionClosed.
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

class ConnectionClosed : public ErrorType<ConnectionClosed, BackendError> {
 public:
  using ErrorType::ErrorType;
};

// Nobody listens there, or a firewall refuses.
class ConnectionRefused : public ErrorType<ConnectionRefused, ConnectionClosed> {
 public:
  using ErrorType::ErrorType;
};

// The host cannot be reached for another reason, which may be temporary.
class HostUnreachable : public ErrorType<HostUnreachable, ConnectionClosed> {
 public:
  using ErrorType::ErrorType;
};

// All sockets are non-blocking and close on exec.
UniqueFd accept_connection(int listener, const Deadline& deadline);

void send_all(int socket, std::span<const std::byte> data, const Deadline& deadline);
void receive_all(int socket, std::span<std::byte> data, const Deadline& deadline);

// Repeats `call`, a system call on the socket, until it has moved some bytes; waits for `events` of
// poll() where it would block. `what` is for messages.
ssize_t transfer(int socket, short events, const Deadline& deadline, const char* what,
                 const std::function<ssize_t()>& call);

}  // namespace lockstep
