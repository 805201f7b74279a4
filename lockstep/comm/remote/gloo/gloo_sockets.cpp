// SPDX-License-Identifier: BSD-3-Clause
// Gives Gloo the addresses of stand-ins, finds the stand-in sockets in /proc, and replaces them
// with real connections.
#include "lockstep/comm/remote/gloo/gloo_sockets.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/system_error.h"

namespace lockstep::gloo {
namespace {

// 127.(1 + connection).(rank / 256).(rank % 256): all of 127.0.0.0/8 is this machine.
constexpr std::uint32_t kLoopback = 127U << 24;

// Names a stand-in by connection and rank.
using Owner = std::pair<std::size_t, std::size_t>;

std::optional<Owner> owner_of(int socket, in_port_t port) {
  sockaddr_in peer{};
  socklen_t length = sizeof peer;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return std::nullopt;
  const std::uint32_t host = ntohl(peer.sin_addr.s_addr);
  if (peer.sin_family != AF_INET || peer.sin_port != port || host >> 24 != 127) {
    return std::nullopt;
  }
  return Owner{((host >> 16) & 0xff) - 1, host & 0xffff};
}

// This process's descriptors, and what each of them refers to.
std::map<int, std::string> descriptors() {
  std::map<int, std::string> descriptors;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const auto target = std::filesystem::read_symlink(entry.path(), ignored);
    descriptors[std::stoi(entry.path().filename())] = target;
  }
  return descriptors;
}

// The epoll that watches a socket, and how.
struct Watch {
  int epoll = -1;
  epoll_event event{};
};

// Reads what the kernel shows about an epoll's sockets, by their inode: "tfd: 7 events: 19 data:
// 55d0c8 pos:0 ino:eb70 sdev:9", all but the first number in hexadecimal.
void read_watches(int epoll, std::map<ino_t, Watch>& watches) {
  std::ifstream lines(fmt::format("/proc/self/fdinfo/{}", epoll));
  for (std::string line; std::getline(lines, line);) {
    unsigned events = 0;
    unsigned long long data = 0;
    unsigned long long inode = 0;
    if (std::sscanf(line.c_str(), "tfd: %*d events: %x data: %llx pos:%*s ino:%llx", &events, &data,
                    &inode) == 3) {
      watches[inode] = {epoll, {.events = events, .data = {.u64 = data}}};
    }
  }
}

std::map<ino_t, Watch> watches_of(const std::map<int, std::string>& descriptors) {
  std::map<ino_t, Watch> watches;
  for (const auto& [fd, target] : descriptors) {
    if (target == "anon_inode:[eventpoll]") read_watches(fd, watches);
  }
  return watches;
}

void check(int result, const char* what) {
  if (result >= 0) return;
  throw BackendError(fmt::format("cannot give Gloo a connection ({}): {}", what, reason_of(errno)));
}

// Gloo's key "0/2" holds what rank 2 publishes about its connection 0: addresses and more, in a
// form that depends on Gloo's version. "0/rank_2" holds that rank's host name. All ranks publish
// the same except for their addresses, so this rank's own values stand for all.
class GlooStore final : public c10d::Store {
 public:
  using Bytes = std::vector<std::uint8_t>;

  using Values = std::map<std::string, Bytes>;

  GlooStore(StandIns stand_ins, std::shared_ptr<Values> values)
      : stand_ins_(stand_ins), values_(std::move(values)) {}

  // libtorch 2.6 and later call this.
  virtual c10::intrusive_ptr<c10d::Store> clone() {
    return c10::make_intrusive<GlooStore>(stand_ins_, values_);
  }

  void set(const std::string& key, const Bytes& value) override {
    (*values_)[kind_of(key)] = value;
  }

  Bytes get(const std::string& key) override {
    const auto found = values_->find(kind_of(key));
    if (found == values_->end()) return not_needed<Bytes>();
    const int rank = std::stoi(key.substr(digits_of_rank(key)));
    return moved(found->second, stand_ins_.address(std::stoi(key), rank));
  }

  void wait(const std::vector<std::string>&) override {}
  void wait(const std::vector<std::string>&, const std::chrono::milliseconds&) override {}

