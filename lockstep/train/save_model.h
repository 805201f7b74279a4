// SPDX-License-Identifier: BSD-3-Clause
// Saves a net so that its file is never there in part.
#pragma once

#include <filesystem>
#include <memory>

#include <torch/nn/module.h>

namespace lockstep {

// As torch::save. The errors are those of WholeFile, of which check_can_write tells beforehand
// those of the path.
void save_model(const std::shared_ptr<torch::nn::Module>& net, const std::filesystem::path& file);

}  // namespace lockstep
