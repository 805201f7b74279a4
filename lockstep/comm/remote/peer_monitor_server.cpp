// SPDX-License-Identifier: BSD-3-Clause
// Welcomes the ranks of a group, and passes on losses, farewells and aborts.
#include "lockstep/comm/remote/peer_monitor_server.h"

#include <algorithm>
#include <cerrno>
#include <optional>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include "lockstep/comm/core/group_state.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/tcp_socket.h"

namespace lockstep::remote {
namespace {

using namespace std::chrono_literals;
using Kind = MonitorMessage::Kind;

// How long a peer that knows the key may take to send its rank.
constexpr auto kHelloTimeout = 5s;
// The most connections that may be open without having sent a rank, besides one for each rank.
constexpr std::size_t kMostArrivals = 256;
// How long the last ranks may take to leave after rank 0.
constexpr auto kLinger = 300ms;

}  // namespace

PeerMonitorServer::PeerMonitorServer(UniqueFd listener, const Key& key,
                                     std::vector<ProcessIdentity> processes,
                                     const Deadline& deadline)
    : acceptor_(std::move(listener), key, static_cast<int>(processes.size())),
      deadline_(deadline),
      processes_(std::move(processes)),
      members_(processes_.size()),
      thread_([this](int stop) { run(stop); }) {}

void PeerMonitorServer::run(int stop) {
  std::optional<Deadline> end;
  while (!all_gone() && !(end && end->passed())) {
    serve_once(stop, end ? end->remaining() : 100ms);
    eventfd_t stops = 0;
    if (!end && ::eventfd_read(stop, &stops) == 0) end = Deadline::after(kLinger);
    if (!welcomed_ && !refusal_) name_ended();
    if (!all_connected_ && !refusal_ && deadline_.passed()) name_absent();
    std::erase_if(arrivals_, [](const Arrival& arrival) {
      return !arrival.socket || Clock::now() - arrival.since > kHelloTimeout;
    });
  }
  // Closing a connection with unread input would make the kernel discard unsent output.
  for (auto& member : members_) {
    if (member.socket) ::shutdown(member.socket.get(), SHUT_WR);
  }
}

bool PeerMonitorServer::all_here() const {
  return std::ranges::all_of(members_, [](const Member& member) { return member.pid != 0; });
}

bool PeerMonitorServer::all_notified() const {
  if (welcomed_) return true;
  if (!refusal_) return false;
  if (deadline_.passed()) return true;
  for (std::size_t rank = 0; rank < members_.size(); ++rank) {
    if (members_[rank].pid == 0 && !processes_[rank].has_ended()) return false;
  }
  return true;
}

bool PeerMonitorServer::all_gone() const {
  return all_notified() &&
         std::ranges::none_of(members_, [](const Member& member) { return bool(member.socket); });
}

void PeerMonitorServer::serve_once(int stop, std::chrono::milliseconds at_most) {
  std::vector<pollfd> entries{{stop, POLLIN, 0}, {acceptor_.descriptor(), POLLIN, 0}};
  for (const auto& arrival : arrivals_) entries.push_back({arrival.socket.get(), POLLIN, 0});
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    const Member& member = members_[rank];
    if (!member.socket) continue;
    const short events = member.unsent.empty() ? POLLIN : POLLIN | POLLOUT;
    entries.push_back({member.socket.get(), events, 0});
    ranks.push_back(rank);
  }
  if (::poll(entries.data(), entries.size(), static_cast<int>(at_most.count())) < 0) return;
  auto entry = entries.begin() + 2;
  for (auto& arrival : arrivals_) {
    if ((entry++)->revents != 0) introduce(arrival);
  }
  for (const int rank : ranks) {
    const short events = (entry++)->revents;
    if ((events & POLLOUT) != 0) flush(rank);
    if ((events & ~POLLOUT) != 0) receive_from(rank);
  }
  for (auto& socket : acceptor_.serve()) {
    arrivals_.push_back({std::move(socket), Clock::now()});
    if (arrivals_.size() > kMostArrivals + members_.size()) arrivals_.pop_front();
  }
  if (!welcomed_ && !refusal_ && all_here()) welcome();
}

void PeerMonitorServer::welcome() {
  welcomed_ = true;
  std::vector<int> pids;
  for (const auto& member : members_) pids.push_back(member.pid);
  tell_all({.kind = Kind::welcome, .text = as_text(pids)});
  acceptor_.close();
}

// A rank's first message is short, and arrives at once.
void PeerMonitorServer::introduce(Arrival& arrival) try {
  ForkSafeFd socket = std::move(arrival.socket);
  std::array<std::byte, 256> buffer{};
  const ssize_t count = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
  if (count <= 0) return;
  MonitorReader reader;
  reader.add(std::span(buffer).first(static_cast<std::size_t>(count)));
  const auto hello = reader.next();
  if (!hello || hello->kind != Kind::hello || hello->rank < 0 ||
      hello->rank >= static_cast<int>(members_.size()) || members_[hello->rank].pid != 0) {
    return;
  }
  Member& member = members_[hello->rank];
  member.socket = std::move(socket);
  member.reader = std::move(reader);
  member.pid = static_cast<int>(hello->number);
  if (is_within_machine(member.socket.get())) member.process = ProcessWatch(member.pid);
  if (refusal_) send(hello->rank, *refusal_);
} catch (const Error&) {
  // The peer is not a rank; its socket closes.
}

