// SPDX-License-Identifier: BSD-3-Clause
// A folder with one checkpoint per subfolder: how they are written so that a complete one is there
// at any time, verified, and removed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/core/unique_fd.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// The subfolder of a step: names in their order are steps in theirs.
std::string checkpoint_name(std::int64_t step);

// The subfolders of checkpoints in this folder, newest first. BackendError if the folder cannot be
// read; none if there is no such folder.
std::vector<std::string> checkpoint_names(const std::filesystem::path& folder);

struct StoredCheckpoint {
  nlohmann::json manifest;
  // By the name of the file.
  std::map<std::string, std::vector<NamedTensor>> tensors;
};

// Reads a subfolder and compares everything with the hashes of its manifest. Needs memory for the
// tensors and one more file. CheckpointError, naming the file and what is wrong with it;
// BackendError if the disk fails or memory is lacking, and UsageError for a version that this
// Lockstep does not read, since neither says that the checkpoint is damaged.
StoredCheckpoint read_checkpoint(const std::filesystem::path& checkpoint);

// Reads only the manifest, and compares it with its own hash. CheckpointError as above.
nlohmann::json read_manifest(const std::filesystem::path& checkpoint);

// The file of a checkpoint, in pieces that follow each other.
struct CheckpointFile {
  std::string name;
  std::vector<std::span<const std::byte>> pieces;
};

// The process that writes into a folder: one at a time. Used by one thread at a time.
class CheckpointStore {
 public:
  // Makes the folder if it is missing, and removes what a killed process left unfinished.
  // UsageError if that is impossible or if another run writes there.
  CheckpointStore(std::filesystem::path folder, int keep_last, int keep_best);

  // Training goes on from this one: later ones, which are damaged, are the first to be removed.
  void go_on_from(const std::string& name);

  // Writes the checkpoint of a step, completes the manifest with the files' sizes and hashes, and
  // then removes old checkpoints. One of the same step is replaced. Blocks until everything is on
  // the disk. BackendError if the disk fails or is full; then older checkpoints are as they were.
  // Returns what went wrong after the checkpoint was complete, as with old ones; usually nothing.
  std::string write(std::int64_t step, std::optional<double> score, nlohmann::json manifest,
                    const std::vector<CheckpointFile>& files);

 private:
  struct Kept {
    std::string name;
    std::optional<double> score;
  };

  std::filesystem::path in(std::string_view name) const { return folder_ / name; }
  void remember(const std::string& name, std::optional<double> score);
  void remove_unfinished();
  void publish(const std::filesystem::path& unfinished, const std::string& name);
  void point_latest_to(const std::string& name);
  void remove_old();
  void remove(const std::string& name);

  std::filesystem::path folder_;
  std::size_t keep_last_;
  std::size_t keep_best_;
  UniqueFd lock_;
  std::vector<Kept> kept_;  // those to be removed first come first
};

}  // namespace lockstep
