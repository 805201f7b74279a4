// SPDX-License-Identifier: BSD-3-Clause
// The bytes between StoreClient and StoreServer, and their limits. A connection carries one request
// and one reply. Both begin with their length; integers are in this machine's byte order.
//   request: length of the rest | operation | length of the key | key | value
//   reply:   length of the value | value
// The reply to a set is empty. An add sends and receives decimal text; its reply is empty if the
// key does not hold a number. A server without room for a value replies with the length kNoRoom.
#pragma once

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep::store_protocol {

using Length = std::uint32_t;

enum class Operation : char { set = 's', get = 'g', add = 'a' };

// The maximum size of a key and its value together, in bytes.
inline constexpr std::size_t kMaxEntry = std::size_t{64} << 20;
// The maximum size of all keys and values of a server, and of requests that have arrived in part,
// in bytes. Enough for a few values of the maximum size.
inline constexpr std::size_t kMaxStore = std::size_t{256} << 20;

inline constexpr Length kNoRoom = 0xffff'ffff;

// The largest length that may begin a request.
inline constexpr std::size_t kMaxRequest = sizeof(char) + sizeof(Length) + kMaxEntry;

inline std::string encode_length(std::size_t length) {
  const auto value = static_cast<Length>(length);
  std::string bytes(sizeof value, '\0');
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

inline Length decode_length(std::string_view bytes) {
  Length value = 0;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

inline std::string encode_request(Operation operation, std::string_view key,
                                  std::string_view value) {
  std::string request = encode_length(sizeof(char) + sizeof(Length) + key.size() + value.size());
  request += static_cast<char>(operation);
  request += encode_length(key.size());
  request += key;
  request += value;
  return request;
}

// nullopt if the text is not a whole number.
inline std::optional<std::int64_t> decode_number(std::string_view text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

struct Request {
  Operation operation;
  std::string key;
  std::string value;
};

// Takes the bytes after the first length. nullopt if they are not a request.
inline std::optional<Request> decode_request(std::string_view body) {
  constexpr std::size_t kHead = sizeof(char) + sizeof(Length);
  if (body.size() < kHead) return std::nullopt;
  const auto operation = static_cast<Operation>(body.front());
  const std::size_t key_length = decode_length(body.substr(1));
  body.remove_prefix(kHead);
  if (key_length > body.size()) return std::nullopt;
  if (operation != Operation::set && operation != Operation::get && operation != Operation::add) {
    return std::nullopt;
  }
  return Request{operation, std::string(body.substr(0, key_length)),
                 std::string(body.substr(key_length))};
}

}  // namespace lockstep::store_protocol
