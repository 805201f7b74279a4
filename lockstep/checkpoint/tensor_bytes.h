// SPDX-License-Identifier: BSD-3-Clause
// The bytes of a tensor's elements, on their way to a file and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

#include "lockstep/checkpoint/element_type.h"
#include "lockstep/core/error.h"

namespace lockstep {

// The elements in index order, in this machine's memory. Shares the tensor's memory if they are
// already there in this order; otherwise a copy.
at::Tensor in_index_order(const at::Tensor& tensor);

// Where the elements begin: tells parameters apart. Null if there are none, or if they have no
// memory of their own, as in a sparse tensor.
const void* memory_of(const at::Tensor& tensor);

// Of a tensor that in_index_order returned.
std::span<const std::byte> bytes_of(const at::Tensor& tensor);

// CheckpointError if memory is lacking for so many bytes; `what` takes them, for messages.
void require_memory_for(std::uint64_t bytes, const std::string& what);

// A new tensor of one dimension, filled by `read`. `entry` is for messages: the file and the entry.
// CheckpointError if this libtorch has no such type, if memory is lacking, or if an element of type
// bool is neither 0 nor 1, which C++ cannot hold.
at::Tensor tensor_from_bytes(const ElementType& type, std::uint64_t elements,
                             const std::function<void(std::span<std::byte> output)>& read,
                             const std::string& entry);

// What `read` returns. CheckpointError instead of std::bad_alloc: a file that memory is lacking for
// is one that cannot be read.
template <class Read>
auto with_memory_errors(const std::string& file, const Read& read) {
  try {
    return read();
  } catch (const std::bad_alloc&) {
    throw CheckpointError(file + ": it does not fit into the memory that is available");
  }
}

// The row of a tensor's type. UsageError, naming the tensor, if it is undefined, sparse, quantized
// or on the device meta, or if files have no such type.
const ElementType& element_type_of(const at::Tensor& tensor, const std::string& name);

}  // namespace lockstep
