// SPDX-License-Identifier: BSD-3-Clause
// Turns ends and progress of this host's ranks into changes of the record in etcd, and changes of
// the record into generations and newcomers.
#include "lockstep/launch/cluster_launch.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <signal.h>

#include "lockstep/core/error.h"
#include "lockstep/launch/elastic_members.h"
#include "lockstep/launch/resize.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

// How often to look at the members' progress.
constexpr milliseconds kProgressPollInterval{50};
// For requests to the store that this host serves.
constexpr milliseconds kStorePatience{10'000};

std::vector<int> founders_among(const std::vector<int>& first, const ClusterJob& job) {
  return job.generation.rank_of(first.front()) ? first : std::vector<int>();
}

// A host's name without the number of its lease.
std::string host_in_words(const std::string& name) {
  return name.substr(0, name.find('#'));
}

}  // namespace

ClusterLaunch::ClusterLaunch(const ElasticOptions& options, const ClusterOptions& cluster,
                             const std::vector<int>& first, EtcdMembership& membership,
                             LocalStoreServer& store, LocalRanks& local_ranks)
    : options_(options),
      cluster_(cluster),
      membership_(membership),
      store_(store),
      local_ranks_(local_ranks),
      board_path_(fmt::format("{}/{}", store.folder(), kBoardName)),
      board_(ElasticBoard::create(board_path_)),
      founders_(founders_among(first, membership.job())),
      first_members_(first.size()),
      job_(membership.job()),
      leaving_(board_,
               [this](int number) -> LocalRanks::Rank& { return *process_of(member_of(number)); }),
      hang_watch_(options.hang_timeout),
      replacements_(options.replacements) {
  for (const int number : first) {
    members_.push_back({.number = number, .place = static_cast<int>(members_.size())});
  }
  open_generation();
}

EnvironmentVariables ClusterLaunch::variables(const PlacedRank& start) const {
  const auto index = static_cast<std::size_t>(start.rank);
  const int number = start.member ? *start.member : members_[index].number;
  const bool founder = std::ranges::count(founders_, number) > 0;
  EnvironmentVariables variables = member_environment({.member = number,
                                                       .place = start.place,
                                                       .most = options_.most,
                                                       .newcomer = !founder,
                                                       .board = board_path_});
  const auto add = [&](std::initializer_list<const char*> names, const std::string& value) {
    for (const char* name : names) variables.emplace_back(name, value);
  };
  // Only Lockstep's own groups can follow the generations.
  add({"MASTER_ADDR", "MASTER_PORT"}, "");
  add({"GROUP_WORLD_SIZE"}, std::to_string(cluster_.hosts));
  if (!founder) return variables;
  const Generation& generation = job_.generation;
  add({"RANK", "ROLE_RANK"}, std::to_string(*generation.rank_of(number)));
  add({"WORLD_SIZE", "ROLE_WORLD_SIZE"}, std::to_string(generation.members.size()));
  add({"GROUP_RANK"}, std::to_string(founders_.front() / static_cast<int>(founders_.size())));
  return variables;
}

void ClusterLaunch::begin() {
  served_ = serve_tcp_store(membership_.take_listener(), {.host = membership_.address(),
                                                          .secret = cluster_.secret,
                                                          .world_size = options_.most,
                                                          .timeout = kStorePatience});
  membership_.follow();
}

std::vector<std::string> ClusterLaunch::take_changes() {
  std::vector<std::string> lines;
  take_completions();
  take_ends(lines);
  take_requests();
  take_news(lines);
  end_untrained();
  kill_dismissed(lines);
  leaving_.end(job_.trains || job_.finished > 0, lines);
  look_for_hangs();
  kill_late_newcomers();
  tell();
  return lines;
}

void ClusterLaunch::take_completions() {
  for (Member& member : members_) {
    if (member.complete || board_.progress(member.number) != ElasticBoard::kEnd) continue;
    member.complete = true;
    membership_.change([number = member.number](ClusterJob& job) { job.complete(number); });
  }
}

