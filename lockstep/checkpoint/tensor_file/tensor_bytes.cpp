// SPDX-License-Identifier: BSD-3-Clause
// The table of element types; copies to the host; allocates what a file announces, and checks it.
#include "lockstep/checkpoint/tensor_file/tensor_bytes.h"

#include <algorithm>
#include <array>
#include <bit>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "lockstep/core/error.h"
#include "lockstep/core/in_quotes.h"
#include "lockstep/core/process/memory.h"
#include "lockstep/libtorch_compat.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

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

at::Tensor empty_tensor(std::uint64_t elements, at::ScalarType type, const std::string& entry) {
  try {
    return at::empty({static_cast<std::int64_t>(elements)}, at::TensorOptions(type));
  } catch (const c10::Error& error) {
    throw CheckpointError(fmt::format("{} does not fit into memory: {}", entry, first_line(error)));
  }
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

const ElementType& element_type_of(const at::Tensor& tensor, const std::string& name) {
  if (!tensor.defined()) {
    throw UsageError(
        fmt::format("the tensor {} is undefined and cannot be saved", in_quotes(name)));
  }
  const auto refuse = [&](const char* why) {
    throw UsageError(fmt::format("the tensor {} ({}) cannot be saved: {}", in_quotes(name),
                                 tensor.toString(), why));
  };
  const ElementType* type = find_element_type(tensor.scalar_type());
  if (tensor.is_meta()) refuse("it is on the device meta, where it has no elements");
  if (tensor.layout() != at::kStrided)
    refuse("it is sparse or of another layout; save tensor.to_dense()");
  if (tensor.is_quantized()) refuse("it is quantized; save tensor.dequantize()");
  if (type == nullptr) {
    refuse(
        "files have no such type; save tensor.view(torch::kByte), or convert it with tensor.to()");
  }
  return *type;
}

at::Tensor in_index_order(const at::Tensor& tensor) {
  return on_host(tensor).detach();
}

const void* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() && tensor.numel() > 0 ? tensor.data_ptr() : nullptr;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

void require_memory_for(std::uint64_t bytes, const std::string& what) {
  constexpr std::uint64_t kUnchecked = 16 << 20;  // asking would cost more than such a tensor
  if (bytes <= kUnchecked) return;
  const auto available = static_cast<std::uint64_t>(available_memory());
  if (bytes <= available) return;
  throw CheckpointError(
      fmt::format("{} takes {:.1f} MiB, more memory than the {:.1f} MiB that are available", what,
                  static_cast<double>(bytes) / 0x1p20, static_cast<double>(available) / 0x1p20));
}

at::Tensor tensor_from_bytes(const ElementType& type, std::uint64_t elements,
                             const std::function<void(std::span<std::byte> output)>& read,
                             const std::string& entry) {
  if (!type.type) {
    throw CheckpointError(
        fmt::format("{} has elements of type {}, which this libtorch lacks; "
                    "build Lockstep with a later one, or convert the file",
                    entry, type.dtype));
  }
  require_memory_for(elements * type.bytes, entry);
  const at::Tensor tensor = empty_tensor(elements, *type.type, entry);
  const std::span output(static_cast<std::byte*>(tensor.data_ptr()), elements * type.bytes);
  read(output);
  if (*type.type == at::kBool) {
    const auto wrong = std::ranges::find_if(output, [](std::byte b) { return b > std::byte{1}; });
    if (wrong != output.end()) {
      throw CheckpointError(
          fmt::format("{}: element {} has the byte {}, but an element of type "
                      "bool is 0 or 1",
                      entry, wrong - output.begin(), std::to_integer<int>(*wrong)));
    }
  }
  return tensor;
}

}  // namespace lockstep
