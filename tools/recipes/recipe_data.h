// SPDX-License-Identifier: BSD-3-Clause
// Loads the data of the recipes: MNIST-like images, image files, and text cut into windows; and
// makes their loaders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <variant>

#include "lockstep/comm/process_group.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/data/epoch_sampler.h"
#include "lockstep/data/memory_loader.h"
#include "tools/recipes/recipe.h"

namespace lockstep {

// Both splits of a folder as float32 [N, 1, 28, 28], standardized with the training images'
// statistics, and int64 labels from 0 to 9. Collective. UsageError for images of another size and
// for other labels.
TrainingData load_images(const std::filesystem::path& folder, ProcessGroup& group);

// Whether the folder has a subfolder `train` or `val`, and so is meant for load_image_files().
bool has_image_folders(const std::filesystem::path& folder);

// UsageError, naming what is missing, unless the folder has both subfolders, or, without either,
// data in MNIST's format. Opens no file.
void require_images(const std::filesystem::path& folder);

// The subfolders `train` and `val` of the folder, as ImageFolders. Images get `image_size` rows and
// columns, and are standardized with ImageNet's mean and standard deviation of each channel: for
// training, a random part of the image, which may be mirrored; for the test, its middle. A damaged
// file is skipped with a warning.
//
// Collective. UsageError as by ImageFolder, if a class is in one of the subfolders only, and on
// every rank if ranks have other classes or numbers of images.
TrainingData load_image_files(const std::filesystem::path& folder, std::int64_t image_size,
                              ProcessGroup& group);

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

// Batches of rows in memory, or of files that workers read.
using RecipeLoader = std::variant<MemoryLoader, DataLoader>;

// The loaders of the training set and of the test set. For rows in memory, only the batch size and
// the device of the options count. For files, the loader adds the transforms.
RecipeLoader training_loader(const TrainingData& data, std::unique_ptr<EpochSampler> sampler,
                             DataLoaderOptions options);
RecipeLoader test_loader(const TrainingData& data, const DistributedSampler& sampler,
                         DataLoaderOptions options);

}  // namespace lockstep
