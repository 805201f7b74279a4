// SPDX-License-Identifier: BSD-3-Clause
// Stream sockets between processes of one machine; stream_socket.h says how they fail. An address
// is a path, or "@name" for Linux's abstract namespace, which leaves nothing behind in the file
// system.
#pragma once

#include <string>

#include <sys/types.h>

#include "lockstep/core/net/stream_socket.h"

namespace lockstep {

// All sockets are non-blocking and close on exec.
UniqueFd listen_unix(const std::string& address);
UniqueFd connect_unix(const std::string& address, const Deadline& deadline);

// The process at the other end, as the kernel recorded it when the connection was made.
struct Peer {
  pid_t pid;
  uid_t uid;
};
Peer peer_of(int socket);

// Passes an open descriptor to the peer. The caller keeps its own copy.
void send_fd(int socket, int fd, const Deadline& deadline);
// Also throws ConnectionClosed if the peer sent a farewell instead of a descriptor.
UniqueFd receive_fd(int socket, const Deadline& deadline);

}  // namespace lockstep