  bool check(const std::vector<std::string>&) override { return true; }
  std::int64_t add(const std::string&, std::int64_t) override { return not_needed<std::int64_t>(); }
  bool deleteKey(const std::string&) override { return not_needed<bool>(); }
  std::int64_t getNumKeys() override { return not_needed<std::int64_t>(); }
  Bytes compareSet(const std::string&, const Bytes&, const Bytes&) override {
    return not_needed<Bytes>();
  }

 private:
  template <class Result>
  Result not_needed() const {
    throw BackendError(
        "Gloo asks its store for more than addresses: Lockstep does not know this version of it; "
        "use a libtorch that README names, or another backend");
  }

  static std::size_t digits_of_rank(const std::string& key) {
    return key.find_last_not_of("0123456789") + 1;
  }
  static std::string kind_of(const std::string& key) { return key.substr(0, digits_of_rank(key)); }

  // Replaces this rank's own address, with any port, by the given address.
  static Bytes moved(Bytes value, const sockaddr_in& address) {
    in_addr own{};
    ::inet_pton(AF_INET, kGlooHost, &own);
    sockaddr_in here{};
    for (std::size_t at = 0; at + sizeof here <= value.size(); ++at) {
      std::memcpy(&here, &value[at], sizeof here);
      if (here.sin_family != AF_INET || here.sin_addr.s_addr != own.s_addr) continue;
      std::memcpy(&value[at], &address, sizeof address);
    }
    return value;
  }

  const StandIns stand_ins_;
  const std::shared_ptr<Values> values_;
};

}  // namespace

c10::intrusive_ptr<c10d::Store> make_store(StandIns stand_ins) {
  return c10::make_intrusive<GlooStore>(stand_ins, std::make_shared<GlooStore::Values>());
}

GlooSockets::GlooSockets() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  check(listener_.get(), "socket");
  // No process needs to connect from elsewhere. Before Linux 5.7 only root may set this.
  ::setsockopt(listener_.get(), SOL_SOCKET, SO_BINDTODEVICE, "lo", sizeof "lo");
  sockaddr_in any{};
  any.sin_family = AF_INET;
  auto* address = reinterpret_cast<sockaddr*>(&any);
  socklen_t length = sizeof any;
  check(::bind(listener_.get(), address, length), "bind");
  check(::listen(listener_.get(), SOMAXCONN), "listen");
  check(::getsockname(listener_.get(), address, &length), "getsockname");
  stand_ins_.port = any.sin_port;
}

sockaddr_in StandIns::address(int connection, int rank) const {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = port;
  address.sin_addr.s_addr = htonl(kLoopback | static_cast<std::uint32_t>(1 + connection) << 16 |
                                  static_cast<std::uint32_t>(rank));
  return address;
}

void GlooSockets::replace(remote::Connections connections) {
  const auto all = descriptors();
  const auto watches = watches_of(all);
  for (const auto& [fd, target] : all) {
    if (!target.starts_with("socket:")) continue;
    const auto owner = owner_of(fd, stand_ins_.port);
    if (!owner || owner->first >= connections.size()) continue;
    auto& of_ranks = connections[owner->first];
    if (owner->second >= of_ranks.size()) continue;
    ForkSafeFd& connection = of_ranks[owner->second];
    struct stat status {};
    check(::fstat(fd, &status), "fstat");
    const auto watch = watches.find(status.st_ino);
    if (!connection || watch == watches.end()) continue;
    auto [epoll, event] = watch->second;
    // Otherwise the epoll would keep watching the old socket, which a forked child may still hold.
    check(::epoll_ctl(epoll, EPOLL_CTL_DEL, fd, nullptr), "epoll_ctl");
    check(::dup3(connection.get(), fd, O_CLOEXEC), "dup3");
    check(::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
    connection.reset();
  }
  for (const auto& of_ranks : connections) {
    for (const ForkSafeFd& left : of_ranks) {
      if (!left) continue;
      throw BackendError(std::filesystem::exists("/proc/self/fd")
                             ? "this kernel does not show Gloo's connections in /proc/self/fd and "
                               "/proc/self/fdinfo; use the backend mpi here"
                             : "Gloo's connections cannot be seen in /proc/self/fd; mount /proc");
    }
  }
}

}  // namespace lockstep::gloo
