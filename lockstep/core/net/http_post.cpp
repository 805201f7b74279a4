// SPDX-License-Identifier: BSD-3-Clause
// Sends the request, and reads the answer as it comes.
#include "lockstep/core/net/http_post.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include "lockstep/core/error.h"
#include "lockstep/core/number.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

constexpr Range<int> kHttpStates{100, 599};
constexpr Range<std::int64_t> kHttpLengths{0, std::numeric_limits<std::int64_t>::max()};

// The value of a header's line, if it has this name, which is in lower case.
std::optional<std::string_view> value_of(std::string_view line, std::string_view name) {
  const auto colon = line.find(':');
  if (colon != name.size()) return std::nullopt;
  const auto same = [](char lower, char other) {
    return lower == std::tolower(static_cast<unsigned char>(other));
  };
  if (!std::equal(name.begin(), name.end(), line.begin(), same)) return std::nullopt;
  line.remove_prefix(std::min(line.size(), line.find_first_not_of(' ', colon + 1)));
  return line;
}

}  // namespace

HttpPost::HttpPost(const Endpoint& address, const Endpoint& name, const std::string& path,
                   const std::string& body, const Deadline& deadline)
    : address_(address), socket_(connect_tcp_at_once(address.host, address.port, deadline)) {
  const std::string request = fmt::format(
      "POST {} HTTP/1.0\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
      "\r\n{}",
      path, in_words(name), body.size(), body);
  send_all(socket_.get(), std::as_bytes(std::span(request)), deadline);
}

void HttpPost::throw_no_http(const std::string& what) const {
  throw BackendError(
      fmt::format("{} does not answer as an HTTP server does: {}", in_words(address_), what));
}

bool HttpPost::receive(const Deadline& deadline, int wake) {
  std::array<char, 16 << 10> bytes;
  while (true) {
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    if (count > 0) {
      received_.append(bytes.data(), static_cast<std::size_t>(count));
      return true;
    }
    if (count == 0) {
      ended_ = true;
      return true;
    }
    if (errno == ECONNRESET) {
      throw ConnectionClosed(fmt::format("{} closed the connection", in_words(address_)));
    }
    if (errno != EAGAIN && errno != EINTR) {
      throw BackendError(
          fmt::format("receiving from {}: {}", in_words(address_), reason_of(errno)));
    }
    std::array<pollfd, 2> entries{{{socket_.get(), POLLIN, 0}, {wake, POLLIN, 0}}};
    ::poll(entries.data(), entries.size(), static_cast<int>(deadline.remaining().count()));
    if (entries[1].revents != 0) return false;
    if (entries[0].revents == 0 && deadline.passed()) {
      throw TimeoutError(fmt::format("{} did not answer within {:.1f} s", in_words(address_),
                                     static_cast<double>(deadline.span().count()) / 1000.0));
    }
  }
}

void HttpPost::read_head(const Deadline& deadline) {
  std::size_t end = 0;
  while ((end = received_.find("\r\n\r\n")) == std::string::npos) {
    if (received_.size() > kMaxHead) throw_no_http("its header has no end");
    if (ended_) {
      throw ConnectionClosed(
          fmt::format("{} closed the connection without an answer", in_words(address_)));
    }
    receive(deadline);
  }
  std::string_view head = std::string_view(received_).substr(0, end);
  const std::string_view first = head.substr(0, head.find("\r\n"));
  const auto status = first.starts_with("HTTP/1.") && first.size() >= 12
                          ? parse_number(first.substr(9, 3), kHttpStates)
                          : std::nullopt;
  if (!status) throw_no_http(fmt::format("\"{}\"", first.substr(0, 100)));
  for (auto next = first.size(); next < head.size();) {
    head.remove_prefix(next + 2);
    next = std::min(head.find("\r\n"), head.size());
    const std::string_view header = head.substr(0, next);
    if (value_of(header, "transfer-encoding")) throw_no_http("it sends chunks to HTTP/1.0");
    if (const auto length = value_of(header, "content-length")) {
      const auto number = parse_number(*length, kHttpLengths);
      if (!number) throw_no_http(fmt::format("Content-Length: {}", length->substr(0, 100)));
      length_ = static_cast<std::size_t>(*number);
    }
  }
  status_ = *status;
  received_.erase(0, end + 4);
}

int HttpPost::status(const Deadline& deadline) {
  if (status_ == 0) read_head(deadline);
  return status_;
}

std::string HttpPost::body(const Deadline& deadline) {
  status(deadline);
  while (!ended_ && (!length_ || received_.size() < *length_)) {
    if (received_.size() > kMaxBody || length_.value_or(0) > kMaxBody) {
      throw_no_http(fmt::format("it sends more than {} MiB", kMaxBody >> 20));
    }
    receive(deadline);
  }
  if (length_ && received_.size() < *length_) {
    throw ConnectionClosed(
        fmt::format("{} closed the connection after {} of {} bytes of its answer",
                    in_words(address_), received_.size(), *length_));
  }
  if (length_) received_.resize(*length_);
  return std::move(received_);
}

std::optional<std::string> HttpPost::line(const Deadline& deadline, int wake) {
  status(deadline);
  std::size_t end = 0;
  while ((end = received_.find('\n')) == std::string::npos) {
    if (received_.size() > kMaxBody) {
      throw_no_http(fmt::format("it sends a line of more than {} MiB", kMaxBody >> 20));
    }
    if (ended_) {
      throw ConnectionClosed(fmt::format("{} closed the connection", in_words(address_)));
    }
    if (!receive(deadline, wake)) return std::nullopt;
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

}  // namespace lockstep
