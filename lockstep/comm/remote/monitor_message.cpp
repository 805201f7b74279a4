// SPDX-License-Identifier: BSD-3-Clause
// Encodes and decodes the frames of peer monitors.
#include "lockstep/comm/remote/monitor_message.h"

#include <cstring>
#include <sstream>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"
#include "lockstep/core/packing.h"

namespace lockstep::remote {
namespace {

using Length = std::uint32_t;

// Enough for the process ids of 10,000 ranks.
constexpr std::size_t kMaxText = 128 * 1024;

std::string pack_body(const MonitorMessage& message, std::string_view text) {
  return pack(message.kind, message.cause, message.rank, message.lost_rank, message.culprit,
              message.number, text);
}

}  // namespace

BackendError malformed_message() {
  return BackendError("a malformed message; run the same version of Lockstep on every rank");
}

std::string encode(const MonitorMessage& message) {
  const std::string body = pack_body(message, std::string_view(message.text).substr(0, kMaxText));
  const auto length = static_cast<Length>(body.size());
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + body;
}

std::string as_text(std::span<const int> numbers) {
  return fmt::format("{}", fmt::join(numbers, " "));
}

std::vector<int> as_numbers(const std::string& text) {
  std::istringstream stream(text);
  std::vector<int> numbers;
  for (int number = 0; stream >> number;) numbers.push_back(number);
  return numbers;
}

void MonitorReader::add(std::span<const std::byte> bytes) {
  received_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

std::optional<MonitorMessage> MonitorReader::next() {
  Length length = 0;
  if (received_.size() < sizeof length) return std::nullopt;
  std::memcpy(&length, received_.data(), sizeof length);
  static const std::size_t least = pack_body({}, "").size();
  if (length < least || length > least + kMaxText) {
    throw BackendError(fmt::format("a message of {} bytes", length));
  }
  const std::size_t whole = sizeof length + length;
  if (received_.size() < whole) return std::nullopt;
  MonitorMessage message;
  unpack(std::string_view(received_).substr(sizeof length, length), message.kind, message.cause,
         message.rank, message.lost_rank, message.culprit, message.number, message.text);
  received_.erase(0, whole);
  return message;
}

}  // namespace lockstep::remote
