// SPDX-License-Identifier: BSD-3-Clause
// Saves a net so that its file is never incomplete.
#pragma once

#include <filesystem>
#include <memory>

#include <torch/nn/module.h>

namespace lockstep {

// Like torch::save. Throws what WholeFile throws; check_can_write detects errors in the path
// beforehand.
void save_model(const std::shared_ptr<torch::nn::Module>& net, const std::filesystem::path& file);

}  // namespace lockstep
