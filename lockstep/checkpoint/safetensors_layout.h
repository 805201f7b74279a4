// SPDX-License-Identifier: BSD-3-Clause
// Where everything lies in a safetensors file that is to be written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/element_type.h"
#include "lockstep/checkpoint/safetensors.h"

namespace lockstep {

struct SafetensorsItem {
  std::string name;
  const ElementType* type;
  std::vector<std::int64_t> shape;
};

struct SafetensorsLayout {
  // All that precedes the data.
  std::string head;
  // As the items; offsets count from the start of the data.
  std::vector<SafetensorsEntry> entries;
  // The items' indices, in the order in which they lie: wide elements first, so that every tensor
  // is aligned.
  std::vector<std::size_t> order;
  std::uint64_t data_bytes = 0;
};

// UsageError for what write_safetensors refuses.
SafetensorsLayout lay_out_safetensors(const std::vector<SafetensorsItem>& items,
                                      const std::map<std::string, std::string>& metadata);

}  // namespace lockstep