void ClusterLaunch::take_ends(std::vector<std::string>& lines) {
  for (const LocalRanks::Rank& rank : local_ranks_.all()) {
    const auto index = static_cast<std::size_t>(rank.process.rank());
    if (!rank.ended || std::exchange(members_[index].ended, true)) continue;
    take_end(rank.process.rank(), lines);
  }
}

void ClusterLaunch::take_end(int rank, std::vector<std::string>& lines) {
  const Member& member = members_[static_cast<std::size_t>(rank)];
  if (member.dismissed) return;
  LocalRanks::Rank& process = local_ranks_.all()[static_cast<std::size_t>(rank)];
  const ExitStatus& status = *process.process.status();
  const int number = member.number;
  if (status.success() || leaving_.contain(number)) {
    return membership_.change([number](ClusterJob& job) { job.end(number, true, ""); });
  }
  // What it has started must not write any more when the others go on.
  process.process.signal(SIGKILL);
  // Such as the message of an exception.
  if (std::string words = process.process.last_words(); !words.empty()) {
    process.end = std::move(words);
  }
  last_lost_ = rank;
  unsettled_.insert(number);
  const bool would_repeat = status.signal == 0 && wrong_command(status.exit_code);
  const bool replaced = !would_repeat && !member.complete && replacements_ > 0;
  if (replaced) --replacements_;
  if (would_repeat) fatal_ = rank;
  membership_.change([number, would_repeat, replaced, end = process.end,
                      host = membership_.host()](ClusterJob& job) {
    if (!job.hosts.contains(number)) return;  // it was done, and the answer was lost
    const bool was_to_leave = std::ranges::count(job.leaving, number) > 0;
    job.end(number, false, end);
    if (was_to_leave) return;
    if (would_repeat && job.failure.empty()) {
      job.failure = fmt::format("member {} ended: {}", number, end);
    }
    if (replaced && job.finished == 0 && job.failure.empty()) job.add_newcomers(host, 1);
  });
  const std::string role = member.last ? fmt::format("rank {}", member.last->rank) : "a newcomer";
  lines.push_back(fmt::format("member {} ({}, pid {}) was lost: {}{}", number, role,
                              process.process.pid(), process.end,
                              replaced || would_repeat ? "" : "; it is not replaced"));
}

void ClusterLaunch::take_requests() {
  answer_resize_requests(store_, [this](int ranks) {
    ResizeAnswer answer = answer_to_resize({.least = options_.least,
                                            .most = options_.most,
                                            .ranks = job_.wish > 0 ? job_.wish : job_.ranks(),
                                            .finished = job_.finished > 0},
                                           ranks);
    if (answer.follows) membership_.change([ranks](ClusterJob& job) { job.resize(ranks); });
    return answer;
  });
}

void ClusterLaunch::take_news(std::vector<std::string>& lines) {
  ClusterJob job = membership_.job();
  if (job == job_) return;
  const ClusterJob before = std::exchange(job_, std::move(job));
  const bool lost_here = !unsettled_.empty();
  std::erase_if(unsettled_, [&](int number) { return !job_.hosts.contains(number); });
  if (!job_.failure.empty()) {
    if (lost_here && !fatal_) fatal_ = last_lost_;
    if (!fatal_) failure_elsewhere_ = job_.failure;
    return;
  }
  describe(before, lines);
  open_generation();
  start_newcomers(lines);
  const bool runs = std::ranges::any_of(members_, [](const Member& one) { return !one.ended; });
  // The others go on without this host.
  if (lost_here && !runs && unsettled_.empty()) fatal_ = last_lost_;
}

