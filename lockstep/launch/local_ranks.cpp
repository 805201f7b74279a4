// SPDX-License-Identifier: BSD-3-Clause
// Applies what the keeper reports to the ranks, and puts their ends in words.
#include "lockstep/launch/local_ranks.h"

#include <algorithm>
#include <utility>
#include <variant>

#include <signal.h>

#include "lockstep/rendezvous/losses.h"

namespace lockstep {

LocalRanks::LocalRanks(int first_rank, bool end_orphans) : first_rank_(first_rank) {
  if (end_orphans) orphans_.emplace();
}

LocalRanks::~LocalRanks() {
  if (!keeper_) return;
  signal(SIGKILL);
  keeper_.reset();
  // Ends processes that a killed keeper has left to this one.
  if (orphans_) end_children(std::chrono::milliseconds(0));
}

RankProcess& LocalRanks::add_started() {
  ranks_.push_back({RankProcess(keeper_->next_started())});
  return ranks_.back().process;
}

void LocalRanks::take_changes() {
  keeper_->keep_awake();
  while (auto message = keeper_->next_message()) {
    if (const auto* change = std::get_if<RankChange>(&*message)) {
      ranks_[static_cast<std::size_t>(change->rank)].process.take(*change);
    } else if (auto* started = std::get_if<StartedRank>(&*message)) {
      ranks_.push_back({RankProcess(std::move(*started))});
    } else {
      add_failed(std::get<StartFailed>(*message));
    }
  }
}

void LocalRanks::add_failed(const StartFailed& failed) {
  Rank rank{.process = RankProcess(StartedRank{.rank = failed.rank}), .end = failed.what};
  rank.process.take({.rank = failed.rank, .code = CLD_EXITED, .status = 1});
  ranks_.push_back(std::move(rank));
}

void LocalRanks::take_ends(const std::set<int>& notices) {
  ++round_;
  for (Rank& rank : ranks_) {
    if (rank.ended || !rank.process.status()) continue;
    rank.ended = true;
    rank.noticed = round_;
    if (!rank.end.empty()) continue;
    const ExitStatus& status = *rank.process.status();
    rank.end = status.words(memory_kills_);
    if (status.success() || !notices.contains(status.signal)) continue;
    rank.end +=
        ", which its launcher got and passed on; handle or ignore the signal in the program";
  }
}

void LocalRanks::look_for_memory_kills() {
  if (!look_for_kills_at_.passed()) return;
  memory_kills_.look();
  look_for_kills_at_ = Deadline::after(MemoryKills::kTimeToEnd / 2);
}

bool LocalRanks::running() const {
  return std::ranges::any_of(ranks_, [](const Rank& rank) { return !rank.ended; });
}

std::vector<RankEnd> LocalRanks::ends(const LocalStoreServer& store) const {
  std::vector<RankEnd> ends;
  for (const Rank& rank : ranks_) {
    const auto reported = store.value(loss_key(job_rank(rank)));
    ends.push_back({.status = rank.process.status(),
                    .noticed = rank.noticed,
                    .stopped_by = rank.process.stopped_by(),
                    .loss = reported ? decode_loss(*reported) : std::nullopt});
  }
  return ends;
}

void LocalRanks::signal(int signal) {
  // Without the keeper, the ranks' pids may belong to other processes.
  if (!keeper_) return;
  for (const Rank& rank : ranks_) rank.process.signal(signal);
}

void LocalRanks::end(std::chrono::milliseconds grace) {
  keeper_->end(grace);
  keeper_.reset();
}

}  // namespace lockstep
