// SPDX-License-Identifier: BSD-3-Clause
// Saves a net; the file is never incomplete.
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include <torch/nn/module.h>

#include "lockstep/tensor/named_tensor.h"

namespace lockstep {

// The format of a file of tensors that its extension names: .safetensors; or .pt, .pth and .bin;
// unnamed without an extension. UsageError for any other, which may be misspelt.
enum class NamedFormat { unnamed, safetensors, torch };
NamedFormat format_named_by(const std::filesystem::path& file);

// A file named *.safetensors gets the state_dict and `more` in that format, for readers in any
// language. Any other that format_named_by() takes is written like torch::save, with more tensors,
// which torch::load(net, file) skips. In the file, a name such as "standardization.mean" is the
// entry mean of an archive standardization. Throws what WholeFile throws; check_can_write detects
// errors in the path beforehand.
void save_model(const std::shared_ptr<torch::nn::Module>& net, const std::filesystem::path& file,
                const std::vector<NamedTensor>& more = {});

}  // namespace lockstep
