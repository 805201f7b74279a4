// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/rendezvous/local_store_server.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <filesystem>

#include <fmt/format.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/unix_socket.h"
#include "lockstep/rendezvous/local_store_protocol.h"

namespace lockstep {
namespace {

using local_store_protocol::decode_length;
using local_store_protocol::encode_length;
using local_store_protocol::Length;
using local_store_protocol::Operation;

constexpr std::string_view folder_pattern = "/lockstep-XXXXXX";
constexpr std::string_view socket_name = "/store";
// So that a client that sends without end does not keep the owner's loop from its other work.
constexpr int rounds_per_serve = 16;

// A new folder that only this user may enter.
std::string make_folder() {
  std::string parent = environment("TMPDIR").value_or("/tmp");
  std::error_code ignored;
  // The janitor and ranks that change their working directory need it absolute.
  parent = std::filesystem::absolute(parent, ignored).string();
  if (parent.size() + folder_pattern.size() + socket_name.size() >= sizeof(sockaddr_un::sun_path)) {
    parent = "/tmp";
  }
  std::string folder = parent + std::string(folder_pattern);
  if (::mkdtemp(folder.data()) == nullptr) {
    throw BackendError(fmt::format(
        "cannot make a folder for the launcher's socket in {}: {}; set TMPDIR to a folder that can "
        "be written to",
        parent, std::strerror(errno)));
  }
  return folder;
}

void watch(int epoll, int operation, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  if (::epoll_ctl(epoll, operation, fd, &event) != 0 && operation == EPOLL_CTL_ADD) {
    throw BackendError(fmt::format("cannot watch a socket: {}", std::strerror(errno)));
  }
}

}  // namespace

LocalStoreServer::LocalStoreServer()
    : folder_(make_folder()), path_(folder_ + std::string(socket_name)) {
  try {
    listener_ = listen_unix(path_);
    epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
    if (!epoll_) throw BackendError(fmt::format("cannot make an epoll: {}", std::strerror(errno)));
    listen(true);
  } catch (...) {
    ::unlink(path_.c_str());
    ::rmdir(folder_.c_str());
    throw;
  }
}

LocalStoreServer::~LocalStoreServer() {
  if (!listener_) return;
  ::unlink(path_.c_str());
  ::rmdir(folder_.c_str());
}

void LocalStoreServer::leave_to_parent() {
  connections_.clear();
  listener_.reset();
  epoll_.reset();
}

void LocalStoreServer::listen(bool on) {
  if (on == listening_) return;
  watch(epoll_.get(), on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, listener_.get(), EPOLLIN);
  listening_ = on;
}

void LocalStoreServer::serve() {
  listen(true);
  std::array<epoll_event, 64> events;
  for (int round = 0; round < rounds_per_serve; ++round) {
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), 0);
    if (count <= 0) return;
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == listener_.get()) {
        accept_all();
        continue;
      }
      const auto found = connections_.find(fd);
      if (found == connections_.end() || advance(found->second)) continue;
      watch(epoll_.get(), EPOLL_CTL_DEL, fd, 0);
      connections_.erase(found);
    }
  }
}

void LocalStoreServer::accept_all() {
  while (true) {
    UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // Out of descriptors: the queue holds the others until the next serve().
      if (errno != EAGAIN) listen(false);
      return;
    }
    const int fd = socket.get();
    try {
      if (peer_of(fd).uid != ::geteuid()) continue;
      watch(epoll_.get(), EPOLL_CTL_ADD, fd, EPOLLIN);
    } catch (const BackendError&) {
      continue;
    }
    connections_[fd].socket = std::move(socket);
  }
}

bool LocalStoreServer::advance(Connection& connection) {
  return connection.replying ? send(connection) : receive(connection);
}

bool LocalStoreServer::receive(Connection& connection) {
  std::array<char, 65536> bytes;
  const ssize_t count = ::recv(connection.socket.get(), bytes.data(), bytes.size(), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  // A client that waits for its answer has nothing more to say: it gave up, or is no client.
  if (count == 0 || connection.waiting) return false;
  std::string& received = connection.received;
  received.append(bytes.data(), static_cast<std::size_t>(count));
  if (received.size() < sizeof(Length)) return true;
  const std::size_t announced = decode_length(received);
  if (announced > local_store_protocol::max_request) return false;
  if (received.size() < sizeof(Length) + announced) return true;
  return received.size() == sizeof(Length) + announced && answer(connection);
}

bool LocalStoreServer::answer(Connection& connection) {
  auto request = local_store_protocol::decode_request(
      std::string_view(connection.received).substr(sizeof(Length)));
  connection.received = {};
  if (!request) return false;
  if (request->operation == Operation::set) {
    set(std::move(request->key), std::move(request->value));
    reply(connection, "");
  } else if (request->operation == Operation::add) {
    reply(connection, add(std::move(request->key), request->value));
  } else if (const auto found = values_.find(request->key); found != values_.end()) {
    reply(connection, found->second);
  } else {
    connection.awaited = std::move(request->key);
    connection.waiting = true;
  }
  return true;
}

std::string LocalStoreServer::add(std::string key, std::string_view amount) {
  const auto found = values_.find(key);
  const auto old =
      local_store_protocol::decode_number(found == values_.end() ? "0" : found->second);
  const auto added = local_store_protocol::decode_number(amount);
  std::int64_t sum = 0;
  if (!old || !added || __builtin_add_overflow(*old, *added, &sum)) return "";
  set(std::move(key), std::to_string(sum));
  return std::to_string(sum);
}

void LocalStoreServer::set(std::string key, std::string value) {
  const auto stored = values_.insert_or_assign(std::move(key), std::move(value)).first;
  for (auto& [fd, connection] : connections_) {
    if (connection.waiting && connection.awaited == stored->first) {
      reply(connection, stored->second);
    }
  }
}

void LocalStoreServer::reply(Connection& connection, std::string_view value) {
  connection.waiting = false;
  connection.replying = true;
  connection.reply = encode_length(value.size());
  connection.reply += value;
  watch(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), EPOLLOUT);
}

bool LocalStoreServer::send(Connection& connection) {
  const std::string_view rest = std::string_view(connection.reply).substr(connection.sent);
  const ssize_t count =
      ::send(connection.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  connection.sent += static_cast<std::size_t>(count);
  return connection.sent < connection.reply.size();
}

}  // namespace lockstep
