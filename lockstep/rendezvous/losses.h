// SPDX-License-Identifier: BSD-3-Clause
// Records the rank that this one lost, if the loss ends it: for its peers in other groups, and for
// the launcher, which must not blame this rank for the loss.
#pragma once

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "lockstep/core/process/process_watch.h"
#include "lockstep/rendezvous/membership.h"

namespace lockstep {

struct Loss {
  // The lost rank's number in the job.
  int rank = -1;
  // The rank may still run, but did not respond in time.
  bool silent = false;
  // The error of the rank that noted the loss.
  std::string text = {};
  // The lost rank's process if it is on this machine, else 0.
  pid_t pid = 0;
};

// The key under which the launcher's store holds this rank's loss.
std::string loss_key(int rank);
// The loss as that store holds it, without the process id; an empty value stands for no loss.
std::string encode(const Loss& loss);
// nullopt if the bytes are not a loss.
std::optional<Loss> decode_loss(std::string_view bytes);

// The loss that ends a rank, whichever of its groups saw it. Thread-safe.
class LossRecord {
 public:
  // `launcher` is the path of the launcher's store socket; without it the launcher is not told.
  LossRecord(int rank, std::optional<std::string> launcher)
      : rank_(rank), launcher_(std::move(launcher)) {}
  // The record shared by all groups that this process forms as this rank of this job, while any of
  // them lives. It tells the launcher if the launcher started this process as that rank.
  static std::shared_ptr<LossRecord> of(const std::string& job, int rank, int world_size);

  // Keeps the first rank that died or left; until there is one, the last silent rank. A later text
  // about the same rank replaces the earlier one: in a hierarchical group, the group of all ranks
  // reports last and wins. Ignores a loss of this rank itself. Tells the launcher, which may block
  // for a second.
  void note(const Loss& loss) noexcept;
  // The job continues: the loss does not end this rank. Tells the launcher as note() does.
  void withdraw() noexcept;
  std::optional<Loss> loss() const;

  // For a rank that ends because of its loss: blocks once, for at most a second, until the lost
  // rank's process has ended. Launchers other than Lockstep's blame the rank that ends first.
  void wait_for_lost_rank() noexcept;

 private:
  void tell_launcher() const noexcept;

  const int rank_;
  const std::optional<std::string> launcher_;
  mutable std::mutex telling_;
  mutable std::mutex mutex_;
  std::optional<Loss> loss_;
  ProcessWatch lost_process_;
};

// One group's view of the record. The group's rank numbers may differ from the job's numbers.
class GroupLosses {
 public:
  // Records nothing.
  GroupLosses() = default;
  // `pids` are the processes of the group's ranks, where they are on this machine.
  explicit GroupLosses(const Membership& membership, std::vector<int> pids = {})
      : record_(membership.losses), job_ranks_(membership.job_ranks), pids_(std::move(pids)) {}

  // Notes the error that ends the group, if another rank is at fault: `culprit`, a job rank, or
  // else the rank that a PeerLost or TimeoutError names.
  void note(const std::exception_ptr& error, int culprit = -1) const noexcept;
  // Notes the loss of the job's rank 0.
  void note(const StoreLost& error) const noexcept;
  // Withdraws the loss when all ranks of the job have joined a new group.
  void withdraw() const noexcept;
  // The job rank responsible if this group ends now: the lost rank of this group, or else the rank
  // that another group lost. -1 if there is none.
  int culprit(int lost_rank = -1) const;
  std::optional<Loss> loss() const;
  void wait_for_lost_rank() const noexcept {
    if (record_) record_->wait_for_lost_rank();
  }

 private:
  int job_rank(int rank) const;

  std::shared_ptr<LossRecord> record_;
  std::vector<int> job_ranks_;
  std::vector<int> pids_;
};

}  // namespace lockstep
