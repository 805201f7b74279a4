// SPDX-License-Identifier: BSD-3-Clause
// Loads MNIST-like images and prepares them for a recipe.
#pragma once

#include <filesystem>

#include "tools/recipes/recipe.h"

namespace lockstep {

// Both splits of a folder as float32 [N, 1, 28, 28], standardized with the training images'
// statistics, and int64 labels from 0 to 9. Collective. UsageError for images of another size and
// for other labels.
TrainingData load_images(const std::filesystem::path& folder, ProcessGroup& group);

}  // namespace lockstep
