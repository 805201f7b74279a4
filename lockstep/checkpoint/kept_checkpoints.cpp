// SPDX-License-Identifier: BSD-3-Clause
// Ranks the checkpoints by age and by score, and changes the folder so that a kill at any time
// leaves it usable.
#include "lockstep/checkpoint/kept_checkpoints.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <exception>
#include <functional>
#include <iterator>
#include <system_error>
#include <utility>

#include <stdio.h>
#include <unistd.h>

#include "lockstep/checkpoint/folder_changes.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kLatestLink = "latest";
constexpr const char* kBestLink = "best";

bool is_missing(const fs::path& path) {
  std::error_code error;
  return fs::symlink_status(path, error).type() == fs::file_type::not_found;
}

}  // namespace

KeptCheckpoints::KeptCheckpoints(fs::path folder, int keep_last, int keep_best)
    : folder_(std::move(folder)),
      keep_last_(static_cast<std::size_t>(keep_last)),
      keep_best_(static_cast<std::size_t>(keep_best)) {}

void KeptCheckpoints::add(const std::string& name, std::optional<double> score) {
  std::erase_if(kept_, [&](const Kept& kept) { return kept.name == name; });
  const bool has_score = score && !std::isnan(*score);
  kept_.push_back({name, has_score ? score : std::nullopt});
}

void KeptCheckpoints::continue_from(const std::string& name) {
  const auto current = std::ranges::find(kept_, name, &Kept::name);
  if (current == kept_.end()) return;
  for (auto later = current + 1; later != kept_.end(); ++later) later->score.reset();
  std::rotate(kept_.begin(), current + 1, kept_.end());
}

std::vector<std::string> KeptCheckpoints::names_by_score() const {
  std::vector<Kept> scored;
  std::ranges::copy_if(kept_, std::back_inserter(scored),
                       [](const Kept& kept) { return kept.score.has_value(); });
  std::ranges::stable_sort(scored, std::greater{}, [](const Kept& kept) { return *kept.score; });
  std::vector<std::string> names;
  for (Kept& kept : scored) names.push_back(std::move(kept.name));
  return names;
}

void KeptCheckpoints::remove_old() {
  // Checkpoints that somebody has moved or removed no longer belong to this run.
  std::erase_if(kept_, [&](const Kept& kept) { return is_missing(in(kept.name)); });
  std::vector<std::string> best = names_by_score();
  best.resize(std::min(best.size(), keep_best_));
  std::vector<std::string> removed;
  for (std::size_t i = 0; i + keep_last_ < kept_.size(); ++i) {
    const std::string& name = kept_[i].name;
    if (std::ranges::find(best, name) == best.end()) removed.push_back(name);
  }
  // A checkpoint that cannot be removed stays in kept_, for the next attempt; the others are
  // removed.
  std::exception_ptr failure;
  for (const auto& name : removed) {
    try {
      remove(name);
      std::erase_if(kept_, [&](const Kept& kept) { return kept.name == name; });
    } catch (const std::exception&) {
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

// Renames it first: a checkpoint that lacks files would look damaged.
void KeptCheckpoints::remove(const std::string& name) {
  const fs::path unfinished = in(std::string(kUnfinishedCheckpoint) + name);
  remove_tree(unfinished);  // what an earlier removal has left
  if (::rename(in(name).c_str(), unfinished.c_str()) != 0 && errno != ENOENT) {
    fail_to("remove", in(name), errno);
  }
  remove_tree(unfinished);
}

void KeptCheckpoints::point_to_newest() {
  point_to(kept_.back().name, kLatestLink);
}

void KeptCheckpoints::point_to_best() {
  const auto names = names_by_score();
  if (keep_best_ > 0 && !names.empty()) {
    std::error_code error;
    if (fs::read_symlink(in(kBestLink), error) != names.front()) point_to(names.front(), kBestLink);
  } else if (!is_missing(in(kBestLink))) {
    remove_tree(in(kBestLink));
  }
}

// The links are for people and scripts: programs look at the checkpoints themselves. A file system
// without links gets none.
void KeptCheckpoints::point_to(const std::string& name, const char* link) {
  const fs::path made = in(std::string(kUnfinishedCheckpoint) + link);
  remove_tree(made);
  if (::symlink(name.c_str(), made.c_str()) != 0) {
    if (errno == EPERM || errno == EOPNOTSUPP) return;
    fail_to("make", made, errno);
  }
  rename_to(made, in(link));
  flush_folder(folder_);
}

}  // namespace lockstep
