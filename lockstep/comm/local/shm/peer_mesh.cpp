// SPDX-License-Identifier: BSD-3-Clause
// Connects the ranks of a machine over Unix sockets, and notices when one of them ends.
#include "lockstep/comm/local/shm/peer_mesh.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "lockstep/comm/local/control_block.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/authentication.h"
#include "lockstep/core/net/unix_socket.h"
#include "lockstep/rendezvous/watched_wait.h"

namespace lockstep::shm {
namespace {

constexpr std::byte kDescriptor{0};  // the byte that send_fd sends
constexpr std::chrono::milliseconds kPollInterval(100);
constexpr std::chrono::seconds kEndTimeout(2);
// How long a connecting process may take to send its first message.
constexpr std::chrono::seconds kHelloTimeout(5);

// The first message of a connecting rank. The token shows that it read the same store. The size of
// the block shows that it was built with the same layout of shared memory.
struct Hello {
  std::array<char, 32> token{};
  std::int32_t rank = 0;
  std::int32_t world_size = 0;
  std::uint64_t block_bytes = 0;
};

// A pidfd of the process; -1 if there is none.
int pidfd_of(pid_t pid) {
  return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0));
}

std::string key_of(const Membership& membership, int rank, std::int64_t group) {
  return fmt::format("shm/{}/{}/{}", membership.generation, group, rank);
}

// Receives the first message of a connecting process. False if none arrives: the process is not a
// rank, or it died.
bool receive_hello(int socket, Hello& hello, const Deadline& deadline) try {
  const auto patience = std::min<std::chrono::milliseconds>(kHelloTimeout, deadline.remaining());
  receive_all(socket, std::as_writable_bytes(std::span(&hello, 1)), Deadline::after(patience));
  return true;
} catch (const ConnectionClosed&) {
  return false;
} catch (const TimeoutError&) {
  return false;
}

}  // namespace

PeerMesh::PeerMesh(const Membership& membership, const Deadline& deadline)
    : rank_(membership.rank), owner_(::getpid()), peers_(membership.world_size) {
  peers_[rank_].pid = owner_;
  try {
    join(membership, deadline);
  } catch (...) {
    tell_all(kFarewell);
    throw;
  }
}

void PeerMesh::join(const Membership& membership, const Deadline& deadline) {
  const std::string token = make_token();
  const std::string address = "@lockstep-" + make_token();
  const UniqueFd listener = listen_unix(address);
  // A job may make several groups from one store, in the same order on every rank.
  const auto group =
      membership.store->add(fmt::format("shm/{}/groups/{}", membership.generation, rank_), 1);
  membership.store->set(key_of(membership, rank_, group), address + " " + token);
  for (int peer = 0; peer < rank_; ++peer) {
    connect(peer, membership, key_of(membership, peer, group), deadline);
  }
  accept_higher(listener.get(), membership, token, deadline);
  for (PeerConnection& peer : peers_) {
    if (peer.socket) peer.process = UniqueFd(pidfd_of(peer.pid));
  }
}

void PeerMesh::connect(int peer, const Membership& membership, const std::string& key,
                       const Deadline& deadline) {
  std::string entry;
  try {
    entry = watched_get(membership, key, deadline);
  } catch (const StoreSilent&) {
    throw;
  } catch (const TimeoutError&) {
    throw did_not_join({peer}, deadline);
  }
  const auto space = entry.find(' ');
  Hello hello;
  if (space == std::string::npos || entry.size() - space - 1 != hello.token.size()) {
    throw BackendError(fmt::format("rank {} left no address", peer));
  }
  std::memcpy(hello.token.data(), entry.data() + space + 1, hello.token.size());
  hello.rank = rank_;
  hello.world_size = size();
  hello.block_bytes = local::ControlBlock::bytes(size());
  try {
    peers_[peer].socket = watched_wait(membership, deadline, kFirstWait, [&](const Deadline& look) {
      return connect_unix(entry.substr(0, space), look);
    });
    send_all(peers_[peer].socket.get(), std::as_bytes(std::span(&hello, 1)), deadline);
  } catch (const TimeoutError&) {
    throw did_not_join({peer}, deadline);
  } catch (const BackendError& error) {
    // The kernel closes a dying process's sockets before the process has ended.
    for (const Deadline soon = Deadline::after(kEndTimeout); !soon.passed(); ::usleep(1000)) {
      check_all_live(membership);
    }
    throw BackendError(
        fmt::format("rank {} cannot be reached ({}): it has ended, or it runs on another machine "
                    "or in another network namespace, which shared memory cannot join",
                    peer, short_message(error)));
  }
  peers_[peer].pid = peer_of(peers_[peer].socket.get()).pid;
}

