// SPDX-License-Identifier: BSD-3-Clause
// Loads the data of the recipes: MNIST-like images, and text cut into windows.
#pragma once

#include <cstdint>
#include <filesystem>

#include "lockstep/comm/process_group.h"
#include "tools/recipes/recipe.h"

namespace lockstep {

// Both splits of a folder as float32 [N, 1, 28, 28], standardized with the training images'
// statistics, and int64 labels from 0 to 9. Collective. UsageError for images of another size and
// for other labels.
TrainingData load_images(const std::filesystem::path& folder, ProcessGroup& group);

// The bytes of a text sample.
constexpr std::int64_t kTextWindow = 64;

// UsageError unless the path names a regular file, or a folder with regular files, of enough bytes
// for ten windows, and of no more than the memory that is available. Reads no file.
void require_text(const std::filesystem::path& path);

// The text is the file, or the concatenated regular files of the folder in the order of their
// names; subfolders and symbolic links in the folder are skipped. Samples are consecutive windows,
// uint8 [N, kTextWindow], and their targets the same windows one byte later; a partial window at
// the end is dropped. The last tenth of the windows is the test set. All four tensors share the
// text's memory, one byte per byte.
//
// Collective. UsageError as by require_text, for a file that changes while it is read, and on every
// rank if ranks have different texts.
TrainingData load_text(const std::filesystem::path& path, ProcessGroup& group);

}  // namespace lockstep
