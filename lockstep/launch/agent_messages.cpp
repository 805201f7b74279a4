// SPDX-License-Identifier: BSD-3-Clause
// Packs messages into frames, and assembles frames from the bytes of a stream.
#include "lockstep/launch/agent_messages.h"

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>

#include "lockstep/core/net/stream_socket.h"
#include "lockstep/core/packing.h"

namespace lockstep {
namespace {

using FrameLength = std::uint64_t;

// Enough for the last lines of a rank.
constexpr FrameLength kLongestFrame = std::uint64_t{1} << 20;

void add_milliseconds(Packing& packing, std::chrono::milliseconds span) {
  packing.add(span.count());
}

std::chrono::milliseconds next_milliseconds(Unpacking& packed) {
  return std::chrono::milliseconds(packed.next<std::chrono::milliseconds::rep>());
}

void add_end(Packing& packing, const AttemptEnd& end) {
  packing.add(end.attempt);
  packing.add(end.exit_code);
  packing.add(end.signal);
  packing.add(end.why_last);
  packing.add(end.machine);
  packing.add(end.fault);
  packing.add(end.steps);
  add_milliseconds(packing, end.duration);
  packing.add(end.failure.has_value());
  if (!end.failure) return;
  packing.add(end.failure->rank);
  packing.add(end.failure->pid);
  packing.add(end.failure->exit_code);
  packing.add(end.failure->signal);
  packing.add(end.failure->cause);
  packing.add(end.failure->last_lines);
}

AttemptEnd next_end(Unpacking& packed) {
  AttemptEnd end;
  packed.read_all(end.attempt, end.exit_code, end.signal, end.why_last, end.machine, end.fault,
                  end.steps);
  end.duration = next_milliseconds(packed);
  if (!packed.next<bool>()) return end;
  RankFailure& failure = end.failure.emplace();
  packed.read_all(failure.rank, failure.pid, failure.exit_code, failure.signal, failure.cause,
                  failure.last_lines);
  return end;
}

struct FrameEncoder {
  void operator()(const Hello& hello) {
    packing.add(hello.machine);
    packing.add(hello.machines);
    packing.add(hello.ranks);
    packing.add(hello.max_restarts);
    add_milliseconds(packing, hello.grace);
  }
  void operator()(const Ready& ready) { packing.add(ready.attempt); }
  void operator()(const Stopping& stopping) { packing.add(stopping.signal); }
  void operator()(const Ended& ended) { add_end(packing, ended.end); }
  void operator()(const Start& start) {
    packing.add(start.attempt);
    packing.add(start.master_port);
    packing.add(start.run_id);
  }
  void operator()(const Stop& stop) { packing.add(stop.signal); }
  void operator()(const Verdict& verdict) {
    add_end(packing, verdict.end);
    packing.add(verdict.why_final);
  }
  void operator()(const Refused& refused) { packing.add(refused.reason); }

  Packing packing{};
};

// The message whose members follow its index among the alternatives.
AgentMessage decode_frame(std::string_view bytes) {
  Unpacking packed(bytes);
  switch (packed.next<std::size_t>()) {
    case 0: {
      Hello hello;
      packed.read_all(hello.machine, hello.machines, hello.ranks, hello.max_restarts);
      hello.grace = next_milliseconds(packed);
      return hello;
    }
    case 1:
      return Ready{packed.next<int>()};
    case 2:
      return Stopping{packed.next<int>()};
    case 3:
      return Ended{next_end(packed)};
    case 4: {
      Start start;
      packed.read_all(start.attempt, start.master_port, start.run_id);
      return start;
    }
    case 5:
      return Stop{packed.next<int>()};
    case 6: {
      Verdict verdict{next_end(packed)};
      packed.read_all(verdict.why_final);
      return verdict;
    }
    case 7:
      return Refused{packed.next<std::string>()};
    default:
      throw BackendError("an unknown message; run the same version of Lockstep on every machine");
  }
}

}  // namespace

short AgentConnection::events() const {
  return static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT);
}

void AgentConnection::send(const AgentMessage& message) {
  FrameEncoder encoder;
  encoder.packing.add(message.index());
  std::visit(encoder, message);
  const std::string body = encoder.packing.take();
  const FrameLength length = body.size();
  unsent_.append(reinterpret_cast<const char*>(&length), sizeof length);
  unsent_ += body;
  flush();
}

void AgentConnection::flush() {
  while (!unsent_.empty()) {
    const ssize_t count =
        ::send(socket_.get(), unsent_.data(), unsent_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    // A lost connection is noticed when it is read.
    if (count <= 0) return;
    unsent_.erase(0, static_cast<std::size_t>(count));
  }
}

std::optional<AgentMessage> AgentConnection::next() {
  while (true) {
    FrameLength length = 0;
    if (received_.size() >= sizeof length) {
      std::memcpy(&length, received_.data(), sizeof length);
      if (length > kLongestFrame) {
        throw BackendError(fmt::format(
            "a message of {} bytes; run the same version of Lockstep on every machine", length));
      }
      if (received_.size() >= sizeof length + length) {
        const AgentMessage message =
            decode_frame(std::string_view(received_).substr(sizeof length, length));
        received_.erase(0, sizeof length + length);
        return message;
      }
    }
    std::array<char, 4096> bytes;
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return std::nullopt;
    if (count <= 0) throw ConnectionClosed("the agent of the other machine is gone");
    received_.append(bytes.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace lockstep
