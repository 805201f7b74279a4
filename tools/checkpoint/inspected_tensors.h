// SPDX-License-Identifier: BSD-3-Clause
// The tensors of a file with their hashes, as text or JSON. Only for .cpp files, since it includes
// the JSON library.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/checkpoint/tensor_source.h"
#include "tools/recipes/json_fields.h"

namespace lockstep {

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

  // A table, and a line of totals.
  std::string text() const;
  // An array of objects.
  Json json() const;

  std::vector<InspectedTensor> tensors;
  // How many are of types that this libtorch lacks.
  std::size_t unreadable = 0;
  // Of all of them.
  std::int64_t elements = 0;
  std::uint64_t bytes = 0;
};

}  // namespace lockstep
