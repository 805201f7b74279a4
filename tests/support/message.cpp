// SPDX-License-Identifier: BSD-3-Clause
// Writes and reads messages as a header, a name and a text.
#include "support/message.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include <sys/socket.h>

namespace lockstep::testing {
namespace {

struct Header {
  MessageType type;
  std::int32_t number;
  std::uint32_t name_size;
  std::uint32_t text_size;
};

}  // namespace

bool send_message(int socket, const Message& message) {
  const Header header{message.type, message.number, static_cast<std::uint32_t>(message.name.size()),
                      static_cast<std::uint32_t>(message.text.size())};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  bytes += message.name;
  bytes += message.text;
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const ssize_t sent = ::send(socket, rest.data(), rest.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) return false;
    rest.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

bool MessageReader::read_some(int socket) {
  std::array<char, 65536> chunk;
  while (true) {
    const ssize_t received = ::recv(socket, chunk.data(), chunk.size(), 0);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) return false;
    buffer_.append(chunk.data(), static_cast<std::size_t>(received));
    return true;
  }
}

std::optional<Message> MessageReader::next() {
  Header header{};
  if (buffer_.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, buffer_.data(), sizeof header);
  const std::size_t size = sizeof header + header.name_size + header.text_size;
  if (buffer_.size() < size) return std::nullopt;
  Message message{header.type, header.number, buffer_.substr(sizeof header, header.name_size),
                  buffer_.substr(sizeof header + header.name_size, header.text_size)};
  buffer_.erase(0, size);
  return message;
}

}  // namespace lockstep::testing
