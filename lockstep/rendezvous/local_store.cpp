// SPDX-License-Identifier: BSD-3-Clause
#include "lockstep/rendezvous/local_store.h"

#include <fmt/format.h>

#include "lockstep/core/unix_socket.h"
#include "lockstep/rendezvous/local_store_protocol.h"

namespace lockstep {
namespace {

using local_store_protocol::Operation;

constexpr std::chrono::milliseconds set_timeout = std::chrono::minutes(1);

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

}  // namespace

void LocalStore::set(const std::string& key, const std::string& value) {
  if (key.size() + value.size() > max_size) {
    throw UsageError(fmt::format(
        "store: key \"{}\" and its value have {} bytes together, and may have {}; write large "
        "values to a file and store its name",
        key.substr(0, 100), key.size() + value.size(), max_size));
  }
  const Deadline deadline = Deadline::after(set_timeout);
  try {
    ask(path_, local_store_protocol::encode_request(Operation::set, key, value), deadline);
  } catch (const ConnectionClosed& error) {
    throw_gone(path_, key, error);
  } catch (const TimeoutError&) {
    throw TimeoutError(fmt::format("store {}: setting key \"{}\" was not answered for {} ms", path_,
                                   key, deadline.span().count()));
  }
}

std::string LocalStore::get(const std::string& key, const Deadline& deadline) {
  if (key.size() > max_size) {
    throw UsageError(
        fmt::format("store: a key has {} bytes, and may have {}", key.size(), max_size));
  }
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
