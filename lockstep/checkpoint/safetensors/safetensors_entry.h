// SPDX-License-Identifier: BSD-3-Clause
// Public. A tensor as the header of a safetensors file describes it: for safetensors.h and for the
// parser.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // as the file has it: "F32", "BF16", "I64", ...
  std::vector<std::int64_t> shape;
  // Bytes, counted from the start of the data.
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  // The name of the file that has the tensor, if an index was opened; else empty.
  std::string part = {};
};

}  // namespace lockstep