// "members 2, 3 on 10.77.0.2 were lost", "members 2, 3 leave", "2 ranks go on (generation 1)",
// "member 4 joins as rank 2 of 3 (generation 2)"
void ClusterLaunch::describe(const ClusterJob& before, std::vector<std::string>& lines) const {
  const Generation& now = job_.generation;
  if (before.generation.number == now.number) return;
  std::map<std::string, std::vector<int>> lost;
  std::vector<int> leave;
  for (const int member : before.generation.members) {
    const auto on = before.hosts.find(member);
    if (std::ranges::count(job_.leaving, member) > 0) {
      leave.push_back(member);
    } else if (on != before.hosts.end() && on->second != membership_.host() &&
               !job_.hosts.contains(member)) {
      lost[on->second].push_back(member);
    }
  }
  for (const auto& [host, members] : lost) {
    lines.push_back(fmt::format("{} on {} {} lost", members_in_words(members), host_in_words(host),
                                members.size() == 1 ? "was" : "were"));
  }
  if (!leave.empty()) {
    lines.push_back(
        fmt::format("{} leave{}", members_in_words(leave), leave.size() == 1 ? "s" : ""));
  }
  bool joins = false;
  for (const int member : now.members) {
    if (before.generation.rank_of(member)) continue;
    joins = true;
    lines.push_back(fmt::format("member {} joins as rank {} of {} (generation {})", member,
                                *now.rank_of(member), now.members.size(), now.number));
  }
  if (joins) return;
  lines.push_back(fmt::format("{} (generation {})", who_goes_on(now.members.size()), now.number));
}

void ClusterLaunch::start_newcomers(std::vector<std::string>& lines) {
  for (const int number : job_.members_on(membership_.host())) {
    const auto same = [&](const Member& one) { return one.number == number; };
    if (std::ranges::any_of(members_, same)) continue;
    const PlacedRank start{
        .rank = static_cast<int>(members_.size()), .place = free_place(), .member = number};
    members_.push_back({.number = number, .place = start.place});
    local_ranks_.start(start);
    hang_watch_.add_newcomer(number);
    lines.push_back(fmt::format("member {} is started", number));
  }
}

// Nobody meets them any more.
void ClusterLaunch::end_untrained() {
  if (job_.finished == 0) return;
  for (Member& member : members_) {
    if (member.ended || !is_newcomer(member) || board_.progress(member.number) >= 0) continue;
    if (std::exchange(member.dismissed, true)) continue;
    membership_.change([number = member.number](ClusterJob& job) { job.dismiss(number); });
  }
}

// Also newcomers that have been dismissed in etcd, since fewer ranks are wanted.
void ClusterLaunch::kill_dismissed(std::vector<std::string>& lines) {
  for (Member& member : members_) {
    if (member.ended) continue;
    if (!job_.hosts.contains(member.number) && !std::exchange(member.dismissed, true)) {
      lines.push_back(fmt::format("member {}, which had not joined, is ended", member.number));
    }
    LocalRanks::Rank* const process = process_of(member);
    if (member.dismissed && process != nullptr) process->process.signal(SIGKILL);
  }
}

// Founders have no limit for their set-up. Newcomers join when they have done it.
void ClusterLaunch::look_for_hangs() {
  const auto is_founder_in_set_up = [this](const Member& member) {
    return !is_newcomer(member) && sets_up(member);
  };
  if (std::ranges::any_of(members_, is_founder_in_set_up)) hang_watch_.restart();
  const ProgressOfMembers now = progress();
  stand_still_ = hang_watch_.stand_still(now);
  if (!stand_still_) return;
  for (const int number : job_.hanging) {
    if (now.contains(number)) hang_watch_.kill_hanging(*process_of(member_of(number)));
  }
}

void ClusterLaunch::kill_late_newcomers() {
  const auto trains = [this](const Member& one) { return board_.progress(one.number) >= 0; };
  const auto first = members_.begin() + static_cast<std::ptrdiff_t>(first_members_);
  if (std::any_of(members_.begin(), members_.end(), trains) &&
      std::none_of(members_.begin(), first, [this](const Member& one) { return sets_up(one); })) {
    hang_watch_.note_set_up();
  }
  const auto waits = [this](int number) { return !member_of(number).ended && !has_joined(number); };
  hang_watch_.kill_late(waits, [this](int number) { return process_of(member_of(number)); });
}

