// SPDX-License-Identifier: BSD-3-Clause
// A folder with one checkpoint per subfolder: writes checkpoints so that a complete one exists at
// any time, verifies them, and removes old ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/kept_checkpoints.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// Returns the subfolder of a step. Names sort as their steps do.
std::string checkpoint_name(std::int64_t step);

// Returns the subfolders with checkpoints, newest first; none if there is no such folder.
// BackendError if the folder cannot be read.
std::vector<std::string> checkpoint_names(const std::filesystem::path& folder);

struct StoredCheckpoint {
  nlohmann::json manifest;
  // The tensors of each file, by the file's name.
  std::map<std::string, std::vector<NamedTensor>> tensors;
};

// Reads a subfolder and compares everything with the hashes of its manifest. Needs memory for the
// tensors and one more file. CheckpointError, naming the file and what is wrong with it, if the
// checkpoint is damaged. BackendError if the disk fails or memory is lacking; UsageError for a
// version that this Lockstep does not read.
StoredCheckpoint read_checkpoint(const std::filesystem::path& checkpoint);

// Reads only the manifest, and compares it with its own hash. Throws what read_checkpoint() throws.
nlohmann::json read_manifest(const std::filesystem::path& checkpoint);

// A file of a checkpoint: the concatenation of its pieces.
struct CheckpointFile {
  std::string name;
  std::vector<std::span<const std::byte>> pieces;
};

// Whether the score of a checkpoint with these notes counts.
using ScoreFilter = std::function<bool(const std::map<std::string, std::string>& notes)>;

// Writes into a folder, which it locks against other processes. Used by one thread at a time.
class CheckpointStore {
 public:
  // Makes the folder if it is missing, and removes unfinished checkpoints of killed processes.
  // UsageError if that is impossible or if another run writes there. Without `counts`, the scores
  // of all earlier checkpoints count.
  CheckpointStore(std::filesystem::path folder, int keep_last, int keep_best,
                  const ScoreFilter& counts = {});

  // Call it after training has resumed from the checkpoint `name`. The later ones, which are
  // damaged, are removed first.
  void continue_from(const std::string& name) { kept_.continue_from(name); }

  // Returns the names of the checkpoints that have a score that counts, the highest first; of equal
  // scores, the first.
  std::vector<std::string> names_by_score() const { return kept_.names_by_score(); }

  // Writes the checkpoint of a step, completes the manifest with the files' sizes and hashes, and
  // then removes old checkpoints. The links `latest` and, if checkpoints are kept for their scores,
  // `best` follow. A checkpoint of the same step is replaced. Blocks until everything is on the
  // disk. BackendError if the disk fails or is full; older checkpoints then remain as they were.
  // Returns what failed after the checkpoint was complete, such as the removal of an old one;
  // usually empty.
  std::string write(std::int64_t step, std::optional<double> score, nlohmann::json manifest,
                    const std::vector<CheckpointFile>& files);

 private:
  std::filesystem::path in(std::string_view name) const { return folder_ / name; }
  void remove_unfinished();
  void publish(const std::filesystem::path& unfinished, const std::string& name);

  std::filesystem::path folder_;
  UniqueFd lock_;
  KeptCheckpoints kept_;
};

}  // namespace lockstep
