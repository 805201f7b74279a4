// SPDX-License-Identifier: BSD-3-Clause
// What is in a checkpoint of a training run, and whether checkpoints are undamaged.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "tools/checkpoint/difference.h"

namespace lockstep {

// Returns the folder itself if it has a manifest; the newest checkpoint in it if it is a folder of
// checkpoints. UsageError for any other folder.
std::filesystem::path find_checkpoint(const std::filesystem::path& folder);

// Reads the manifest, and every file that it names. CheckpointError, naming the file and what is
// wrong with it.
std::string checkpoint_text(const std::filesystem::path& checkpoint);
std::string checkpoint_json(const std::filesystem::path& checkpoint);

// Returns the model file of the checkpoint if the path is a folder as above; otherwise the path.
std::filesystem::path model_file(const std::filesystem::path& path);

// Returns the differences between all files of two checkpoints, found as above. Each tensor's name
// follows the name of its file. A file that only one checkpoint has is one difference.
// CheckpointError as for checkpoint_text.
std::vector<TensorDifference> checkpoint_differences(const std::filesystem::path& first,
                                                     const std::filesystem::path& second);

struct CheckpointVerdict {
  std::filesystem::path checkpoint;
  std::string text;
  bool is_damaged;
};

// Reads all of a checkpoint, or of each one in a folder of checkpoints, newest first, and compares
// it with the hashes. A checkpoint that a training run removes meanwhile is left out. UsageError
// as above; BackendError if the disk fails.
std::vector<CheckpointVerdict> verify_checkpoints(const std::filesystem::path& folder);

}  // namespace lockstep
