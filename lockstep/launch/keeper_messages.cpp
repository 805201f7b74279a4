// SPDX-License-Identifier: BSD-3-Clause
// Packs messages, one a packet, and passes descriptors with them.
#include "lockstep/launch/keeper_messages.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/core/net/stream_socket.h"
#include "lockstep/core/packing.h"
#include "lockstep/core/system_error.h"

namespace lockstep {
namespace {

enum class Topic { started, changed, failed, start, end };

// The largest packet has a text of this size.
constexpr std::size_t kLongestReason = 1024;
constexpr std::size_t kLargestPacket = kLongestReason + 64;

// A rank's standard output, standard error and last words.
using Descriptors = std::array<int, 3>;

struct Encoder {
  std::string operator()(const StartedRank& started) const {
    return pack(Topic::started, started.rank, started.pid, started.terminal_error);
  }
  std::string operator()(const RankChange& change) const {
    return pack(Topic::changed, change.rank, change.code, change.status);
  }
  std::string operator()(const StartFailed& failed) const {
    return pack(Topic::failed, failed.rank,
                std::string_view(failed.what).substr(0, kLongestReason));
  }
  std::string operator()(const PlacedRank& start) const {
    return pack(Topic::start, start.rank, start.place, start.member);
  }
  std::string operator()(const EndRanks& end) const { return pack(Topic::end, end.grace.count()); }
};

// The header of a packet, with room for descriptors.
struct Header {
  iovec part{};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(Descriptors))] = {};
  msghdr message{};

  explicit Header(std::span<char> bytes) : part{bytes.data(), bytes.size()} {
    message.msg_iov = &part;
    message.msg_iovlen = 1;
  }
  Header(const Header&) = delete;
  Header& operator=(const Header&) = delete;

  void make_room_for_descriptors() {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
  }

  void attach(const Descriptors& descriptors) {
    make_room_for_descriptors();
    cmsghdr* item = CMSG_FIRSTHDR(&message);
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

  void move_descriptors_to(StartedRank& started) {
    const cmsghdr* item = CMSG_FIRSTHDR(&message);
    if (item == nullptr || item->cmsg_len != CMSG_LEN(sizeof(Descriptors))) {
      if (item != nullptr) close_all(*item);
      throw BackendError(fmt::format("cannot take over the output of rank {} (pid {}): {}",
                                     started.rank, started.pid, reason_of(EMFILE)));
    }
    Descriptors descriptors;
    std::memcpy(&descriptors, CMSG_DATA(item), sizeof descriptors);
    started.output.reset(descriptors[0]);
    started.error_output.reset(descriptors[1]);
    started.last_words.reset(descriptors[2]);
  }
};

KeeperMessage decode(std::string_view bytes, Header& header) {
  Unpacking packed(bytes);
  switch (packed.next<Topic>()) {
    case Topic::started: {
      StartedRank started;
      packed.read_all(started.rank, started.pid, started.terminal_error);
      header.move_descriptors_to(started);
      return started;
    }
    case Topic::changed: {
      RankChange change;
      packed.read_all(change.rank, change.code, change.status);
      return change;
    }
    case Topic::failed: {
      StartFailed failed;
      packed.read_all(failed.rank, failed.what);
      return failed;
    }
    default:
      break;
  }
  throw BackendError("a message of the ranks' keeper has an unknown topic");
}

template <class Call>
ssize_t repeat(const Call& call) {
  ssize_t count = 0;
  while ((count = call()) < 0 && errno == EINTR) {
  }
  return count;
}

}  // namespace

void send_to_launcher(int socket, const KeeperMessage& message) {
  std::string bytes = std::visit(Encoder(), message);
  Header header(bytes);
  if (const auto* started = std::get_if<StartedRank>(&message)) {
    header.attach({started->output.get(), started->error_output.get(), started->last_words.get()});
  }
  repeat([&] { return ::sendmsg(socket, &header.message, MSG_NOSIGNAL); });
}

std::optional<KeeperMessage> receive_from_keeper(int socket) {
  std::array<char, kLargestPacket> bytes;
  Header header(bytes);
  header.make_room_for_descriptors();
  const ssize_t count =
      repeat([&] { return ::recvmsg(socket, &header.message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC); });
  if (count < 0 && errno == EAGAIN) return std::nullopt;
  if (count <= 0) throw ConnectionClosed("the keeper of the ranks is gone");
  return decode({bytes.data(), static_cast<std::size_t>(count)}, header);
}

void send_to_keeper(int socket, const LauncherMessage& message) {
  const std::string bytes = std::visit(Encoder(), message);
  repeat([&] { return ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT); });
}

std::optional<LauncherMessage> receive_from_launcher(int socket) {
  std::array<char, kLargestPacket> bytes;
  const ssize_t count = repeat([&] { return ::recv(socket, bytes.data(), bytes.size(), 0); });
  if (count <= 0) return std::nullopt;
  Unpacking packed({bytes.data(), static_cast<std::size_t>(count)});
  if (packed.next<Topic>() == Topic::end) {
    return EndRanks{std::chrono::milliseconds(packed.next<std::chrono::milliseconds::rep>())};
  }
  PlacedRank start;
  packed.read_all(start.rank, start.place, start.member);
  return start;
}

}  // namespace lockstep
