// SPDX-License-Identifier: BSD-3-Clause
// Publishes generations on the board and in the store, and words the events.
#include "lockstep/launch/elastic_launch.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <signal.h>

namespace lockstep {
namespace {

using std::chrono::milliseconds;

// How often to look whether the members train, while a newcomer waits for that.
constexpr milliseconds kJoinPollInterval{5};
constexpr milliseconds kShortestHangPollInterval{10};

std::string who_goes_on(std::size_t ranks) {
  return ranks == 1 ? "1 rank goes on" : fmt::format("{} ranks go on", ranks);
}

}  // namespace

ElasticLaunch::ElasticLaunch(const ElasticOptions& options, int ranks, LocalStoreServer& store,
                             LocalRanks& local_ranks)
    : options_(options),
      first_members_(ranks),
      store_(store),
      local_ranks_(local_ranks),
      board_path_(fmt::format("{}/{}", store.folder(), kBoardName)),
      board_(ElasticBoard::create(board_path_)),
      members_(ranks, options.least, options.replacements) {
  open_generation();
}

EnvironmentVariables ElasticLaunch::variables(const PlacedRank& start) const {
  const bool newcomer = start.rank >= first_members_;
  EnvironmentVariables variables{{"LOCKSTEP_ELASTIC", board_path_},
                                 {"LOCKSTEP_MEMBER", std::to_string(start.rank)},
                                 {"LOCKSTEP_PLACE", std::to_string(start.place)},
                                 {"LOCKSTEP_NEWCOMER", newcomer ? "1" : "0"}};
  if (!newcomer) return variables;
  // Until it joins, it is alone.
  for (const char* name : {"RANK", "LOCAL_RANK", "ROLE_RANK"}) variables.emplace_back(name, "0");
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"}) {
    variables.emplace_back(name, "1");
  }
  return variables;
}

std::vector<std::string> ElasticLaunch::take_changes() {
  std::vector<std::string> lines;
  take_completions();
  if (!fatal_) take_ends(lines);
  if (!fatal_) take_joins(lines);
  if (!fatal_ && options_.hang_timeout.count() > 0) kill_hanging();
  kill_dismissed();
  return lines;
}

void ElasticLaunch::take_completions() {
  for (const auto& [member, progress] : progress()) {
    if (progress == ElasticBoard::kEnd) members_.complete(member);
  }
}

void ElasticLaunch::take_ends(std::vector<std::string>& lines) {
  ended_.resize(local_ranks_.all().size());
  std::vector<MemberEnd> ends;
  for (LocalRanks::Rank& rank : local_ranks_.all()) {
    const int member = rank.process.rank();
    if (!rank.ended || ended_[static_cast<std::size_t>(member)]) continue;
    ended_[static_cast<std::size_t>(member)] = true;
    const ExitStatus& status = *rank.process.status();
    ends.push_back({.member = member,
                    .success = status.success(),
                    .would_repeat = status.signal == 0 && wrong_command(status.exit_code)});
    // What it has started must not write any more when the others go on.
    if (!status.success()) rank.process.signal(SIGKILL);
  }
  if (ends.empty()) return;
  const auto has_trained = [&](int member) { return board_.progress(member) >= 0; };
  const ElasticChange change = members_.take_ends(ends, has_trained);
  std::ranges::copy(change.to_end, std::back_inserter(dismissed_));
  fatal_ = change.fatal;
  if (change.opens) open_generation();
  for (const PlacedRank& start : change.to_start) local_ranks_.start(start);
  for (const int lost : change.lost) lines.push_back(describe(change, lost));
}

void ElasticLaunch::kill_dismissed() {
  std::erase_if(dismissed_, [this](int member) {
    const bool started = member < static_cast<int>(local_ranks_.all().size());
    if (started) rank_of(member).process.signal(SIGKILL);
    return started;
  });
}

