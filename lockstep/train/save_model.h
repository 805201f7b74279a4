// SPDX-License-Identifier: BSD-3-Clause
// Saves a net so that its file is never there in part.
#pragma once

#include <filesystem>
#include <memory>

#include <torch/nn/module.h>

namespace lockstep {

// UsageError if a file could not be written there, so that this is known before the training.
void check_can_save(const std::filesystem::path& file);

// As torch::save, to a temporary name beside the file, which is then renamed. BackendError if that
// fails, and an older file is as it was.
void save_model(const std::shared_ptr<torch::nn::Module>& net, const std::filesystem::path& file);

}  // namespace lockstep
