// SPDX-License-Identifier: BSD-3-Clause
// The table of element types.
#include "lockstep/checkpoint/element_type.h"

#include <algorithm>
#include <array>

#include "lockstep/libtorch_compat.h"

namespace lockstep {
namespace {

ElementType row_of_later_type(std::string_view safetensors, std::string_view dtype,
                              std::uint64_t bytes) {
  return {safetensors, "", dtype, bytes, libtorch::later_type(dtype)};
}

const auto& table_of_element_types() {
  static const std::array kTable{
      ElementType{"F64", "DoubleStorage", "float64", 8, at::kDouble},
      ElementType{"F32", "FloatStorage", "float32", 4, at::kFloat},
      ElementType{"F16", "HalfStorage", "float16", 2, at::kHalf},
      ElementType{"BF16", "BFloat16Storage", "bfloat16", 2, at::kBFloat16},
      ElementType{"I64", "LongStorage", "int64", 8, at::kLong},
      ElementType{"I32", "IntStorage", "int32", 4, at::kInt},
      ElementType{"I16", "ShortStorage", "int16", 2, at::kShort},
      ElementType{"I8", "CharStorage", "int8", 1, at::kChar},
      ElementType{"U8", "ByteStorage", "uint8", 1, at::kByte},
      ElementType{"BOOL", "BoolStorage", "bool", 1, at::kBool},
      ElementType{"C64", "ComplexFloatStorage", "complex64", 8, at::kComplexFloat},
      ElementType{"", "ComplexDoubleStorage", "complex128", 16, at::kComplexDouble},
      row_of_later_type("U16", "uint16", 2),
      row_of_later_type("U32", "uint32", 4),
      row_of_later_type("U64", "uint64", 8),
      row_of_later_type("F8_E4M3", "float8_e4m3fn", 1),
      row_of_later_type("F8_E5M2", "float8_e5m2", 1),
      row_of_later_type("F8_E4M3FNUZ", "float8_e4m3fnuz", 1),
      row_of_later_type("F8_E5M2FNUZ", "float8_e5m2fnuz", 1),
      row_of_later_type("F8_E8M0", "float8_e8m0fnu", 1),
  };
  return kTable;
}

template <class Value>
const ElementType* find_row(const Value& value, Value ElementType::*column) {
  const auto& table = table_of_element_types();
  const auto row = std::ranges::find(table, value, column);
  return row == table.end() || value == Value{} ? nullptr : &*row;
}

}  // namespace

const ElementType* find_safetensors_type(std::string_view name) {
  return find_row(name, &ElementType::safetensors);
}

const ElementType* find_storage_type(std::string_view name) {
  return find_row(name, &ElementType::storage);
}

const ElementType* find_dtype(std::string_view name) {
  return find_row(name, &ElementType::dtype);
}

const ElementType* find_element_type(at::ScalarType type) {
  return find_row(std::optional(type), &ElementType::type);
}

}  // namespace lockstep