void ElasticLaunch::take_joins(std::vector<std::string>& lines) {
  const std::vector<int> joining = joined();
  if (joining.empty()) return;
  // The members must have met in their generation before it is over.
  const auto trains = [&](const auto& at_opening) {
    return board_.progress(at_opening.first) != at_opening.second;
  };
  if (!std::ranges::all_of(progress_at_opening_, trains)) return;
  if (!members_.admit(joining)) return;
  const Generation& generation = members_.generation();
  for (const int member : joining) {
    lines.push_back(fmt::format("member {} joins as rank {} of {} (generation {})", member,
                                *generation.rank_of(member), generation.members.size(),
                                generation.number));
  }
  open_generation();
}

void ElasticLaunch::kill_hanging() {
  auto now = progress();
  const auto is_first_in_setup = [&](const auto& entry) {
    return entry.first < first_members_ && entry.second < 0;
  };
  if (!quiet_ || now != last_progress_ || std::ranges::any_of(now, is_first_in_setup)) {
    last_progress_ = std::move(now);
    quiet_ = Deadline::after(options_.hang_timeout);
    return;
  }
  if (!quiet_->passed()) return;
  std::vector<MemberProgress> members;
  for (const int member : members_.generation().members) {
    members.push_back({.member = member,
                       .progress = now.at(member),
                       .stopped = rank_of(member).process.stopped_by() != 0});
  }
  for (const int member : hanging_members(members)) {
    LocalRanks::Rank& rank = rank_of(member);
    rank.end = fmt::format("killed by the launcher, since it made no progress for {:.1f} s",
                           static_cast<double>(options_.hang_timeout.count()) / 1000.0);
    rank.process.signal(SIGKILL);
  }
  quiet_.reset();
}

void ElasticLaunch::open_generation() {
  const Generation& generation = members_.generation();
  store_.set(members_key(generation.number), encode_members(generation.members));
  board_.set_generation(generation.number);
  if (generation.number > 0) store_.drop(generation_prefix(generation.number - 1));
  for (const int member : generation.members) last_ranks_[member] = *generation.rank_of(member);
  progress_at_opening_ = progress();
  quiet_.reset();
}

std::map<int, std::int64_t> ElasticLaunch::progress() const {
  std::map<int, std::int64_t> progress;
  for (const int member : members_.generation().members) {
    progress[member] = board_.progress(member);
  }
  return progress;
}

std::vector<int> ElasticLaunch::joined() const {
  std::vector<int> joined;
  for (const int member : members_.newcomers()) {
    if (store_.value(join_key(member))) joined.push_back(member);
  }
  return joined;
}

milliseconds ElasticLaunch::sleep_time(milliseconds longest) const {
  if (fatal_) return longest;
  if (!joined().empty()) longest = std::min(longest, kJoinPollInterval);
  if (options_.hang_timeout.count() == 0) return longest;
  return std::min(longest, std::max(options_.hang_timeout / 4, kShortestHangPollInterval));
}

int ElasticLaunch::last_rank(int member) const {
  const auto found = last_ranks_.find(member);
  return found == last_ranks_.end() ? member : found->second;
}

// "member 1 (rank 1, pid 123) was lost: killed by signal 9 (SIGKILL); 3 ranks go on (generation 1),
// member 4 is started"
std::string ElasticLaunch::describe(const ElasticChange& change, int lost) {
  const LocalRanks::Rank& rank = rank_of(lost);
  const auto had_rank = last_ranks_.find(lost);
  const std::string role =
      had_rank == last_ranks_.end() ? "a newcomer" : fmt::format("rank {}", had_rank->second);
  std::string line =
      fmt::format("member {} ({}, pid {}) was lost: {}", lost, role, rank.process.pid(), rank.end);
  // The last of several lines says what follows.
  if (lost != change.lost.back()) return line;
  const Generation& generation = members_.generation();
  if (change.fatal) return line + "; the job cannot go on";
  line += fmt::format("; {} (generation {})", who_goes_on(generation.members.size()),
                      generation.number);
  for (const PlacedRank& start : change.to_start) {
    line += fmt::format(", member {} is started", start.rank);
  }
  if (change.to_start.empty() && members_.replacements_left() == 0) {
    line += ", and no replacement is left";
  }
  return line;
}

}  // namespace lockstep
