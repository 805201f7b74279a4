// SPDX-License-Identifier: BSD-3-Clause
// Encodes messages as fixed-size packets, and passes descriptors with them.
#include "lockstep/launch/keeper_messages.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/core/net/stream_socket.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

enum class Topic { started, changed, failed };

struct Payload {
  Topic topic;
  int rank;
  pid_t pid;
  int terminal_error;
  int code;
  int status;
  std::array<char, 1024> text;
};

// A rank's standard output, standard error and last words.
constexpr std::size_t kDescriptorCount = 3;
using Descriptors = std::array<int, kDescriptorCount>;

struct Packet {
  Payload payload{};
  iovec part{&payload, sizeof payload};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(Descriptors))] = {};
  msghdr header{};

  Packet() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
  }
  Packet(const Packet&) = delete;
  Packet& operator=(const Packet&) = delete;

  void attach(const Descriptors& descriptors) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof descriptors);
    std::memcpy(CMSG_DATA(item), &descriptors, sizeof descriptors);
  }

  // Closes a partial set of descriptors: the kernel passes only as many as this process's limit
  // allows.
  static void close_all(const cmsghdr& item) {
    for (std::size_t at = CMSG_LEN(0); at + sizeof(int) <= item.cmsg_len; at += sizeof(int)) {
      int fd = -1;
      std::memcpy(&fd, reinterpret_cast<const char*>(&item) + at, sizeof fd);
      ::close(fd);
    }
  }

  StartedRank started() {
    const cmsghdr* item = CMSG_FIRSTHDR(&header);
    if (item == nullptr || item->cmsg_len != CMSG_LEN(sizeof(Descriptors))) {
      if (item != nullptr) close_all(*item);
      throw BackendError(fmt::format("cannot take over the output of rank {} (pid {}): {}",
                                     payload.rank, payload.pid, reason_of(EMFILE)));
    }
    Descriptors descriptors;
    std::memcpy(&descriptors, CMSG_DATA(item), sizeof descriptors);
    return {.rank = payload.rank,
            .pid = payload.pid,
            .terminal_error = payload.terminal_error,
            .output = UniqueFd(descriptors[0]),
            .error_output = UniqueFd(descriptors[1]),
            .last_words = UniqueFd(descriptors[2])};
  }
};

template <class Call>
ssize_t repeat(const Call& call) {
  ssize_t count = 0;
  while ((count = call()) < 0 && errno == EINTR) {
  }
  return count;
}

}  // namespace

void send_to_launcher(int socket, const KeeperMessage& message) {
  Packet packet;
  Payload& payload = packet.payload;
  if (const auto* started = std::get_if<StartedRank>(&message)) {
    payload.topic = Topic::started;
    payload.rank = started->rank;
    payload.pid = started->pid;
    payload.terminal_error = started->terminal_error;
    packet.attach({started->output.get(), started->error_output.get(), started->last_words.get()});
  } else if (const auto* changed = std::get_if<RankChange>(&message)) {
    payload.topic = Topic::changed;
    payload.rank = changed->rank;
    payload.code = changed->code;
    payload.status = changed->status;
  } else {
    payload.topic = Topic::failed;
    const std::string& what = std::get<StartFailed>(message).what;
    what.copy(payload.text.data(), payload.text.size() - 1);
  }
  repeat([&] { return ::sendmsg(socket, &packet.header, MSG_NOSIGNAL); });
}

std::optional<KeeperMessage> receive_from_keeper(int socket) {
  Packet packet;
  packet.header.msg_control = packet.control;
  packet.header.msg_controllen = sizeof packet.control;
  const ssize_t count =
      repeat([&] { return ::recvmsg(socket, &packet.header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC); });
  if (count < 0 && errno == EAGAIN) return std::nullopt;
  if (count != sizeof(Payload)) throw ConnectionClosed("the keeper of the ranks is gone");
  const Payload& payload = packet.payload;
  if (payload.topic == Topic::started) return packet.started();
  if (payload.topic == Topic::failed) return StartFailed{payload.text.data()};
  return RankChange{.rank = payload.rank, .code = payload.code, .status = payload.status};
}

void send_to_keeper(int socket, std::chrono::milliseconds grace) {
  const auto count = grace.count();
  repeat([&] { return ::send(socket, &count, sizeof count, MSG_NOSIGNAL | MSG_DONTWAIT); });
}

std::optional<std::chrono::milliseconds> receive_from_launcher(int socket) {
  std::chrono::milliseconds::rep count = 0;
  if (repeat([&] { return ::recv(socket, &count, sizeof count, 0); }) != sizeof count) {
    return std::nullopt;
  }
  return std::chrono::milliseconds(count);
}

}  // namespace lockstep
