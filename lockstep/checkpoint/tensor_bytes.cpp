// SPDX-License-Identifier: BSD-3-Clause
// Copies to the host, checks, and allocates what a file announces.
#include "lockstep/checkpoint/tensor_bytes.h"

#include <algorithm>
#include <bit>

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include "lockstep/checkpoint/in_quotes.h"
#include "lockstep/core/error.h"
#include "lockstep/core/process/cpu.h"
#include "lockstep/tensor/device_copies.h"

namespace lockstep {
namespace {

static_assert(std::endian::native == std::endian::little, "the files are little-endian");

at::Tensor empty_tensor(std::uint64_t elements, at::ScalarType type, const std::string& entry) {
  try {
    return at::empty({static_cast<std::int64_t>(elements)}, at::TensorOptions(type));
  } catch (const c10::Error& error) {
    throw CheckpointError(fmt::format("{} does not fit into memory: {}", entry, first_line(error)));
  }
}

}  // namespace

void require_memory_for(std::uint64_t bytes, const std::string& what) {
  constexpr std::uint64_t kAlways = 16 << 20;  // to ask costs more than such a tensor
  if (bytes <= kAlways) return;
  const auto available = static_cast<std::uint64_t>(available_memory());
  if (bytes <= available) return;
  throw CheckpointError(
      fmt::format("{} takes {:.1f} MiB, more memory than the {:.1f} MiB that are available", what,
                  static_cast<double>(bytes) / 0x1p20, static_cast<double>(available) / 0x1p20));
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

}  // namespace lockstep
