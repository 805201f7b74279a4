// SPDX-License-Identifier: BSD-3-Clause
// One connection per request, and messages about a store that does not answer.
#include "lockstep/rendezvous/store_client.h"

#include <fmt/format.h>

#include "lockstep/core/net/stream_socket.h"
#include "lockstep/core/net/unix_socket.h"

namespace lockstep {
namespace {

using store_protocol::Operation;

constexpr const char* kUseFile = "write large values to a file and store its name";

void check_size(const std::string& key, const std::string& value) {
  if (key.size() + value.size() <= store_protocol::kMaxEntry) return;
  throw UsageError(
      {},
      fmt::format("store: key \"{}\" and its value have {} bytes together, more than {}",
                  key.substr(0, 100), key.size() + value.size(), store_protocol::kMaxEntry),
      kUseFile);
}

}  // namespace

std::string StoreClient::ask(Operation operation, const std::string& key, const std::string& value,
                             const Deadline& deadline) const {
  const std::string request = store_protocol::encode_request(operation, key, value);
  const UniqueFd connection = connect(deadline);
  send_all(connection.get(), std::as_bytes(std::span(request)), deadline);
  std::string length(sizeof(store_protocol::Length), '\0');
  receive_all(connection.get(), std::as_writable_bytes(std::span(length)), deadline);
  const std::size_t size = store_protocol::decode_length(length);
  if (size == store_protocol::kNoRoom) {
    throw UsageError(
        user_.context,
        fmt::format("store {}: there is no room for key \"{}\" with {} bytes: all keys and values "
                    "of a job may have at most {} MiB together",
                    address_, key.substr(0, 100), value.size(), store_protocol::kMaxStore >> 20),
        kUseFile);
  }
  if (size > store_protocol::kMaxEntry)
    throw BackendError("the server that answered is not a Lockstep store");
  std::string reply(size, '\0');
  receive_all(connection.get(), std::as_writable_bytes(std::span(reply)), deadline);
  return reply;
}

void StoreClient::throw_gone(const std::string& key, const std::exception& error) const {
  ErrorDetails details = within(user_.context, error);
  details.cause = fmt::format("store {}, key \"{}\": {}", address_, key, details.cause);
  details.remedy = fmt::format("has {} ended?", server());
  const bool gone = dynamic_cast<const ConnectionClosed*>(&error) != nullptr;
  if (gone && server_ == Server::rank_0) throw StoreLost(std::move(details));
  throw BackendError(std::move(details));
}

// Sends a request that a working server answers at once, and returns the reply.
std::string StoreClient::change(Operation operation, const std::string& key,
                                const std::string& value) const {
  check_size(key, value);
  const Deadline deadline = Deadline::after(user_.patience);
  try {
    return ask(operation, key, value, deadline);
  } catch (const TimeoutError&) {
    throw TimeoutError(
        user_.context,
        fmt::format("store {}: setting key \"{}\" was not answered for {} ms", address_, key,
                    deadline.span().count()),
        fmt::format("is {}, which serves it, stopped, or at its limit of open files (ulimit -n)?",
                    server()));
  } catch (const BackendError& error) {
    throw_gone(key, error);
  }
}

void StoreClient::set(const std::string& key, const std::string& value) {
  change(Operation::set, key, value);
}

std::int64_t StoreClient::add(const std::string& key, std::int64_t amount) {
  const std::string reply = change(Operation::add, key, std::to_string(amount));
  if (const auto sum = store_protocol::decode_number(reply)) return *sum;
  throw UsageError(
      user_.context,
      fmt::format("store {}: cannot add {} to key \"{}\": it does not hold a number, or the sum "
                  "does not fit 64 bits",
                  address_, amount, key));
}

std::string StoreClient::get(const std::string& key, const Deadline& deadline) {
  check_size(key, "");
  try {
    return ask(Operation::get, key, "", deadline);
  } catch (const TimeoutError&) {
    throw TimeoutError(user_.context, fmt::format("store {}: nobody set key \"{}\" within {} ms",
                                                  address_, key, deadline.span().count()));
  } catch (const BackendError& error) {
    throw_gone(key, error);
  }
}

UniqueFd LocalStore::connect(const Deadline& deadline) const {
  return connect_unix(path_, deadline);
}

}  // namespace lockstep
