// SPDX-License-Identifier: BSD-3-Clause
// What the fuzzers do with an input: read all of it, and let no error through but CheckpointError.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <span>
#include <string>
#include <string_view>

#include <ATen/ops/zeros.h>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/safetensors/safetensors_index.h"
#include "lockstep/checkpoint/torch_file.h"
#include "lockstep/checkpoint/torch_file/pickle_machine.h"
#include "lockstep/core/error.h"

namespace lockstep::testing {

// True if the input is a good file.
inline bool fuzz_safetensors(std::span<const std::byte> input) {
  try {
    const SafetensorsFile file(input, "input");
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < file.entries().size(); ++i) {
      bytes += (file.can_read(i) ? file.read(i) : file.read_bytes(i)).nbytes();
    }
    if (bytes > input.size()) std::abort();  // more than the file has
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

inline bool fuzz_safetensors_index(std::span<const std::byte> input) {
  try {
    for (const auto& [name, file] : read_safetensors_index(bytes_in_memory(input), "input")) {
      if (file.find('/') != std::string::npos || file == "..") std::abort();  // another folder
    }
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

inline void read_elements(const TorchValue& value) {
  for (const auto& entry : all_tensors(value)) {
    if (entry.tensor.numel() > 0) (void)entry.tensor.contiguous();  // reads every element
  }
}

inline bool fuzz_torch_file(std::span<const std::byte> input) {
  try {
    read_elements(read_torch_file(input, "input"));
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

// The pickle alone: in a file its checksum would stop nearly every mutation. Storages are zeros.
inline bool fuzz_pickle(std::span<const std::byte> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  const auto zeros = [](const PickledStorage& storage, const ElementType& type) {
    constexpr std::uint64_t kMost = 1 << 16;
    const std::uint64_t unit = storage.type == nullptr ? 1 : storage.type->bytes;
    if (storage.count > kMost || !type.type) throw CheckpointError("a large or unknown storage");
    return at::zeros({static_cast<std::int64_t>(storage.count * unit / type.bytes)},
                     at::TensorOptions(*type.type));
  };
  try {
    read_elements(read_pickle(text, zeros, "input"));
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

}  // namespace lockstep::testing
