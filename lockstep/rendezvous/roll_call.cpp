// SPDX-License-Identifier: BSD-3-Clause
// The roll in the store: entries of all ranks, and the verdict of rank 0.
#include "lockstep/rendezvous/roll_call.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <random>
#include <sstream>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include "lockstep/core/error.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/rendezvous/watched_wait.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;

// How often rank 0, while it waits for a rank, checks whether the group was refused.
constexpr std::chrono::milliseconds kRefusalPollInterval = 100ms;
// How often the other ranks check whether rank 0 is alive, at first and later.
constexpr std::chrono::milliseconds kRank0PollInterval = 500ms;
constexpr std::chrono::milliseconds kMaxRank0PollInterval = 2s;
// The wait for something that another process has written or is about to write.
constexpr std::chrono::milliseconds kWriteTimeout = 5s;
// How long a rank that has just joined may take to read why the group ends.
constexpr auto kReadTimeout = 2s;
// How much longer than rank 0 the others wait: rank 0 knows the missing ranks.
constexpr auto kExtraWait = 1s;

// A process's entry in the roll.
struct Entry {
  ProcessIdentity process;
  int world_size = 0;
  std::string backend;
  // Distinguishes processes with the same id on hosts with the same name.
  std::string token;
  std::string host;

  bool same_process(const Entry& other) const {
    return process.pid == other.process.pid && host == other.host && token == other.token;
  }
};

std::string token_of_process() {
  static const std::string token = [] {
    std::random_device random;
    return fmt::format("{:08x}{:08x}", random(), random());
  }();
  return token;
}

Entry own_entry(const Membership& membership, const std::string& backend) {
  return {ProcessIdentity::own(), membership.world_size, backend, token_of_process(), host_name()};
}

std::string as_text(const Entry& entry) {
  return fmt::format("{}\n{} {} {} {}", entry.process.as_text(), entry.world_size, entry.backend,
                     entry.token, entry.host);
}

Entry as_entry(const std::string& text) {
  Entry entry;
  std::istringstream stream(text);
  std::string process;
  std::getline(stream, process);
  entry.process = ProcessIdentity::from_text(process);
  stream >> entry.world_size >> entry.backend >> entry.token >> std::ws;
  std::getline(stream, entry.host);
  return entry;
}

std::string two_processes(const Membership& membership, const Entry& one, const Entry& other) {
  return fmt::format(
      "two processes say that they are rank {} of {}: pid {} on host {}, and pid {} on host {}; "
      "give each a rank of its own (RANK), or leave the numbers to a launcher",
      membership.rank, membership.world_size, one.process.pid, one.host, other.process.pid,
      other.host);
}

// One group's part of the store. A job's ranks may form several groups, one after another.
class Roll {
 public:
  Roll(const Membership& membership, std::int64_t group)
      : store_(*membership.store),
        group_(group),
        prefix_(fmt::format("roll/{}/{}", membership.generation, group)) {}

  static std::string times_key(const Membership& membership, int rank) {
    return fmt::format("roll/{}/times/{}", membership.generation, rank);
  }

  // The group before this one.
  Roll before(const Membership& membership) const { return {membership, group_ - 1}; }

  void enter(int rank, const Entry& entry) const { store_.set(entry_key(rank), as_text(entry)); }
  std::optional<Entry> find(int rank, const Deadline& deadline) const try {
    return as_entry(store_.get(entry_key(rank), deadline));
  } catch (const TimeoutError&) {
    return std::nullopt;
  }
  // Whether the rank has joined this group or a later one.
  bool here(const Membership& membership, int rank) const {
    return store_.add(times_key(membership, rank), 0) >= group_;
  }

  // Ends the group with this verdict. False if another process has ended it already.
  bool end(const std::string& verdict) const {
    if (store_.add(prefix_ + "/over", 1) != 1) return false;
    store_.set(prefix_ + "/verdict", verdict);
    return true;
  }
  // Group 0, before the first one, counts as over.
  bool over() const { return group_ == 0 || store_.add(prefix_ + "/over", 0) > 0; }
  std::string verdict(const Deadline& deadline) const {
    return store_.get(prefix_ + "/verdict", deadline);
  }

