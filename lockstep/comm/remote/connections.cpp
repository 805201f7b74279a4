// SPDX-License-Identifier: BSD-3-Clause
// Connects this rank to all lower ranks, and lets all higher ranks connect to it.
#include "lockstep/comm/remote/connections.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <list>
#include <optional>
#include <span>
#include <sstream>

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "lockstep/core/error.h"
#include "lockstep/core/net/authentication.h"
#include "lockstep/core/net/tcp_socket.h"

namespace lockstep::remote {
namespace {

using namespace std::chrono_literals;

// How long a rank waits at first before it checks again whether the others are alive.
constexpr std::chrono::milliseconds kFirstPollInterval(200);
// The longest attempt. One attempt takes several round trips to the other rank.
constexpr std::chrono::milliseconds kLongestAttempt(2000);
constexpr int kRetryPauseMs = 20;

// The first message of a connecting rank, in this machine's byte order, like the peer monitors'
// messages.
struct Hello {
  std::int32_t rank;
  std::int32_t connection;
};

// A connection whose peer has proved that it knows the key, but has not yet sent its rank.
struct Arrival {
  ForkSafeFd socket;
  std::array<std::byte, sizeof(Hello)> received{};
  std::size_t count = 0;
};

// Where a rank listens, and the token for connecting to it.
struct Door {
  std::string host;
  std::uint16_t port = 0;
  std::string token;
};

// Turns keep-alive off. Transports have timeouts of their own, and a stopped rank must not look
// like a lost machine, which the peer monitors report.
void disable_keep_alive(int socket) {
  const int off = 0;
  ::setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &off, sizeof off);
  ::setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &off, sizeof off);
}

// Connects to all lower ranks, and accepts all higher ones.
class Connecting {
 public:
  Connecting(const Membership& membership, Joining& joining, const std::string& host, int count,
             const Deadline& deadline)
      : membership_(membership),
        joining_(joining),
        deadline_(deadline),
        token_(make_token()),
        own_rank_(static_cast<std::size_t>(membership.rank)),
        connections_(static_cast<std::size_t>(count)) {
    UniqueFd listener = listen_tcp(host, 0);
    const auto [number, port] = local_address(listener.get());
    acceptor_.emplace(std::move(listener), make_key(token_, membership.secret),
                      count * membership.world_size);
    for (auto& of_ranks : connections_) of_ranks.resize(ranks());
    membership.store->set(key_of(own_rank_), fmt::format("{} {} {}", number, port, token_));
  }

  Connections run() {
    for (std::size_t rank = 0; rank < own_rank_; ++rank) enter(rank);
    while (!missing().empty()) {
      check(missing());
      accept_arrivals();
    }
    return std::move(connections_);
  }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(membership_.world_size); }
  static std::string key_of(std::size_t rank) { return fmt::format("door/{}", rank); }
  // The deadline of one attempt. An attempt that fails is repeated, and gets more time if it was
  // too short.
  Deadline next_attempt() const {
    return Deadline::after(std::min(deadline_.remaining(), attempt_));
  }
  void take_longer() { attempt_ = std::min(2 * attempt_, kLongestAttempt); }

  Door door_of(std::size_t rank) {
    while (true) {
      check({rank});
      try {
        std::istringstream stream(membership_.store->get(key_of(rank), next_attempt()));
        Door door;
        if (stream >> door.host >> door.port >> door.token) return door;
        throw BackendError(fmt::format("rank {} left no address", rank));
      } catch (const TimeoutError&) {  // no entry yet, or the store is slow to reach
        take_longer();
      }
    }
  }

  void enter(std::size_t rank) {
    const Door door = door_of(rank);
    const Key key = make_key(door.token, membership_.secret);
    for (std::size_t connection = 0; connection < connections_.size(); ++connection) {
      ForkSafeFd& socket = connections_[connection][rank];
      while (!socket) {
        check({rank});
        try {
          const Deadline deadline = next_attempt();
          UniqueFd entered = enter_at_once(door.host, door.port, key, deadline);
          const Hello hello{membership_.rank, static_cast<std::int32_t>(connection)};
          send_all(entered.get(), std::as_bytes(std::span(&hello, 1)), deadline);
          disable_keep_alive(entered.get());
          socket = ForkSafeFd(std::move(entered));
        } catch (const TimeoutError& error) {
          last_failure_ = short_message(error);
          take_longer();
        } catch (const ConnectionClosed& error) {
          last_failure_ = short_message(error);
          ::poll(nullptr, 0, kRetryPauseMs);
        }
      }
    }
  }

  // Waits briefly for connections and for their first messages.
  void accept_arrivals() {
    std::vector<pollfd> entries{{acceptor_->descriptor(), POLLIN, 0}};
    for (const auto& arrival : arrivals_) entries.push_back({arrival.socket.get(), POLLIN, 0});
    ::poll(entries.data(), entries.size(),
           static_cast<int>(std::min(deadline_.remaining(), kFirstPollInterval).count()));
    for (auto& arrival : arrivals_) receive_hello(arrival);
    std::erase_if(arrivals_, [](const Arrival& arrival) { return !arrival.socket; });
    for (auto& socket : acceptor_->serve()) arrivals_.push_back({std::move(socket)});
  }

  void receive_hello(Arrival& arrival) {
    std::byte* free_space = arrival.received.data() + arrival.count;
    const std::size_t left = arrival.received.size() - arrival.count;
    const ssize_t count = ::recv(arrival.socket.get(), free_space, left, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) return arrival.socket.reset();
    arrival.count += static_cast<std::size_t>(count);
    if (arrival.count < arrival.received.size()) return;
    Hello hello{};
    std::memcpy(&hello, arrival.received.data(), sizeof hello);
    ForkSafeFd socket = std::move(arrival.socket);
    const auto rank = static_cast<std::size_t>(hello.rank);
    const auto connection = static_cast<std::size_t>(hello.connection);
    if (rank <= own_rank_ || rank >= ranks() || connection >= connections_.size()) return;
    disable_keep_alive(socket.get());
    connections_[connection][rank] = std::move(socket);
  }

  // The higher ranks that have not connected.
  std::vector<std::size_t> missing() const {
    std::vector<std::size_t> missing;
    for (std::size_t rank = own_rank_ + 1; rank < ranks(); ++rank) {
      const auto there = [&](const std::vector<ForkSafeFd>& sockets) {
        return bool(sockets[rank]);
      };
      if (!std::ranges::all_of(connections_, there)) missing.push_back(rank);
    }
    return missing;
  }

  // Throws if another rank has ended, or if the deadline has passed.
  void check(const std::vector<std::size_t>& waited_for) {
    joining_.check();
    if (!deadline_.passed()) return;
    throw joining_.did_not_connect(
        {waited_for.begin(), waited_for.end()}, deadline_,
        "this rank" + (last_failure_.empty() ? "" : " (" + last_failure_ + ")"));
  }

  const Membership& membership_;
  Joining& joining_;
  const Deadline& deadline_;
  const std::string token_;
  const std::size_t own_rank_;
  std::chrono::milliseconds attempt_ = kFirstPollInterval;
  std::optional<AuthenticatingAcceptor> acceptor_;
  std::list<Arrival> arrivals_;
  Connections connections_;
  std::string last_failure_;
};

}  // namespace

Connections connect_ranks(const Membership& membership, Joining& joining, const std::string& host,
                          int count, const Deadline& deadline) {
  return Connecting(membership, joining, host, count, deadline).run();
}

}  // namespace lockstep::remote
