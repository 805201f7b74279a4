// SPDX-License-Identifier: BSD-3-Clause
// Encodes and decodes the frames of peer monitors.
#include "lockstep/comm/remote/monitor_message.h"

#include <cstring>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "lockstep/core/error.h"

namespace lockstep::remote {
namespace {

struct Head {
  std::uint32_t length;
  MonitorMessage::Kind kind;
  AbortCause cause;
  std::int32_t rank;
  std::int32_t lost_rank;
  std::int32_t culprit;
  std::uint64_t number;
};

// Enough for the process ids of 10,000 ranks.
constexpr std::size_t kMaxText = 128 * 1024;

}  // namespace

BackendError malformed_message() {
  return BackendError("a malformed message; run the same version of Lockstep on every rank");
}

std::string encode(const MonitorMessage& message) {
  const std::string_view text = std::string_view(message.text).substr(0, kMaxText);
  const Head head{static_cast<std::uint32_t>(sizeof(Head) - sizeof(Head::length) + text.size()),
                  message.kind,
                  message.cause,
                  message.rank,
                  message.lost_rank,
                  message.culprit,
                  message.number};
  std::string bytes(sizeof head, '\0');
  std::memcpy(bytes.data(), &head, sizeof head);
  bytes += text;
  return bytes;
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
  Head head{};
  if (received_.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, received_.data(), sizeof head);
  constexpr std::size_t kLeast = sizeof(Head) - sizeof(Head::length);
  if (head.length < kLeast || head.length > kLeast + kMaxText) {
    throw BackendError(fmt::format("a message of {} bytes", head.length));
  }
  const std::size_t whole = sizeof(Head::length) + head.length;
  if (received_.size() < whole) return std::nullopt;
  MonitorMessage message{head.kind,
                         head.cause,
                         head.rank,
                         head.lost_rank,
                         head.culprit,
                         head.number,
                         received_.substr(sizeof head, whole - sizeof head)};
  received_.erase(0, whole);
  return message;
}

}  // namespace lockstep::remote
