// SPDX-License-Identifier: BSD-3-Clause
// Publishes generations on the board and in the store, and words the events.
#include "lockstep/launch/elastic_launch.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>

#include "lockstep/launch/resize.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;

// How often to look whether the members train, while a newcomer waits for that.
constexpr milliseconds kJoinPollInterval{5};

}  // namespace

ElasticLaunch::ElasticLaunch(const ElasticOptions& options, int ranks, LocalStoreServer& store,
                             LocalRanks& local_ranks)
    : options_(options),
      first_members_(ranks),
      most_(std::max(options.most, ranks)),
      store_(store),
      local_ranks_(local_ranks),
      board_path_(fmt::format("{}/{}", store.folder(), kBoardName)),
      board_(ElasticBoard::create(board_path_)),
      members_(ranks, options.least, options.replacements),
      leaving_(board_, [this](int member) -> LocalRanks::Rank& { return rank_of(member); }),
      hang_watch_(options.hang_timeout) {
  open_generation();
}

EnvironmentVariables ElasticLaunch::variables(const PlacedRank& start) const {
  return member_environment({.member = start.rank,
                             .place = start.place,
                             .most = most_,
                             .newcomer = start.rank >= first_members_,
                             .board = board_path_});
}

std::vector<std::string> ElasticLaunch::take_changes() {
  std::vector<std::string> lines;
  take_completions();
  if (!fatal_) take_ends(lines);
  if (!fatal_) take_requests();
  if (!fatal_) resize(lines);
  if (!fatal_) take_joins(lines);
  if (!fatal_ && hang_watch_.is_on()) {
    kill_hanging();
    kill_late_newcomers();
  }
  leaving_.end(members_.any_finished() || members_train(), lines);
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
    if (status.success()) {
      const bool never_joined = members_.newcomers().contains(member) && !members_.any_finished();
      if (never_joined) lines.push_back(describe_idle_newcomer(rank));
      continue;
    }
    // What it has started must not write any more when the others go on.
    rank.process.signal(SIGKILL);
    // Such as the message of an exception.
    if (std::string words = rank.process.last_words(); !words.empty()) rank.end = std::move(words);
  }
  if (ends.empty()) return;
  const auto has_trained = [&](int member) { return board_.progress(member) >= 0; };
  const ElasticChange change = members_.take_ends(ends, has_trained);
  std::ranges::copy(change.to_end, std::back_inserter(dismissed_));
  fatal_ = change.fatal;
  if (change.opens) open_generation();
  start(change);
  for (const int lost : change.lost) {
    losses_.emplace_back(lost, describe_loss(lost));
    lines.push_back(losses_.back().second + describe_consequences(change, lost));
  }
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
  if (joining.empty() || !members_train() || !members_.admit(joining)) return;
  const Generation& generation = members_.generation();
  for (const int member : joining) {
    lines.push_back(fmt::format("member {} joins as rank {} of {} (generation {})", member,
                                *generation.rank_of(member), generation.members.size(),
                                generation.number));
  }
  open_generation();
}

void ElasticLaunch::take_requests() {
  answer_resize_requests(store_, [this](int ranks) {
    const ResizeAnswer answer = answer_to_resize({.least = options_.least,
                                                  .most = most_,
                                                  .ranks = wish_.value_or(members_.wanted()),
                                                  .misses_ranks = members_.has_place(),
                                                  .finished = members_.any_finished()},
                                                 ranks);
    if (answer.follows) wish_ = ranks;
    return answer;
  });
}

// The members should have met in their generation before it is over; one that has not skips it.
void ElasticLaunch::resize(std::vector<std::string>& lines) {
  if (!wish_) return;
  const int before = members_.wanted();
  const bool changes = *wish_ != before || members_.has_place();
  if (members_.any_finished() || !changes) return wish_.reset();
  if (*wish_ < before && !members_train()) return;
  const ElasticChange change = members_.resize(*wish_);
  wish_.reset();
  for (const int member : change.leaving) leaving_.add(member);
  std::ranges::copy(change.to_end, std::back_inserter(dismissed_));
  if (change.opens) open_generation();
  start(change);
  lines.push_back(describe_resize(change, before));
}

void ElasticLaunch::start(const ElasticChange& change) {
  for (const PlacedRank& newcomer : change.to_start) {
    local_ranks_.start(newcomer);
    hang_watch_.add_newcomer(newcomer.rank);
  }
}

void ElasticLaunch::kill_late_newcomers() {
  if (!any_first_member_sets_up()) hang_watch_.note_set_up();
  const auto waits = [this](int member) {
    return members_.newcomers().contains(member) && !has_joined(member);
  };
  const auto process_of = [this](int member) {
    const bool started = member < static_cast<int>(local_ranks_.all().size());
    return started ? &rank_of(member) : nullptr;
  };
  hang_watch_.kill_late(waits, process_of);
}

bool ElasticLaunch::any_first_member_sets_up() const {
  return std::ranges::any_of(progress(), [&](const auto& entry) {
    return entry.first < first_members_ && entry.second < 0;
  });
}

