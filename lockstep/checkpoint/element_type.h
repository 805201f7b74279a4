// SPDX-License-Identifier: BSD-3-Clause
// The element types of tensors in files: their names in each format, and their types in libtorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <c10/core/ScalarType.h>

namespace lockstep {

struct ElementType {
  std::string_view safetensors;  // "F32"; empty if that format has no such type
  std::string_view storage;      // "FloatStorage"; empty if torch.save names the dtype instead
  std::string_view dtype;        // "float32", as Python calls it
  std::uint64_t bytes;           // of one element
  // nullopt if this libtorch has no such type.
  std::optional<at::ScalarType> type;
};

// Each returns null if there is no such type. The result lives as long as the program.
const ElementType* find_safetensors_type(std::string_view name);
const ElementType* find_storage_type(std::string_view name);
const ElementType* find_dtype(std::string_view name);
const ElementType* find_element_type(at::ScalarType type);

}  // namespace lockstep