void PeerMesh::accept_higher(int listener, const Membership& membership, const std::string& token,
                             const Deadline& deadline) {
  for (int missing = size() - rank_ - 1; missing > 0;) {
    UniqueFd socket;
    Hello hello;
    try {
      socket = watched_wait(membership, deadline, kFirstWait, [&](const Deadline& look) {
        return accept_connection(listener, look);
      });
      // Another user may connect and then say nothing, so check the user first.
      if (peer_of(socket.get()).uid != ::geteuid()) continue;
      if (!receive_hello(socket.get(), hello, deadline)) continue;
    } catch (const ConnectionClosed&) {
      continue;
    } catch (const TimeoutError&) {
      std::vector<int> absent;
      for (int peer = rank_ + 1; peer < size(); ++peer) {
        if (!peers_[peer].socket) absent.push_back(peer);
      }
      throw did_not_join(absent, deadline);
    }
    const Peer peer = peer_of(socket.get());
    const bool known = std::memcmp(hello.token.data(), token.data(), token.size()) == 0;
    if (!known || hello.rank <= rank_ || hello.rank >= size() || peers_[hello.rank].socket) {
      continue;
    }
    if (hello.world_size != size() || hello.block_bytes != local::ControlBlock::bytes(size())) {
      throw UsageError(
          fmt::format("rank {} (pid {}) says that the world size is {}, or runs "
                      "another version of Lockstep; all ranks must agree",
                      hello.rank, peer.pid, hello.world_size));
    }
    peers_[hello.rank].socket = std::move(socket);
    peers_[hello.rank].pid = peer.pid;
    --missing;
  }
}

PeerMesh::~PeerMesh() {
  tell_all(kFarewell);
}

void PeerMesh::tell_all(std::byte word) const {
  if (::getpid() != owner_) return;
  for (const auto& peer : peers_) {
    if (peer.socket) ::send(peer.socket.get(), &word, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

std::vector<UniqueFd> PeerMesh::exchange(int fd, const Deadline& deadline) {
  std::vector<UniqueFd> received(peers_.size());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    try {
      send_fd(peers_[peer].socket.get(), fd, deadline);
    } catch (const ConnectionClosed&) {
      // Reported below, once the other peers have received their descriptors.
    }
  }
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    received[peer] = receive_from(peer, deadline);
  }
  return received;
}

// The connection of a rank that died may stay open (see the header), so a long wait is interrupted
// to check all ranks.
UniqueFd PeerMesh::receive_from(int peer, const Deadline& deadline) const {
  while (true) {
    const bool last_poll = deadline.remaining() <= kPollInterval;
    try {
      return receive_fd(peers_[peer].socket.get(),
                        last_poll ? deadline : Deadline::after(kPollInterval));
    } catch (const ConnectionClosed&) {
      throw_gone(cause_of_end(peer));
    } catch (const TimeoutError&) {
      const int cause = cause_of_end(peer);
      if (cause != peer || state(peer) == State::lost) throw_gone(cause);
      if (!last_poll) continue;
      throw TimeoutError(fmt::format("rank {} (pid {}) did not answer within {:.1f} s", peer,
                                     pid(peer), deadline.span().count() / 1000.0),
                         peer);
    }
  }
}

void PeerMesh::throw_gone(int rank) const {
  throw PeerLost(rank, fmt::format("rank {} (pid {}) died or left while descriptors were exchanged",
                                   rank, pid(rank)));
}

// Whether the rank's descriptor has arrived, even if the rank has gone since.
bool PeerMesh::descriptor_waits(int rank) const {
  std::byte next{};
  const ssize_t count = ::recv(peers_[rank].socket.get(), &next, 1, MSG_PEEK | MSG_DONTWAIT);
  return count == 1 && next == kDescriptor;
}

// A rank whose connection ended may have left because another rank died or failed.
int PeerMesh::cause_of_end(int peer) const {
  for (int other = 0; other < size(); ++other) {
    if (other == rank_ || other == peer || descriptor_waits(other)) continue;
    const State found = state(other);
    if (found == State::lost || found == State::failed) return other;
  }
  return peer;
}

PeerMesh::State PeerMesh::state(int rank) const {
  // Checks the process first: what it sent before it died is then in the socket.
  std::array<pollfd, 2> entries{pollfd{peers_[rank].process.get(), POLLIN, 0},
                                pollfd{peers_[rank].socket.get(), POLLIN | POLLRDHUP, 0}};
  if (::poll(entries.data(), entries.size(), 0) <= 0) return State::here;
  const bool died = entries[0].revents != 0;
  const bool closed = (entries[1].revents & (POLLHUP | POLLRDHUP)) != 0;
  std::byte next{};
  const ssize_t count = ::recv(entries[1].fd, &next, 1, MSG_PEEK | MSG_DONTWAIT);
  if (count == 1 && next == kFarewell) return State::left;
  if (count == 1 && next == kFarewellFailing) return State::failed;
  // A descriptor may wait to be fetched, and the connection may be closed behind it.
  if (count == 1 && next == kDescriptor && !died && !closed) return State::here;
  return State::lost;
}

}  // namespace lockstep::shm
