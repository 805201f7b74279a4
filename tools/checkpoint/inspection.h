// SPDX-License-Identifier: BSD-3-Clause
// What is in a file: names, types, shapes and hashes of its tensors, as text or JSON.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tools/checkpoint/tensor_source.h"

namespace lockstep {

// Returns the SHA-256 of the elements' bytes in index order, in lower-case hexadecimal digits.
// Equal tensors have the same hash in files of both formats.
std::string sha256_of(const at::Tensor& tensor);

// Describes the file. Reads every tensor, one after another.
std::string inspection_text(const TensorSource& source);
std::string inspection_json(const TensorSource& source);

struct InspectedTensor {
  std::string name;
  std::string dtype;
  // Whether this libtorch has the type; otherwise only the bytes have been read.
  bool can_read;
  std::vector<std::int64_t> shape;
  std::int64_t elements;
  std::uint64_t bytes;
  std::string sha256;
};

struct InspectedTensors {
  // Reads every tensor, one after another.
  explicit InspectedTensors(const TensorSource& source);

  // Returns a table, and a line of totals.
  std::string text() const;
  // Returns an array of objects.
  nlohmann::ordered_json json() const;

  std::vector<InspectedTensor> tensors;
  // The number of tensors whose types this libtorch lacks.
  std::size_t unreadable = 0;
  // The sums over all tensors.
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
};

}  // namespace lockstep
