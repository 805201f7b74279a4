// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/rendezvous/local_store.h"

#include <fmt/format.h>

#include "lockstep/core/unix_socket.h"
#include "lockstep/rendezvous/local_store_protocol.h"

namespace lockstep {
namespace {

using local_store_protocol::Operation;

constexpr std::chrono::milliseconds change_timeout = std::chrono::minutes(1);

std::string ask(const std::string& path, const std::string& request, const Deadline& deadline) {
  const UniqueFd connection = connect_unix(path, deadline);
  send_all(connection.get(), std::as_bytes(std::span(request)), deadline);
  std::string length(sizeof(local_store_protocol::Length), '\0');
  receive_all(connection.get(), std::as_writable_bytes(std::span(length)), deadline);
  std::string reply(local_store_protocol::decode_length(length), '\0');
  receive_all(connection.get(), std::as_writable_bytes(std::span(reply)), deadline);
  return reply;
}

[[noreturn]] void throw_gone(const std::string& path, const std::string& key,
                             const ConnectionClosed& error) {
  throw BackendError(
      fmt::format("store {}, key \"{}\": {}; has the launcher ended?", path, key, error.what()));
}

void check_size(const std::string& key, const std::string& value) {
  if (key.size() + value.size() <= LocalStore::max_size) return;
  throw UsageError(fmt::format(
      "store: key \"{}\" and its value have {} bytes together, and may have {}; write large values "
      "to a file and store its name",
      key.substr(0, 100), key.size() + value.size(), LocalStore::max_size));
}

// A request that is answered at once, unless something is wrong.
std::string change(const std::string& path, Operation operation, const std::string& key,
                   const std::string& value) {
  check_size(key, value);
  const Deadline deadline = Deadline::after(change_timeout);
  try {
    return ask(path, local_store_protocol::encode_request(operation, key, value), deadline);
  } catch (const ConnectionClosed& error) {
    throw_gone(path, key, error);
  } catch (const TimeoutError&) {
    throw TimeoutError(fmt::format("store {}: setting key \"{}\" was not answered for {} ms", path,
                                   key, deadline.span().count()));
  }
}

}  // namespace

void LocalStore::set(const std::string& key, const std::string& value) {
  change(path_, Operation::set, key, value);
}

std::int64_t LocalStore::add(const std::string& key, std::int64_t amount) {
  const std::string reply = change(path_, Operation::add, key, std::to_string(amount));
  if (const auto sum = local_store_protocol::decode_number(reply)) return *sum;
  throw UsageError(
      fmt::format("store {}: cannot add {} to key \"{}\": it does not hold a number, or the sum "
                  "does not fit 64 bits",
                  path_, amount, key));
}

std::string LocalStore::get(const std::string& key, const Deadline& deadline) {
  check_size(key, "");
  try {
    return ask(path_, local_store_protocol::encode_request(Operation::get, key, ""), deadline);
  } catch (const ConnectionClosed& error) {
    throw_gone(path_, key, error);
  } catch (const TimeoutError&) {
    throw TimeoutError(fmt::format("store {}: nobody set key \"{}\" within {} ms", path_, key,
                                   deadline.span().count()));
  }
}

}  // namespace lockstep
