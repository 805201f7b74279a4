// SPDX-License-Identifier: BSD-3-Clause
// Receives requests, keeps values within the memory bound, and sends replies.
#include "lockstep/rendezvous/store_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <iterator>

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "lockstep/core/error.h"

namespace lockstep {
namespace {

using store_protocol::decode_length;
using store_protocol::encode_length;
using store_protocol::Length;
using store_protocol::Operation;

// Keeps a client that sends without end from blocking the owner's loop.
constexpr int kRoundsPerServe = 16;

}  // namespace

StoreServer::StoreServer(int door, std::size_t max_connections)
    : max_connections_(max_connections) {
  epoll_.add(door, EPOLLIN);
}

void StoreServer::admit(ForkSafeFd socket) {
  if (connections_.size() >= max_connections_ && !make_room()) return;
  const int fd = socket.get();
  if (!epoll_.try_add(fd, EPOLLIN)) return;
  Connection& connection = connections_.try_emplace(fd, memory_).first->second;
  connection.socket = std::move(socket);
  connection.number = admitted_++;
}

bool StoreServer::make_room() {
  auto oldest = connections_.end();
  for (auto one = connections_.begin(); one != connections_.end(); ++one) {
    if (one->second.waiting || one->second.replying) continue;
    if (oldest == connections_.end() || one->second.number < oldest->second.number) oldest = one;
  }
  if (oldest == connections_.end()) return false;
  epoll_.remove(oldest->first);
  connections_.erase(oldest);
  return true;
}

void StoreServer::close() {
  connections_.clear();
  epoll_.close();
}

void StoreServer::serve() {
  for (int round = 0; round < kRoundsPerServe; ++round) {
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
  // A client that waits for its reply sends nothing more: it gave up, or is not a client.
  if (count == 0 || connection.waiting) return false;
  const auto size = static_cast<std::size_t>(count);
  std::string& received = connection.received;
  connection.received_bytes += size;
  connection.has_room = connection.has_room && connection.share.grow(size);
  if (connection.has_room || received.size() < sizeof(Length)) received.append(bytes.data(), size);
  if (received.size() < sizeof(Length)) return true;
  const std::size_t announced = decode_length(received);
  if (announced > store_protocol::kMaxRequest) return false;
  if (!connection.has_room) {
    received.resize(sizeof(Length));
    received.shrink_to_fit();
    connection.share.clear();
  }
  if (connection.received_bytes < sizeof(Length) + announced) return true;
  return connection.received_bytes == sizeof(Length) + announced && answer(connection);
}

bool StoreServer::answer(Connection& connection) {
  if (!connection.has_room) {
    reply(connection, encode_length(store_protocol::kNoRoom));
    return true;
  }
  auto request =
      store_protocol::decode_request(std::string_view(connection.received).substr(sizeof(Length)));
  connection.received = {};
  if (!request) return false;
  if (request->operation == Operation::get) {
    if (const auto found = values_.find(request->key); found != values_.end()) {
      connection.share.clear();
      reply(connection, encode_length(found->second->text.size()), found->second);
      return true;
    }
    connection.awaited = std::move(request->key);
    connection.waiting = true;
    return !is_dropped(connection.awaited);
  }
  connection.share.clear();
  std::string sum_of_add;
  if (request->operation == Operation::add) {
    sum_of_add = sum(request->key, request->value);
    if (sum_of_add.empty()) {
      reply(connection, encode_length(0));
      return true;
    }
    request->value = sum_of_add;
  }
  if (keep(std::move(request->key), std::move(request->value))) {
    reply(connection, encode_length(sum_of_add.size()) + sum_of_add);
  } else {
    reply(connection, encode_length(store_protocol::kNoRoom));
  }
  return true;
}

std::string StoreServer::sum(const std::string& key, std::string_view amount) const {
  const auto found = values_.find(key);
  const auto old =
      store_protocol::decode_number(found == values_.end() ? "0" : found->second->text);
  const auto added = store_protocol::decode_number(amount);
  std::int64_t sum = 0;
  if (!old || !added || __builtin_add_overflow(*old, *added, &sum)) return "";
  return std::to_string(sum);
}

bool StoreServer::keep(std::string key, std::string value) {
  auto kept = std::make_shared<Value>(memory_);
  if (!kept->share.grow(key.size() + value.size() + StoreMemory::kPerEntry)) return false;
  kept->text = std::move(value);
  const auto& stored = *values_.insert_or_assign(std::move(key), std::move(kept)).first;
  for (auto& [fd, connection] : connections_) {
    if (connection.waiting && connection.awaited == stored.first) {
      reply(connection, encode_length(stored.second->text.size()), stored.second);
    }
  }
  return true;
}

void StoreServer::set(std::string key, std::string value) {
  if (keep(std::move(key), std::move(value))) return;
  throw UsageError(
      fmt::format("store: it is full; it holds at most {} MiB", store_protocol::kMaxStore >> 20));
}

StoreServer::Values StoreServer::take(std::string_view prefix) {
  Values taken;
  auto next = values_.lower_bound(prefix);
  while (next != values_.end() && next->first.starts_with(prefix)) {
    taken.emplace(next->first, next->second->text);
    next = values_.erase(next);
  }
  return taken;
}

void StoreServer::drop(const std::string& prefix) {
  dropped_.push_back(prefix);
  std::erase_if(values_, [&](const auto& entry) { return entry.first.starts_with(prefix); });
  for (auto one = connections_.begin(); one != connections_.end();) {
    const auto& [fd, connection] = *one;
    const bool ends = connection.waiting && is_dropped(connection.awaited);
    if (ends) epoll_.remove(fd);
    one = ends ? connections_.erase(one) : std::next(one);
  }
}

bool StoreServer::is_dropped(std::string_view key) const {
  const auto begins = [&](const std::string& prefix) { return key.starts_with(prefix); };
  return std::ranges::any_of(dropped_, begins);
}

StoreServer::Values StoreServer::values() const {
  Values copies;
  for (const auto& [key, value] : values_) copies.emplace(key, value->text);
  return copies;
}

std::optional<std::string> StoreServer::value(std::string_view key) const {
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second->text;
}

bool StoreServer::replying() const {
  return std::ranges::any_of(connections_, [](const auto& one) { return one.second.replying; });
}

void StoreServer::reply(Connection& connection, std::string head,
                        std::shared_ptr<const Value> value) {
  connection.waiting = false;
  connection.awaited = {};
  connection.share.clear();
  connection.replying = true;
  connection.head = std::move(head);
  connection.value = std::move(value);
  epoll_.change(connection.socket.get(), EPOLLOUT);
}

bool StoreServer::send(Connection& connection) {
  const std::string_view head = connection.head;
  const std::string_view value = connection.value ? connection.value->text : std::string_view();
  const std::string_view rest = connection.sent < head.size()
                                    ? head.substr(connection.sent)
                                    : value.substr(connection.sent - head.size());
  if (!rest.empty()) {
    const ssize_t count =
        ::send(connection.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0) return errno == EAGAIN || errno == EINTR;
    connection.sent += static_cast<std::size_t>(count);
  }
  return connection.sent < head.size() + value.size();
}

}  // namespace lockstep
