// SPDX-License-Identifier: BSD-3-Clause
// The IDX format of MNIST and its kin: two zero bytes, a type, a number of dimensions, the
// dimensions as big-endian 32-bit numbers, then the elements, the last dimension fastest.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

namespace lockstep {

// The array in a file, raw or gzip (told apart by content, not by name), as a uint8 tensor of the
// file's dimensions. Only unsigned bytes are read, the type that these data sets have.
//
// UsageError, naming the file, if it is not there, is not IDX, is damaged, or does not hold
// exactly what its header says. Safe for hostile files: nothing is allocated before it is known
// that the file can fill it.
at::Tensor read_idx_file(const std::filesystem::path& path);

// The same from memory; name stands for the file in errors.
at::Tensor parse_idx(std::span<const std::byte> bytes, const std::string& name);

}  // namespace lockstep
