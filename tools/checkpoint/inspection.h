// SPDX-License-Identifier: BSD-3-Clause
// What is in a file: names, types, shapes and hashes of its tensors.
#pragma once

#include <string>

#include "tools/checkpoint/tensor_source.h"

namespace lockstep {

// Lower-case hexadecimal digits of the SHA-256 of the elements' bytes in index order. The same for
// the same tensor in files of both formats.
std::string sha256_of(const at::Tensor& tensor);

// Reads every tensor, one after another.
std::string inspection_text(const TensorSource& source);
std::string inspection_json(const TensorSource& source);

}  // namespace lockstep
