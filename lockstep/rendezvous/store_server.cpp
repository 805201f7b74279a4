// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/rendezvous/store_server.h"

#include <array>
#include <cerrno>
#include <cstdint>

#include <sys/epoll.h>
#include <sys/socket.h>

#include "lockstep/rendezvous/store_protocol.h"

namespace lockstep {
namespace {

using store_protocol::decode_length;
using store_protocol::encode_length;
using store_protocol::Length;
using store_protocol::Operation;

// So that a client that sends without end does not keep the owner's loop from its other work.
constexpr int rounds_per_serve = 16;

}  // namespace

StoreServer::StoreServer(int door) {
  epoll_.add(door, EPOLLIN);
}

void StoreServer::admit(OwnFd socket) {
  const int fd = socket.get();
  if (!epoll_.try_add(fd, EPOLLIN)) return;
  connections_[fd].socket = std::move(socket);
}

void StoreServer::close() {
  connections_.clear();
  epoll_.close();
}

void StoreServer::serve() {
  for (int round = 0; round < rounds_per_serve; ++round) {
    bool idle = true;
    for (const int fd : epoll_.ready()) {
      const auto found = connections_.find(fd);
      if (found == connections_.end()) continue;
      idle = false;
      if (advance(found->second)) continue;
      epoll_.remove(fd);
      connections_.erase(found);
    }
    if (idle) return;
  }
}

bool StoreServer::advance(Connection& connection) {
  return connection.replying ? send(connection) : receive(connection);
}

bool StoreServer::receive(Connection& connection) {
  std::array<char, 65536> bytes;
  const ssize_t count = ::recv(connection.socket.get(), bytes.data(), bytes.size(), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  // A client that waits for its answer has nothing more to say: it gave up, or is no client.
  if (count == 0 || connection.waiting) return false;
  std::string& received = connection.received;
  received.append(bytes.data(), static_cast<std::size_t>(count));
  if (received.size() < sizeof(Length)) return true;
  const std::size_t announced = decode_length(received);
  if (announced > store_protocol::max_request) return false;
  if (received.size() < sizeof(Length) + announced) return true;
  return received.size() == sizeof(Length) + announced && answer(connection);
}

bool StoreServer::answer(Connection& connection) {
  auto request =
      store_protocol::decode_request(std::string_view(connection.received).substr(sizeof(Length)));
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

std::string StoreServer::add(std::string key, std::string_view amount) {
  const auto found = values_.find(key);
  const auto old = store_protocol::decode_number(found == values_.end() ? "0" : found->second);
  const auto added = store_protocol::decode_number(amount);
  std::int64_t sum = 0;
  if (!old || !added || __builtin_add_overflow(*old, *added, &sum)) return "";
  set(std::move(key), std::to_string(sum));
  return std::to_string(sum);
}

void StoreServer::set(std::string key, std::string value) {
  const auto stored = values_.insert_or_assign(std::move(key), std::move(value)).first;
  for (auto& [fd, connection] : connections_) {
    if (connection.waiting && connection.awaited == stored->first) {
      reply(connection, stored->second);
    }
  }
}

void StoreServer::reply(Connection& connection, std::string_view value) {
  connection.waiting = false;
  connection.replying = true;
  connection.reply = encode_length(value.size());
  connection.reply += value;
  epoll_.change(connection.socket.get(), EPOLLOUT);
}

bool StoreServer::send(Connection& connection) {
  const std::string_view rest = std::string_view(connection.reply).substr(connection.sent);
  const ssize_t count =
      ::send(connection.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  connection.sent += static_cast<std::size_t>(count);
  return connection.sent < connection.reply.size();
}

}  // namespace lockstep
