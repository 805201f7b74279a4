// SPDX-License-Identifier: BSD-3-Clause
// Connects a rank to the monitor's server, and processes what the server sends.
#include "lockstep/comm/remote/peer_monitor.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "lockstep/comm/core/call.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/authentication.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/rendezvous/watched_wait.h"

namespace lockstep::remote {
namespace {

using namespace std::chrono_literals;
using Kind = MonitorMessage::Kind;

// Longer than the monitor's server waits for the last ranks to leave.
constexpr auto kLeaving = 400ms;
// How long a rank that waits for news sleeps between checks of its deadline.
constexpr auto kPollInterval = 50ms;

}  // namespace

PeerMonitor::PeerMonitor(const Membership& membership, std::string_view backend,
                         const Deadline& deadline)
    : backend_(backend), rank_(membership.rank), size_(membership.world_size) {
  try {
    join(membership, deadline);
  } catch (const StoreLost&) {
    throw;
  } catch (const Error&) {
    rethrow_within(joining());
  }
}

ErrorContext PeerMonitor::joining() const {
  return {.component = backend_, .operation = "joining", .rank = rank_, .size = size_};
}

void PeerMonitor::join(const Membership& membership, const Deadline& deadline) {
  Store& store = *membership.store;
  // A job may make several groups from one store, in the same order on every rank.
  const std::string job = fmt::format("{}/{}", backend_, membership.generation);
  const auto group = store.add(fmt::format("{}/groups/{}", job, rank_), 1);
  store_prefix_ = fmt::format("{}/{}", job, group);
  const std::string key = store_prefix_ + "/server";
  if (rank_ == 0) {
    const std::string token = make_token();
    UniqueFd listener =
        listen_tcp(membership.address.empty() ? "127.0.0.1" : membership.address, 0);
    const auto [host, port] = local_address(listener.get());
    std::vector<ProcessIdentity> processes;
    for (int rank = 0; rank < size_; ++rank) processes.push_back(membership.process(rank));
    server_ = std::make_unique<PeerMonitorServer>(
        std::move(listener), make_key(token, membership.secret), std::move(processes), deadline);
    store.set(key, fmt::format("{} {} {} {}", host, port, token, ::getpid()));
  }
  std::string entry;
  try {
    entry = watched_get(membership, key, deadline);
  } catch (const StoreSilent&) {
    throw;
  } catch (const TimeoutError&) {
    throw did_not_join({0}, deadline);
  }
  std::istringstream stream(entry);
  std::string host;
  std::uint16_t port = 0;
  std::string token;
  if (!(stream >> host >> port >> token >> pid_of_rank_0_)) {
    throw BackendError("rank 0 left no address");
  }
  UniqueFd socket;
  try {
    socket = connect_to_monitor(host, port, make_key(token, membership.secret), deadline);
  } catch (const PeerLost&) {
    // Rank 0 may have given up because another rank died.
    check_all_live(membership);
    throw;
  }
  if (is_within_machine(socket.get())) rank_0_ = ProcessWatch(pid_of_rank_0_);
  own_host_ = local_address(socket.get()).host;
  within_machine_ = host == "::1" || host.starts_with("127.");
  socket_ = ForkSafeFd(std::move(socket));
  send({.kind = Kind::hello, .rank = rank_, .number = static_cast<std::uint64_t>(::getpid())});
  wait_for_all(deadline);
}

// The monitor's server listened before its address was in the store, and goes on until all ranks
// have joined. A refused connection therefore means that the server is gone.
UniqueFd PeerMonitor::connect_to_monitor(const std::string& host, std::uint16_t port,
                                         const Key& key, const Deadline& deadline) const {
  while (true) {
    try {
      return enter_at_once(host, port, key, deadline);
    } catch (const ConnectionRefused& error) {
      throw PeerLost(0, fmt::format("{} no longer listens: it died, or gave up joining, unless a "
                                    "firewall is in the way ({})",
                                    name(0), short_message(error)));
    } catch (const TimeoutError&) {
      throw TimeoutError(
          fmt::format("rank 0 did not answer at {} port {} within {:.1f} s; it is stopped, has no "
                      "descriptor left (ulimit -n), or the network does not lead there",
                      host, port, deadline.span().count() / 1000.0));
    } catch (const HostUnreachable&) {
      if (deadline.passed()) throw;
    }
    ::poll(nullptr, 0, 50);
  }
}

void PeerMonitor::wait_for_all(const Deadline& deadline) {
  // The server's deadline may pass a little later than this rank's, and the server knows who is
  // missing.
  const Deadline patience = Deadline::after(deadline.remaining() + 1s);
  while (pids_.empty() && !absent_ && !lost_) {
    receive(patience);
    if (pids_.empty() && patience.passed()) absent_ = std::vector{0};
  }
  if (!pids_.empty()) return;
  if (lost_) throw PeerLost(*lost_, lost_while_joining());
  throw did_not_join(*absent_, deadline, refused_);
}

std::string PeerMonitor::name(int rank) const {
  const int pid = !pids_.empty() ? pids_[rank] : rank == 0 ? pid_of_rank_0_ : lost_pid_;
  return fmt::format("rank {} (pid {})", rank, pid);
}

std::string PeerMonitor::lost_while_joining() const {
  return name(*lost_) + (lost_by_death_ ? " died while the ranks connected"
                                        : ": its connection was lost while the ranks connected: it "
                                          "died, or the network failed");
}

void PeerMonitor::say_connected() {
  send({.kind = Kind::connected});
}

void PeerMonitor::wait_for_news() {
  receive(Deadline::after(kPollInterval));
  look();
}

void PeerMonitor::look() {
  while (take_arrived()) {
  }
}

bool PeerMonitor::receive(const Deadline& deadline) {
  if (!socket_) return false;
  pollfd entry{socket_.get(), POLLIN, 0};
  if (::poll(&entry, 1, static_cast<int>(deadline.remaining().count())) <= 0) return false;
  return take_arrived();
}

bool PeerMonitor::take_arrived() {
  if (!socket_) return false;
  std::array<std::byte, 4096> buffer;
  const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  try {
    if (count <= 0) throw ConnectionClosed("");
    reader_.add(std::span(buffer).first(static_cast<std::size_t>(count)));
    while (const auto message = reader_.next()) take(*message);
  } catch (const Error&) {
    socket_.reset();
    if (!absent_ && !left_.contains(0) && !lost_) {
      lost_ = 0;
      lost_by_death_ = rank_0_.has_ended(kDeathDelay);
    }
    return false;
  }
  return true;
}

void PeerMonitor::take(const MonitorMessage& message) {
  switch (message.kind) {
    case Kind::welcome:
      pids_ = as_numbers(message.text);
      if (static_cast<int>(pids_.size()) != size_) throw BackendError("not all ranks were named");
      return;
    case Kind::absent:
      absent_ = as_numbers(message.text);
      refused_ = message.text.substr(std::min(message.text.find(';'), message.text.size()));
      return;
    case Kind::all_connected:
      all_connected_ = true;
      return;
    case Kind::answer:
      answer_ = message;
      return;
    case Kind::aborted:
      if (!aborted_) {
        aborted_ = {message.rank, message.cause, message.lost_rank, message.culprit, message.text};
      }
      return;
    case Kind::lost:
      if (lost_) return;
      lost_ = message.rank;
      lost_by_death_ = message.number != 0;
      std::istringstream(message.text) >> lost_pid_;
      return;
    case Kind::left:
      left_.emplace(message.rank, Farewell{message.number, message.text, message.culprit,
                                           std::chrono::steady_clock::now()});
      return;
    case Kind::all_left:
      all_left_ = true;
      return;
    default:
      throw BackendError("a message that servers do not send");
  }
}

void PeerMonitor::send(const MonitorMessage& message) {
  if (!socket_) return;
  const std::string bytes = encode(message);
  try {
    send_all(socket_.get(), std::as_bytes(std::span(bytes)), Deadline::after(1s));
  } catch (const Error&) {
    // This rank notices the loss of the monitor's server when it next reads.
  }
}

void PeerMonitor::report_waiting(std::uint64_t number, const std::string& call) {
  send({.kind = Kind::waiting, .number = number, .text = call});
}

Absent PeerMonitor::absent_from(std::uint64_t number) {
  return ask({.kind = Kind::ask, .number = number}).value_or(Absent{{"", {0}}});
}

Absent PeerMonitor::absent(int rank) {
  return ask({.kind = Kind::ask, .rank = rank}).value_or(Absent{{"", {rank}}});
}

std::optional<Absent> PeerMonitor::ask(const MonitorMessage& question) {
  answer_.reset();
  send(question);
  const Deadline deadline = Deadline::after(1s);
  while (socket_ && !deadline.passed()) {
    receive(deadline);
    if (!answer_ || answer_->number != question.number || answer_->rank != question.rank) continue;
    Absent absent;
    std::istringstream lines(answer_->text);
    std::string ranks;
    for (std::string last_wait; std::getline(lines, last_wait) && std::getline(lines, ranks);) {
      absent[last_wait] = as_numbers(ranks);
    }
    return absent;
  }
  return std::nullopt;
}

void PeerMonitor::tell(AbortCause cause, int lost_rank, int culprit, const std::string& reason) {
  send({.kind = Kind::abort,
        .cause = cause,
        .lost_rank = lost_rank,
        .culprit = culprit,
        .text = reason});
}

void PeerMonitor::flush() {
  const Deadline deadline = Deadline::after(1s);
  while (!aborted_ && socket_ && !deadline.passed()) receive(deadline);
}

void PeerMonitor::say_farewell(std::uint64_t last_call, const std::string& reason, int culprit) {
  if (std::exchange(said_farewell_, true)) return;
  send({.kind = Kind::leaving, .culprit = culprit, .number = last_call, .text = reason});
}

void PeerMonitor::wait_for_farewells() {
  const Deadline deadline = Deadline::after(kLeaving);
  while (!all_left_ && socket_ && !deadline.passed()) receive(deadline);
}

}  // namespace lockstep::remote
