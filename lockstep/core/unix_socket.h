// SPDX-License-Identifier: BSD-3-Clause
// Stream sockets between processes of one machine. Every call that waits takes a deadline and
// throws TimeoutError at it; other failures are BackendError. A peer that closed its end shows as
// ConnectionClosed. An address is a path, or "@name" for Linux's abstract namespace, which leaves
// nothing behind in the file system.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include <sys/types.h>

#include "lockstep/core/deadline.h"
#include "lockstep/core/error.h"
#include "lockstep/core/unique_fd.h"

namespace lockstep {

class ConnectionClosed : public BackendError {
 public:
  using BackendError::BackendError;
};

// All sockets are non-blocking and are not inherited by programs that this process executes.
UniqueFd listen_unix(const std::string& address);
UniqueFd connect_unix(const std::string& address, const Deadline& deadline);
UniqueFd accept_unix(int listener, const Deadline& deadline);

// The process at the other end, as the kernel saw it when the connection was made.
struct Peer {
  pid_t pid;
  uid_t uid;
};
Peer peer_of(int socket);

void send_all(int socket, std::span<const std::byte> data, const Deadline& deadline);
void receive_all(int socket, std::span<std::byte> data, const Deadline& deadline);

// Passes an open descriptor to the peer. The caller keeps its own copy.
void send_fd(int socket, int fd, const Deadline& deadline);
// ConnectionClosed also if the peer sent something else, which then is its farewell.
UniqueFd receive_fd(int socket, const Deadline& deadline);

}  // namespace lockstep