  // Counts the ranks that have read a verdict that ends the group.
  void acknowledge() const { store_.add(prefix_ + "/acknowledged", 1); }
  std::int64_t acknowledged() const { return store_.add(prefix_ + "/acknowledged", 0); }

 private:
  std::string entry_key(int rank) const { return fmt::format("{}/{}", prefix_, rank); }

  Store& store_;
  std::int64_t group_;
  std::string prefix_;
};

// Rank 0's verdict, as the store holds it, begins with one of these words.
constexpr std::string_view kComplete = "complete ";
constexpr std::string_view kRefused = "refused ";
constexpr std::string_view kLost = "lost ";
constexpr std::string_view kLate = "late ";

std::string different_sizes(int rank, int size, std::string_view size_of_rank_0) {
  return fmt::format(
      "rank {} is one of {}, but rank 0 is one of {}: all machines must start the same number of "
      "ranks "
      "(`lockstep run -n`), with the same WORLD_SIZE",
      rank, size, size_of_rank_0);
}

// A verdict, or empty if the rank can be in one group with rank 0.
std::string compare(const Entry& rank_0, int rank, const Entry& other) {
  if (rank_0.world_size != other.world_size) {
    return fmt::format("{}{}", kRefused,
                       different_sizes(rank, other.world_size, std::to_string(rank_0.world_size)));
  }
  if (rank_0.backend != other.backend) {
    return fmt::format(
        "{}rank 0 (pid {} on host {}) asks for the backend {}, but rank {} (pid {} on host {}) "
        "asks "
        "for {}; all ranks must ask for the same",
        kRefused, rank_0.process.pid, rank_0.host, rank_0.backend, rank, other.process.pid,
        other.host, other.backend);
  }
  return "";
}

std::vector<int> absent_from(const Membership& membership, const Roll& roll) {
  std::vector<int> absent;
  for (int rank = 0; rank < membership.world_size; ++rank) {
    if (!roll.here(membership, rank)) absent.push_back(rank);
  }
  return absent;
}

std::string late(const Membership& membership, const Roll& roll, int waited_for) {
  std::vector<int> absent = absent_from(membership, roll);
  if (absent.empty()) absent.push_back(waited_for);
  return fmt::format("{}{}\n{}", kLate, fmt::join(absent, ", "), membership.store->refused());
}

std::string lost(int rank, const Entry& entry) {
  return fmt::format("{}{}\n{}\n{}", kLost, rank, entry.process.pid, entry.host);
}

// Rank 0's part: collects the entries of all ranks.
class Collection {
 public:
  Collection(const Membership& membership, const Roll& roll, const Entry& own)
      : membership_(membership), roll_(roll), entries_{{0, own}} {}

  // Returns the verdict; empty if another process has refused the group meanwhile.
  std::string run(const Deadline& deadline) {
    for (int rank = 1; rank < membership_.world_size; ++rank) {
      while (!find(rank, deadline)) {
        if (roll_.over()) return "";
        // Also checks one of the later ranks each time, to notice one that joins and dies while
        // this one is late.
        if (look_at_ < rank || ++look_at_ == membership_.world_size) look_at_ = rank;
        if (roll_.here(membership_, look_at_)) find(look_at_, deadline);
        if (const std::string verdict = against(); !verdict.empty()) return verdict;
        if (deadline.passed()) return late(membership_, roll_, rank);
      }
    }
    if (const std::string verdict = against(); !verdict.empty()) return verdict;
    std::string verdict = fmt::format("{}{}", kComplete, membership_.world_size);
    for (const auto& [rank, entry] : entries_) verdict += "\n" + entry.process.as_text();
    return verdict;
  }

 private:
  // Whether the rank's entry exists.
  bool find(int rank, const Deadline& deadline) {
    if (entries_.contains(rank)) return true;
    // The entry of a rank that has joined is read even after the deadline.
    const auto patience =
        roll_.here(membership_, rank)
            ? std::clamp(deadline.remaining(), kRefusalPollInterval, kWriteTimeout)
            : std::min(deadline.remaining(), kRefusalPollInterval);
    auto entry = roll_.find(rank, Deadline::after(patience));
    if (entry) entries_.emplace(rank, *std::move(entry));
    return entry.has_value();
  }

