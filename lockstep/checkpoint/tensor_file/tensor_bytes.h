// SPDX-License-Identifier: BSD-3-Clause
// The elements of tensors in files: their types in each format, their bytes on the way to a file
// and back, and the limits of one file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "lockstep/core/error.h"

namespace lockstep {

// Limits of one file, whatever its format.
constexpr std::size_t kMostStoredTensors = 250'000;
constexpr std::size_t kMostNameBytes = 4'096;

struct ElementType {
  std::string_view safetensors;  // "F32"; empty if that format has no such type
  std::string_view storage;      // "FloatStorage"; empty if torch.save names the dtype instead
  std::string_view dtype;        // "float32", as Python calls it
  std::uint64_t bytes;           // per element
  // nullopt if this libtorch has no such type.
  std::optional<at::ScalarType> type;
};

// Each returns null if there is no such type. The result lives as long as the program.
const ElementType* find_safetensors_type(std::string_view name);
const ElementType* find_storage_type(std::string_view name);
const ElementType* find_dtype(std::string_view name);
const ElementType* find_element_type(at::ScalarType type);

// Returns the type of the tensor's elements. UsageError, naming the tensor, if it is undefined,
// sparse, quantized or on the device meta, or if files have no such type.
const ElementType& element_type_of(const at::Tensor& tensor, const std::string& name);

// Returns the elements in index order, in this machine's memory. The result shares the tensor's
// memory if they are already there in this order; otherwise it is a copy.
at::Tensor in_index_order(const at::Tensor& tensor);

// Returns the address of the first element, which tells parameters apart. Null if there are no
// elements, or if they have no memory of their own, as in a sparse tensor.
const void* memory_of(const at::Tensor& tensor);

// Returns the bytes of a tensor that in_index_order() returned.
std::span<const std::byte> bytes_of(const at::Tensor& tensor);

// CheckpointError if less than `bytes` bytes of memory are available. `what` is what
// needs them, for messages.
void require_memory_for(std::uint64_t bytes, const std::string& what);

// Returns a new tensor of one dimension, filled by `read`. `entry` is for messages: the file and
// the entry. CheckpointError if this libtorch has no such type, if memory is lacking, or if an
// element of type bool is neither 0 nor 1, which C++ cannot hold.
at::Tensor tensor_from_bytes(const ElementType& type, std::uint64_t elements,
                             const std::function<void(std::span<std::byte> output)>& read,
                             const std::string& entry);

// Returns what `read` returns. Throws CheckpointError instead of std::bad_alloc: a file that does
// not fit into memory cannot be read.
template <class Read>
auto with_memory_errors(const std::string& file, const Read& read) {
  try {
    return read();
  } catch (const std::bad_alloc&) {
    throw CheckpointError(file + ": it does not fit into the memory that is available");
  }
}

}  // namespace lockstep
