// SPDX-License-Identifier: BSD-3-Clause
// Reads the launcher's board, asks its store for generations, and ends waits of generations that
// are over.
#include "lockstep/rendezvous/elastic_job.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/net/secret.h"
#include "lockstep/core/net/tcp_socket.h"
#include "lockstep/rendezvous/elastic_board.h"
#include "lockstep/rendezvous/losses.h"
#include "lockstep/rendezvous/store_client.h"
#include "lockstep/rendezvous/tcp_store.h"

namespace lockstep {
namespace {

// How long a member waits at a store of another host before it looks whether a newer generation is
// open: that host may be gone without a word.
constexpr std::chrono::milliseconds kRemoteWait{250};
// For answers of that store that depend on no other rank.
constexpr std::chrono::milliseconds kRemotePatience{10'000};

// The store of one generation's members. A launcher ends requests to its own store about keys of
// generations that are over.
class GenerationStore final : public Store {
 public:
  // `remote`: whether the store may be on another host.
  GenerationStore(std::shared_ptr<const ElasticBoard> board, std::shared_ptr<Store> store,
                  bool remote, int generation, ErrorContext context)
      : board_(std::move(board)),
        remote_(remote),
        generation_(generation),
        context_(std::move(context)),
        prefix_(generation_prefix(generation)),
        store_(std::move(store)) {}

  void set(const std::string& key, const std::string& value) override {
    answered([&] { store_->set(prefix_ + key, value); });
  }
  std::int64_t add(const std::string& key, std::int64_t amount) override {
    return answered([&] { return store_->add(prefix_ + key, amount); });
  }
  std::string get(const std::string& key, const Deadline& deadline) override {
    while (remote_ && deadline.remaining() > kRemoteWait) {
      try {
        return while_newest(
            [&] { return store_->get(prefix_ + key, Deadline::after(kRemoteWait)); });
      } catch (const TimeoutError&) {
        check_newest();
      }
    }
    return while_newest([&] { return store_->get(prefix_ + key, deadline); });
  }

 private:
  // For a request whose answer depends on no other rank: without one, the store's host is lost.
  template <class Request>
  auto answered(const Request& request) -> decltype(request()) {
    try {
      return while_newest(request);
    } catch (const TimeoutError& error) {
      if (!remote_) throw;
      throw PeerLost(within(context_, error));
    }
  }

  template <class Request>
  auto while_newest(const Request& request) -> decltype(request()) {
    check_newest();
    try {
      return request();
    } catch (const BackendError& error) {
      check_newest();
      if (!remote_) throw;
      throw PeerLost(within(context_, error));
    }
  }

  void check_newest() const {
    const int newest = board_->generation();
    if (newest <= generation_) return;
    throw PeerLost(
        ErrorDetails{.cause = fmt::format("generation {} of the job is over: generation {} is open",
                                          generation_, newest),
                     .remedy = "take part in the newest one: ElasticJob::wait_for_generation()",
                     .contexts = {context_}});
  }

  std::shared_ptr<const ElasticBoard> board_;
  bool remote_;
  int generation_;
  ErrorContext context_;
  std::string prefix_;
  std::shared_ptr<Store> store_;
};

constexpr const char* kSetByLauncher =
    "set none of them by hand: `lockstep run --elastic` and spawn set them all";

int required_number(const char* variable, const Range<int>& range) {
  if (const auto number = environment_int(variable, range)) return *number;
  throw UsageError(ErrorContext{}, fmt::format("{} is not set, but LOCKSTEP_ELASTIC is", variable),
                   kSetByLauncher);
}

// Whether the member has begun to train, and has neither completed the training nor left.
bool counts_steps(std::int64_t progress) {
  return progress >= 0 && progress < ElasticBoard::kLeft;
}

ErrorContext of_job(std::string_view operation) {
  return {.component = "ElasticJob", .operation = std::string(operation)};
}

}  // namespace

std::optional<int> Generation::rank_of(int member) const {
  const auto found = std::ranges::find(members, member);
  if (found == members.end()) return std::nullopt;
  return static_cast<int>(found - members.begin());
}

std::shared_ptr<ElasticJob> ElasticJob::of_this_process() {
  // A process may become a rank, or a rank of another job, after its first call.
  const auto board = environment("LOCKSTEP_ELASTIC");
  if (!board) return nullptr;
  static const std::shared_ptr<ElasticJob> job = [&] {
    constexpr Range<int> kMembers{0, ElasticBoard::kMostMembers - 1};
    const int member = required_number("LOCKSTEP_MEMBER", kMembers);
    const int place = required_number("LOCKSTEP_PLACE", kMembers);
    const int most_ranks = required_number("LOCKSTEP_MOST_RANKS", {1, ElasticBoard::kMostMembers});
    const bool newcomer = required_number("LOCKSTEP_NEWCOMER", {0, 1}) == 1;
    const auto store = environment("LOCKSTEP_STORE");
    if (!store) {
      throw UsageError(ErrorContext{}, "LOCKSTEP_STORE is not set, but LOCKSTEP_ELASTIC is",
                       kSetByLauncher);
    }
    return std::shared_ptr<ElasticJob>(
        new ElasticJob(member, place, most_ranks, newcomer, *board, *store));
  }();
  return job;
}

ElasticJob::ElasticJob(int member, int place, int most_ranks, bool newcomer,
                       const std::string& board, std::string store)
    : member_(member),
      place_(place),
      most_ranks_(most_ranks),
      newcomer_(newcomer),
      admitted_(!newcomer),
      board_(std::make_shared<ElasticBoard>(ElasticBoard::open(board))),
      store_(std::move(store)) {}

void ElasticJob::join() {
  if (!in_lobby()) return;
  LocalStore(store_).set(join_key(member_), "");
  joined_ = true;
}

std::optional<Generation> ElasticJob::wait_for_generation(int after, const Deadline& deadline) {
  if (in_lobby()) {
    throw UsageError(of_job("wait_for_generation"),
                     fmt::format("member {} is a newcomer, which no generation has", member_),
                     "call join() first");
  }
  LocalStore store(store_);
  while (true) {
    // Waits for the next generation, but takes the newest.
    const int number = std::max(after + 1, board_->generation());
    Generation found{.number = number};
    try {
      OpenGeneration open = decode_members(store.get(members_key(number), deadline));
      found.members = std::move(open.members);
      found.store = std::move(open.store);
    } catch (const TimeoutError&) {
      throw TimeoutError(
          of_job("wait_for_generation"),
          fmt::format("member {} waited {:.1f} s for a generation with it after generation {}: the "
                      "launcher has noticed no rank that ended, and admitted none",
                      member_, static_cast<double>(deadline.span().count()) / 1000.0, after),
          "look for a rank that hangs (--hang-timeout SECONDS ends it), or for a host that the "
          "others cannot reach");
    }
    if (found.rank_of(member_)) {
      admitted_ = true;
      on_several_hosts_ = !found.store.empty();
      return found;
    }
    if (admitted_) return std::nullopt;
    after = number;
  }
}

Membership ElasticJob::membership(const Generation& generation) const {
  const auto rank = generation.rank_of(member_);
  if (!rank) {
    throw UsageError(of_job("membership"),
                     fmt::format("member {} is not in generation {}", member_, generation.number),
                     "pass what wait_for_generation() has returned");
  }
  generation_ = generation.number;
  const auto size = static_cast<int>(generation.members.size());
  const ErrorContext context{.rank = *rank, .size = size};
  const bool remote = !generation.store.empty();
  Membership membership{.rank = *rank,
                        .world_size = size,
                        .local_rank = place_,
                        .local_world_size = remote && size > 1 ? 0 : size,
                        .generation = generation.number,
                        .store = nullptr,
                        // The launcher is not told: it sees by itself which members end.
                        .losses = std::make_shared<LossRecord>(*rank, std::nullopt)};
  std::shared_ptr<Store> store;
  if (remote) {
    const auto endpoint = parse_endpoint(generation.store);
    if (!endpoint) throw UsageError(context, fmt::format("no store is \"{}\"", generation.store));
    membership.address = endpoint->host;
    membership.secret = secret_of_environment();
    store = make_tcp_store_client({.host = endpoint->host,
                                   .port = endpoint->port,
                                   .secret = membership.secret,
                                   .rank = *rank,
                                   .world_size = size,
                                   .timeout = kRemotePatience});
  } else {
    store = std::make_shared<LocalStore>(store_, StoreUser{.context = context});
  }
  membership.store = std::make_shared<GenerationStore>(board_, std::move(store), remote,
                                                       generation.number, context);
  return membership;
}

bool ElasticJob::wants_change(int generation) const noexcept {
  return board_->generation() > generation;
}

void ElasticJob::note_step(std::int64_t step) noexcept {
  board_->set_trained_in(member_, generation_);
  board_->set_progress(member_, 2 * step);
}

void ElasticJob::note_waiting() noexcept {
  const std::int64_t noted = board_->progress(member_);
  if (counts_steps(noted)) board_->set_progress(member_, noted | 1);
}

void ElasticJob::note_going_on() noexcept {
  const std::int64_t noted = board_->progress(member_);
  if (counts_steps(noted)) board_->set_progress(member_, noted & ~std::int64_t{1});
}

void ElasticJob::note_end() noexcept {
  board_->set_progress(member_, ElasticBoard::kEnd);
}

void ElasticJob::leave(const Deadline& deadline) {
  board_->set_progress(member_, ElasticBoard::kLeft);
  try {
    // Nobody sets it.
    LocalStore(store_).get(fmt::format("lockstep/left/{}", member_), deadline);
  } catch (const TimeoutError&) {
    // As said below.
  }
  throw Error(of_job("leave"),
              fmt::format("member {} has left the job, which is to have fewer ranks, and its "
                          "launcher has not ended this process within {:.1f} s",
                          member_, static_cast<double>(deadline.span().count()) / 1000.0),
              "end it, and look whether it holds SIGTERM back");
}

}  // namespace lockstep