  // A verdict against the group; empty if all ranks so far fit together and are alive.
  std::string against() const {
    for (const auto& [rank, entry] : entries_) {
      const std::string difference = compare(entries_.at(0), rank, entry);
      if (!difference.empty()) return difference;
      if (entry.process.has_ended()) return lost(rank, entry);
    }
    return "";
  }

  const Membership& membership_;
  const Roll& roll_;
  std::map<int, Entry> entries_;
  int look_at_ = 0;
};

// Waits for the ranks that have joined to read the verdict, since the store may end with this
// process.
void wait_for_acknowledgements(const Membership& membership, const Roll& roll) {
  const auto others =
      membership.world_size - 1 - static_cast<int>(absent_from(membership, roll).size());
  const Deadline deadline = Deadline::after(kReadTimeout);
  while (roll.acknowledged() < others && !deadline.passed()) ::usleep(10'000);
}

// Names another process that had this rank number in the previous group, which may be complete by
// now; "" if there is none.
std::string holder_before(const Membership& membership, const Roll& roll, const Entry& own) {
  const auto holder =
      roll.before(membership).find(membership.rank, Deadline::after(kRefusalPollInterval));
  if (!holder || holder->same_process(own)) return "";
  return fmt::format("; pid {} on host {} was rank {} here before: is it still running?",
                     holder->process.pid, holder->host, membership.rank);
}

[[noreturn]] void throw_no_verdict(const Membership& membership, const Roll& roll, const Entry& own,
                                   const Deadline& deadline) {
  const double seconds = deadline.span().count() / 1000.0;
  ErrorDetails details{.peer = 0, .contexts = {joining_context(membership)}};
  if (roll.here(membership, 0)) {
    details.cause = fmt::format(
        "rank 0, which waits for all ranks, did not report within {:.1f} s that all have joined",
        seconds);
    details.remedy = "it is stopped, or was given a longer timeout";
  } else {
    details.cause = fmt::format("rank 0 did not join within {:.1f} s", seconds);
    details.remedy = kFindWhy;
  }
  details.remedy += holder_before(membership, roll, own);
  throw TimeoutError(std::move(details));
}

// The other ranks' part. If rank 0 does not serve the store, only this check notices its end.
std::string wait_for_verdict(const Membership& membership, const Roll& roll, const Entry& own,
                             const Deadline& deadline) {
  const Deadline patience = Deadline::after(deadline.remaining() + kExtraWait);
  std::optional<Entry> rank_0;
  // The waits get longer, since the store may be far away.
  for (std::chrono::milliseconds wait = kRank0PollInterval;;
       wait = std::min(2 * wait, kMaxRank0PollInterval)) {
    const bool rank_0_ended = rank_0 && rank_0->process.has_ended();
    const bool last = rank_0_ended || patience.remaining() <= wait;
    try {
      return roll.verdict(Deadline::after(std::min(wait, patience.remaining())));
    } catch (const StoreSilent&) {
      throw;
    } catch (const TimeoutError&) {
      if (rank_0_ended) return lost(0, *rank_0);
      if (last) throw_no_verdict(membership, roll, own, deadline);
    }
    if (!rank_0 && roll.here(membership, 0)) {
      rank_0 = roll.find(0, Deadline::after(std::min(kWriteTimeout, patience.remaining())));
    }
  }
}

// For ranks that are missing on rank 0: some launchers give it another address than the others,
// such as Kubeflow's PyTorchJob.
std::string reached_from_home_only(const Membership& membership) {
  const std::string& host = membership.address;
  const bool loopback = host.starts_with("localhost") || host.starts_with("127.") || host == "::1";
  if (membership.rank != 0 || !loopback) return "";
  return fmt::format(
      "; rank 0 listens on {}, which only ranks of its own machine can reach: if the others are "
      "elsewhere, set rank 0's MASTER_ADDR to its name or address, as theirs",
      host);
}

// Returns the processes of all ranks if the verdict is that all have joined; throws otherwise.
std::vector<ProcessIdentity> apply_verdict(const std::string& verdict, const Membership& membership,
                                           const Deadline& deadline) {
  const ErrorContext context = joining_context(membership);
  if (verdict.starts_with(kRefused)) throw UsageError(context, verdict.substr(kRefused.size()));
  if (verdict.starts_with(kComplete)) {
    std::istringstream lines(verdict.substr(kComplete.size()));
    std::string size;
    std::getline(lines, size);
    if (size != std::to_string(membership.world_size)) {
      throw UsageError(context, different_sizes(membership.rank, membership.world_size, size));
    }
    std::vector<ProcessIdentity> processes;
    for (std::string line; std::getline(lines, line);) {
      processes.push_back(ProcessIdentity::from_text(line));
    }
    return processes;
  }
  if (verdict.starts_with(kLost)) {
    std::istringstream lines(verdict.substr(kLost.size()));
    int rank = 0;
    int pid = 0;
    std::string host;
    lines >> rank >> pid >> host;
    throw PeerLost(ErrorDetails{
        .cause = fmt::format("rank {} (pid {} on host {}) died while the ranks connected", rank,
                             pid, host),
        .peer = rank,
        .contexts = {context}});
  }
  const auto line = verdict.find('\n');
  const std::string absent = verdict.substr(kLate.size(), line - kLate.size());
  const std::string refused = verdict.substr(line + 1);
  const std::string late =
      membership.rank == 0
          ? fmt::format("rank {} did not join within {:.1f} s", absent,
                        deadline.span().count() / 1000.0)
          : fmt::format("rank {} did not join; rank 0, which waited for all, gave up", absent);
  throw TimeoutError(ErrorDetails{
      .cause = late,
      .remedy = fmt::format("{}{}{}", kFindWhy, refused, reached_from_home_only(membership)),
      .peer = std::atoi(absent.c_str()),
      .contexts = {context}});
}

// Refuses the group if two processes have this rank number. A process joins one group after
// another. So if the previous group is still forming, its process of this rank is a different one,
// unless that process has ended.
void refuse_second(const Membership& membership, const Roll& forming, const Entry& own,
                   const Deadline& deadline) {
  if (forming.over()) return;
  const auto holder = forming.find(membership.rank, Deadline::after(kWriteTimeout));
  if (!holder || holder->same_process(own) || holder->process.has_ended()) return;
  const std::string refusal =
      fmt::format("{}{}", kRefused, two_processes(membership, *holder, own));
  if (forming.end(refusal)) apply_verdict(refusal, membership, deadline);
}

}  // namespace

