// SPDX-License-Identifier: BSD-3-Clause
// Unix sockets: addresses, peer credentials, and passing descriptors.
#include "lockstep/core/net/unix_socket.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

struct Address {
  sockaddr_un storage{};
  socklen_t length = 0;
};

Address parse(const std::string& address) {
  Address result;
  result.storage.sun_family = AF_UNIX;
  // One byte stays zero: the terminator of a path.
  if (address.empty() || address.size() >= sizeof result.storage.sun_path) {
    throw UsageError(fmt::format("\"{}\" is not a Unix socket address: it needs 1 to {} characters",
                                 address, sizeof result.storage.sun_path - 1));
  }
  std::memcpy(result.storage.sun_path, address.data(), address.size());
  const bool abstract = address.front() == '@';
  if (abstract) result.storage.sun_path[0] = '\0';
  result.length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.size() + (abstract ? 0 : 1));
  return result;
}

UniqueFd new_socket() {
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) throw BackendError(fmt::format("cannot make a socket: {}", reason_of(errno)));
  return fd;
}

}  // namespace

UniqueFd listen_unix(const std::string& address) {
  const Address target = parse(address);
  UniqueFd fd = new_socket();
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&target.storage), target.length) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    throw BackendError(fmt::format("cannot listen on {}: {}", address, reason_of(errno)));
  }
  return fd;
}

UniqueFd connect_unix(const std::string& address, const Deadline& deadline) {
  const Address target = parse(address);
  UniqueFd fd = new_socket();
  // A full backlog returns EAGAIN at once and cannot be polled, so this retries.
  while (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&target.storage), target.length) !=
         0) {
    if (errno == EINTR) continue;
    if (errno != EAGAIN) {
      throw BackendError(fmt::format("cannot connect to {}: {}", address, reason_of(errno)));
    }
    if (deadline.passed()) {
      throw TimeoutError(fmt::format("cannot connect to {}: its queue was full for {} ms", address,
                                     deadline.span().count()));
    }
    ::poll(nullptr, 0, 1);
  }
  return fd;
}

Peer peer_of(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    throw BackendError(fmt::format("cannot tell who is connected: {}", reason_of(errno)));
  }
  return {credentials.pid, credentials.uid};
}

namespace {

// A one-byte message that carries one descriptor.
struct DescriptorMessage {
  std::byte payload{};
  iovec part{&payload, sizeof payload};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};

  DescriptorMessage() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control;
    header.msg_controllen = sizeof control;
  }
};

}  // namespace

void send_fd(int socket, int fd, const Deadline& deadline) {
  DescriptorMessage message;
  cmsghdr* item = CMSG_FIRSTHDR(&message.header);
  item->cmsg_level = SOL_SOCKET;
  item->cmsg_type = SCM_RIGHTS;
  item->cmsg_len = CMSG_LEN(sizeof fd);
  std::memcpy(CMSG_DATA(item), &fd, sizeof fd);
  transfer(socket, POLLOUT, deadline, "passing a descriptor",
           [&] { return ::sendmsg(socket, &message.header, MSG_NOSIGNAL); });
}

UniqueFd receive_fd(int socket, const Deadline& deadline) {
  DescriptorMessage message;
  transfer(socket, POLLIN, deadline, "receiving a descriptor",
           [&] { return ::recvmsg(socket, &message.header, MSG_CMSG_CLOEXEC); });
  const cmsghdr* item = CMSG_FIRSTHDR(&message.header);
  if (message.payload != DescriptorMessage{}.payload) {
    throw ConnectionClosed("receiving a descriptor: the peer closed the connection");
  }
  if (item == nullptr || item->cmsg_type != SCM_RIGHTS) {
    // The kernel drops a descriptor for which this process has no room.
    const bool cut = (message.header.msg_flags & MSG_CTRUNC) != 0;
    throw BackendError("receiving a descriptor: the message carried none" +
                       (cut ? ": " + reason_of(EMFILE) : ""));
  }
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(item), sizeof fd);
  return UniqueFd(fd);
}

}  // namespace lockstep