void ClusterLaunch::tell() {
  HostRecord record;
  for (const Member& member : members_) {
    if (member.ended || member.dismissed || !is_newcomer(member)) continue;
    if (has_joined(member.number)) record.joined.push_back(member.number);
  }
  if (trains()) record.trains = opened_;
  if (stand_still_) {
    record.stands_still = opened_;
    for (const auto& [number, of_member] : progress()) {
      const bool stopped = process_of(member_of(number))->process.stopped_by() != 0;
      record.progress.push_back({number, of_member, stopped});
    }
  }
  if (record == told_) return;
  told_ = record;
  membership_.tell(record);
}

void ClusterLaunch::open_generation() {
  const Generation& generation = job_.generation;
  if (generation.number == opened_) return;
  opened_ = generation.number;
  store_.set(members_key(opened_), encode_members({generation.members, generation.store}));
  for (Member& member : members_) {
    const auto rank = generation.rank_of(member.number);
    if (!rank) continue;
    member.last = LastRank{*rank, static_cast<int>(generation.members.size())};
  }
  for (const int number : job_.leaving) {
    const auto own = std::ranges::find(members_, number, &Member::number);
    if (own != members_.end() && !own->ended) leaving_.add(number);
  }
  hang_watch_.restart();
  board_.set_generation(opened_);
}

bool ClusterLaunch::trains() const {
  return std::ranges::all_of(members_, [this](const Member& member) {
    return !job_.generation.rank_of(member.number) || board_.trained_in(member.number) >= opened_;
  });
}

ProgressOfMembers ClusterLaunch::progress() const {
  ProgressOfMembers progress;
  for (const Member& member : members_) {
    if (member.ended || !job_.generation.rank_of(member.number)) continue;
    progress[member.number] = board_.progress(member.number);
  }
  for (const int number : leaving_.in_step()) progress[number] = board_.progress(number);
  return progress;
}

const ClusterLaunch::Member& ClusterLaunch::member_of(int number) const {
  return *std::ranges::find(members_, number, &Member::number);
}

bool ClusterLaunch::sets_up(const Member& member) const {
  return !member.ended && board_.progress(member.number) < 0;
}

LocalRanks::Rank* ClusterLaunch::process_of(const Member& member) const {
  const auto index = static_cast<std::size_t>(&member - members_.data());
  return index < local_ranks_.all().size() ? &local_ranks_.all()[index] : nullptr;
}

bool ClusterLaunch::is_newcomer(const Member& member) const {
  return std::ranges::count(founders_, member.number) == 0;
}

int ClusterLaunch::free_place() const {
  int place = 0;
  const auto takes_it = [&](const Member& one) {
    return one.place == place && !one.ended && !one.dismissed && !leaving_.contain(one.number);
  };
  while (std::ranges::any_of(members_, takes_it)) ++place;
  return place;
}

milliseconds ClusterLaunch::sleep_time(milliseconds longest) const {
  const auto left = std::chrono::ceil<milliseconds>(membership_.ranks_live_until() - Clock::now());
  return std::clamp(left, milliseconds(0), std::min(longest, kProgressPollInterval));
}

bool ClusterLaunch::expects_ranks() const {
  return !fatal_ && failure_elsewhere_.empty() &&
         (!unsettled_.empty() || members_.size() > local_ranks_.all().size());
}

void ClusterLaunch::require_place() {
  if (Clock::now() < membership_.ranks_live_until()) return;
  local_ranks_.signal(SIGKILL);
  const std::string trouble = membership_.trouble();
  throw BackendError(
      ErrorContext{},
      fmt::format("this host has lost its place in job {}, and its ranks were killed, since the "
                  "other hosts go on without them: its lease was not renewed{}",
                  cluster_.job, trouble.empty() ? "" : ": " + trouble),
      "start `lockstep run` here again when etcd can be reached: its ranks then join the others");
}

void ClusterLaunch::forget_quiet_time() {
  hang_watch_.forget_time();
  leaving_.forget_time();
}

std::optional<ElasticControl::LastRank> ClusterLaunch::last_rank(int rank) const {
  return members_[static_cast<std::size_t>(rank)].last;
}

}  // namespace lockstep