// Beside the members, those that are to leave may keep the others waiting.
void ElasticLaunch::kill_hanging() {
  ProgressOfMembers now = progress();
  for (const int member : leaving_.in_step()) now[member] = board_.progress(member);
  if (any_first_member_sets_up()) return hang_watch_.restart();
  if (!hang_watch_.stand_still(now)) return;
  std::vector<MemberProgress> members;
  for (const auto& [member, of_member] : now) {
    members.push_back({.member = member,
                       .progress = of_member,
                       .stopped = rank_of(member).process.stopped_by() != 0});
  }
  for (const int member : hanging_members(members)) hang_watch_.kill_hanging(rank_of(member));
  hang_watch_.restart();
}

void ElasticLaunch::open_generation() {
  const Generation& generation = members_.generation();
  store_.set(members_key(generation.number),
             encode_members({generation.members, generation.store}));
  board_.set_generation(generation.number);
  if (generation.number > 0) store_.drop(generation_prefix(generation.number - 1));
  for (const int member : generation.members) {
    last_ranks_[member] = {*generation.rank_of(member),
                           static_cast<int>(generation.members.size())};
  }
  hang_watch_.restart();
}

ProgressOfMembers ElasticLaunch::progress() const {
  ProgressOfMembers progress;
  for (const int member : members_.generation().members) {
    progress[member] = board_.progress(member);
  }
  return progress;
}

bool ElasticLaunch::members_train() const {
  const Generation& generation = members_.generation();
  return std::ranges::all_of(generation.members, [&](int member) {
    return board_.trained_in(member) >= generation.number;
  });
}

bool ElasticLaunch::has_joined(int member) const {
  return store_.value(join_key(member)).has_value();
}

std::vector<int> ElasticLaunch::joined() const {
  std::vector<int> joined;
  std::ranges::copy_if(members_.newcomers(), std::back_inserter(joined),
                       [this](int member) { return has_joined(member); });
  return joined;
}

milliseconds ElasticLaunch::sleep_time(milliseconds longest) const {
  if (fatal_) return longest;
  if (wish_ || !leaving_.empty() || !joined().empty())
    longest = std::min(longest, kJoinPollInterval);
  return hang_watch_.poll_interval(longest);
}

std::optional<ElasticControl::LastRank> ElasticLaunch::last_rank(int member) const {
  const auto found = last_ranks_.find(member);
  return found == last_ranks_.end() ? std::nullopt : std::optional(found->second);
}

void ElasticLaunch::forget_quiet_time() {
  hang_watch_.forget_time();
  leaving_.forget_time();
}

std::string ElasticLaunch::describe_idle_newcomer(const LocalRanks::Rank& rank) const {
  return fmt::format(
      "member {} (a newcomer, pid {}) ended with code 0 before it joined, and is not replaced; {}",
      rank.process.rank(), rank.process.pid(), who_goes_on(members_.generation().members.size()));
}

std::vector<std::string> ElasticLaunch::losses() const {
  std::vector<std::string> texts;
  for (const auto& [member, text] : losses_) {
    if (member != fatal_) texts.push_back(text);
  }
  return texts;
}

// "member 1 (rank 1, pid 123) was lost: killed by signal 9 (SIGKILL)"
std::string ElasticLaunch::describe_loss(int lost) const {
  const LocalRanks::Rank& rank = rank_of(lost);
  const auto had = last_rank(lost);
  const std::string role = had ? fmt::format("rank {}", had->rank) : "a newcomer";
  return fmt::format("member {} ({}, pid {}) was lost: {}", lost, role, rank.process.pid(),
                     rank.end);
}

// "; 3 ranks go on (generation 1), member 4 is started"
std::string ElasticLaunch::describe_consequences(const ElasticChange& change, int lost) const {
  if (lost != change.lost.back()) return "";
  const Generation& generation = members_.generation();
  if (change.fatal) return "; the job cannot go on";
  std::string line = fmt::format("; {} (generation {})", who_goes_on(generation.members.size()),
                                 generation.number);
  for (const PlacedRank& start : change.to_start) {
    line += fmt::format(", member {} is started", start.rank);
  }
  if (change.to_start.empty() && members_.replacements_left() == 0) {
    line += ", and no replacement is left";
  }
  return line;
}

// "resized from 4 to 2 ranks: members 2, 3 leave (generation 1)"
std::string ElasticLaunch::describe_resize(const ElasticChange& change, int before) const {
  const std::string line =
      fmt::format("resized from {} to {}", before, ranks_in_words(members_.wanted()));
  std::vector<std::string> parts;
  if (!change.to_start.empty()) {
    std::vector<int> started;
    for (const PlacedRank& newcomer : change.to_start) started.push_back(newcomer.rank);
    parts.push_back(fmt::format("{} {} started", members_in_words(started),
                                started.size() == 1 ? "is" : "are"));
  }
  if (!change.to_end.empty()) {
    parts.push_back(fmt::format("{}, which had not joined, {} ended",
                                members_in_words(change.to_end),
                                change.to_end.size() == 1 ? "is" : "are"));
  }
  if (!change.leaving.empty()) {
    parts.push_back(fmt::format("{} leave{} (generation {})", members_in_words(change.leaving),
                                change.leaving.size() == 1 ? "s" : "",
                                members_.generation().number));
  }
  return parts.empty() ? line : fmt::format("{}: {}", line, fmt::join(parts, ", "));
}

}  // namespace lockstep