void PeerMonitorServer::receive_from(int rank) {
  Member& member = members_[rank];
  std::array<std::byte, 4096> buffer{};
  const ssize_t count = ::recv(member.socket.get(), buffer.data(), buffer.size(), 0);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (count <= 0) return lose(rank);
  member.reader.add(std::span(buffer).first(static_cast<std::size_t>(count)));
  try {
    while (const auto message = member.reader.next()) take(rank, *message);
  } catch (const Error&) {
    lose(rank);
  }
}

void PeerMonitorServer::lose(int rank) {
  Member& member = members_[rank];
  member.socket.reset();
  if (member.left || refusal_) return;
  const bool died = member.process.has_ended(kDeathDelay);
  const MonitorMessage news{.kind = Kind::lost,
                            .rank = rank,
                            .number = died ? 1u : 0u,
                            .text = std::to_string(member.pid)};
  // Otherwise the other ranks would wait for this rank until their timeout.
  if (!welcomed_) refusal_ = news;
  tell_all(news);
}

void PeerMonitorServer::take(int rank, const MonitorMessage& message) {
  switch (message.kind) {
    case Kind::connected:
      return note_connected(rank);
    case Kind::waiting:
      return note_waiting(rank, message);
    case Kind::ask:
      return send(rank, answer(rank, message));
    case Kind::abort: {
      const MonitorMessage news{.kind = Kind::aborted,
                                .cause = message.cause,
                                .rank = rank,
                                .lost_rank = message.lost_rank,
                                .culprit = message.culprit,
                                .text = message.text};
      for (int other = 0; other < static_cast<int>(members_.size()); ++other) {
        if (other != rank) send(other, news);
      }
      // Last, so that the sender knows that the others have been told.
      return send(rank, news);
    }
    case Kind::leaving:
      members_[rank].left = true;
      tell_all({.kind = Kind::left,
                .rank = rank,
                .culprit = message.culprit,
                .number = message.number,
                .text = message.text});
      if (std::ranges::all_of(members_,
                              [](const Member& member) { return member.left || !member.socket; })) {
        tell_all({.kind = Kind::all_left});
      }
      return;
    default:
      throw malformed_message();
  }
}

// A rank that has finished joining may end the group at once. So each rank's connection first
// carries the news that all have connected.
void PeerMonitorServer::note_connected(int rank) {
  members_[rank].connected = true;
  if (refusal_ || !std::ranges::all_of(members_, &Member::connected)) return;
  all_connected_ = true;
  tell_all({.kind = Kind::all_connected});
}

MonitorMessage PeerMonitorServer::answer(int asking, const MonitorMessage& question) const {
  Absent absent;
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    const Member& member = members_[rank];
    const bool waited_for =
        question.rank < 0 ? member.waits_in < question.number : rank == question.rank;
    if (rank == asking || !waited_for) continue;
    const bool past = member.last_number != 0 && member.last_number < question.number;
    absent[past ? "" : member.last_wait].push_back(rank);
  }
  std::string text;
  for (const auto& [last_wait, ranks] : absent) text += last_wait + "\n" + as_text(ranks) + "\n";
  return {.kind = Kind::answer, .rank = question.rank, .number = question.number, .text = text};
}

// Ranks that have waited a while in different calls with the same number would wait forever.
void PeerMonitorServer::note_waiting(int rank, const MonitorMessage& message) {
  Member& member = members_[rank];
  member.last_number = message.number;
  member.last_wait = message.text;
  if (message.number == 0) return;
  member.waits_in = message.number;
  member.call = message.text;
  for (int other = 0; other < static_cast<int>(members_.size()); ++other) {
    const Member& peer = members_[other];
    if (peer.waits_in != message.number || peer.call == message.text) continue;
    tell_all({.kind = Kind::aborted,
              .cause = AbortCause::mismatched,
              .rank = rank,
              .text = fmt::format("rank {} called {}, but rank {} called {}; all ranks must make "
                                  "the same calls in the same order",
                                  std::min(rank, other), rank < other ? member.call : peer.call,
                                  std::max(rank, other), rank < other ? peer.call : member.call)});
    return;
  }
}

void PeerMonitorServer::send(int rank, const MonitorMessage& message) {
  if (!members_[rank].socket) return;
  members_[rank].unsent += encode(message);
  flush(rank);
}

void PeerMonitorServer::flush(int rank) {
  Member& member = members_[rank];
  const ssize_t count =
      ::send(member.socket.get(), member.unsent.data(), member.unsent.size(), MSG_NOSIGNAL);
  // A broken connection is noticed when it is read.
  if (count > 0) member.unsent.erase(0, static_cast<std::size_t>(count));
}

void PeerMonitorServer::tell_all(const MonitorMessage& message) {
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) send(rank, message);
}

void PeerMonitorServer::name_ended() {
  const auto ended = std::ranges::find_if(
      processes_, [](const ProcessIdentity& process) { return process.has_ended(); });
  if (ended == processes_.end()) return;
  refusal_ = MonitorMessage{.kind = Kind::lost,
                            .rank = static_cast<int>(ended - processes_.begin()),
                            .number = 1,
                            .text = std::to_string(ended->pid)};
  tell_all(*refusal_);
}

void PeerMonitorServer::name_absent() {
  std::vector<int> absent;
  for (int rank = 0; rank < static_cast<int>(members_.size()); ++rank) {
    const bool here = welcomed_ ? members_[rank].connected : members_[rank].pid != 0;
    if (!here) absent.push_back(rank);
  }
  refusal_ = MonitorMessage{.kind = Kind::absent, .text = as_text(absent) + acceptor_.refused()};
  tell_all(*refusal_);
}

}  // namespace lockstep::remote
