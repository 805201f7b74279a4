// SPDX-License-Identifier: BSD-3-Clause
// Encodes losses, keeps the one that counts, and tells the launcher.
#include "lockstep/rendezvous/losses.h"

#include <map>

#include <fmt/format.h>

#include "lockstep/core/environment.h"
#include "lockstep/core/error.h"
#include "lockstep/core/packing.h"
#include "lockstep/rendezvous/store_client.h"

namespace lockstep {
namespace {

// A stopped launcher must not delay ranks that end.
constexpr std::chrono::milliseconds kLauncherPatience{1000};
// A lost rank that has not ended by then may run much longer.
constexpr std::chrono::milliseconds kEndPatience{1000};

// The launcher's store, if the launcher started this process as this rank of this world size.
std::optional<std::string> launcher_of(int rank, int world_size) {
  if (environment_int("RANK") != rank || environment_int("WORLD_SIZE") != world_size) return {};
  return environment("LOCKSTEP_LAUNCHER");
}

}  // namespace

std::string loss_key(int rank) {
  return fmt::format("lockstep/loss/{}", rank);
}

std::string encode(const Loss& loss) {
  return pack(loss.rank, loss.silent, loss.text);
}

std::optional<Loss> decode_loss(std::string_view bytes) try {
  Loss loss;
  unpack(bytes, loss.rank, loss.silent, loss.text);
  return loss.rank < 0 ? std::nullopt : std::optional(std::move(loss));
} catch (const BackendError&) {
  return std::nullopt;
}

// One map for the whole process: groups are made by independent calls, and the groups of one rank
// must agree on its loss. Never destroyed, since groups may outlive static destructors.
std::shared_ptr<LossRecord> LossRecord::of(const std::string& job, int rank, int world_size) {
  static std::mutex mutex;
  static auto& records = *new std::map<std::string, std::weak_ptr<LossRecord>>;
  const std::lock_guard lock(mutex);
  std::erase_if(records, [](const auto& entry) { return entry.second.expired(); });
  auto& entry = records[fmt::format("{} {} {}", rank, world_size, job)];
  auto record = entry.lock();
  if (!record) {
    entry = record = std::make_shared<LossRecord>(rank, launcher_of(rank, world_size));
  }
  return record;
}

void LossRecord::note(const Loss& loss) noexcept {
  if (loss.rank < 0 || loss.rank == rank_) return;
  {
    const std::lock_guard lock(mutex_);
    if (loss_ && !loss_->silent && loss_->rank != loss.rank) return;
    loss_ = loss;
    lost_process_ = ProcessWatch();
    if (!launcher_ && !loss.silent && loss.pid > 0) lost_process_ = ProcessWatch(loss.pid);
  }
  tell_launcher();
}

void LossRecord::withdraw() noexcept {
  {
    const std::lock_guard lock(mutex_);
    loss_.reset();
    lost_process_ = ProcessWatch();
  }
  tell_launcher();
}

void LossRecord::tell_launcher() const noexcept try {
  if (!launcher_) return;
  // One at a time, so that the launcher's last value is the newest.
  const std::lock_guard lock(telling_);
  const auto known = loss();
  LocalStore(*launcher_, {.patience = kLauncherPatience})
      .set(loss_key(rank_), known ? encode(*known) : "");
} catch (...) {
  // The rank's own error names the loss too.
}

void LossRecord::wait_for_lost_rank() noexcept {
  ProcessWatch process;
  {
    const std::lock_guard lock(mutex_);
    process = std::move(lost_process_);
  }
  process.has_ended(kEndPatience);
}

std::optional<Loss> LossRecord::loss() const {
  const std::lock_guard lock(mutex_);
  return loss_;
}

void GroupLosses::note(const std::exception_ptr& error, int culprit) const noexcept {
  if (!record_) return;
  const auto loss_of = [&](int rank, bool silent, const char* text) {
    const bool known = culprit < 0 || culprit == job_rank(rank);
    const auto index = static_cast<std::size_t>(rank);
    const int pid = known && rank >= 0 && index < pids_.size() ? pids_[index] : 0;
    return Loss{known ? job_rank(rank) : culprit, silent, text, pid};
  };
  try {
    std::rethrow_exception(error);
  } catch (const PeerLost& lost) {
    record_->note(loss_of(lost.rank(), false, lost.what()));
  } catch (const TimeoutError& late) {
    record_->note(loss_of(late.rank(), true, late.what()));
  } catch (...) {
    // No other rank is at fault.
  }
}

void GroupLosses::note(const StoreLost& error) const noexcept {
  if (record_) record_->note({.rank = 0, .text = error.what()});
}

void GroupLosses::withdraw() const noexcept {
  if (record_) record_->withdraw();
}

int GroupLosses::job_rank(int rank) const {
  return job_ranks_.empty() || rank < 0 ? rank : job_ranks_[static_cast<std::size_t>(rank)];
}

std::optional<Loss> GroupLosses::loss() const {
  return record_ ? record_->loss() : std::nullopt;
}

int GroupLosses::culprit(int lost_rank) const {
  if (lost_rank >= 0) return job_rank(lost_rank);
  const auto noted = loss();
  return noted ? noted->rank : -1;
}

}  // namespace lockstep