std::vector<ProcessIdentity> call_roll(const Membership& membership, const std::string& backend,
                                       const Deadline& deadline) {
  const Entry own = own_entry(membership, backend);
  const Roll roll(membership,
                  membership.store->add(Roll::times_key(membership, membership.rank), 1));
  roll.enter(membership.rank, own);
  refuse_second(membership, roll.before(membership), own, deadline);
  std::string verdict;
  if (membership.rank != 0) {
    verdict = wait_for_verdict(membership, roll, own, deadline);
    if (!verdict.starts_with(kComplete)) roll.acknowledge();
  } else {
    verdict = Collection(membership, roll, own).run(deadline);
    if (!roll.end(verdict)) verdict = roll.verdict(Deadline::after(kWriteTimeout));
    if (!verdict.starts_with(kComplete)) wait_for_acknowledgements(membership, roll);
  }
  return apply_verdict(verdict, membership, deadline);
}

void refuse_second_rank_0(const Membership& membership, const Error& error) {
  const auto groups = membership.store->add(Roll::times_key(membership, 0), 0);
  const Roll roll(membership, std::max<std::int64_t>(groups, 1));
  // The other rank 0 may be about to enter.
  const auto holder = roll.find(0, Deadline::after(kWriteTimeout));
  if (!holder) throw BackendError(error.details());
  refuse_second(membership, roll, own_entry(membership, holder->backend),
                Deadline::after(kWriteTimeout));
  ErrorDetails details = error.details();
  details.cause += fmt::format(
      ": another job's rank 0 (pid {} on host {}) is already serving a store at this "
      "address",
      holder->process.pid, holder->host);
  throw BackendError(std::move(details));
}

}  // namespace lockstep
