// SPDX-License-Identifier: BSD-3-Clause
// Reads the pickles of torch.save. Calls nothing: it knows the few names that build tensors and
// dicts, and refuses every other.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/checkpoint/torch_file/pickled_values.h"
#include "lockstep/checkpoint/torch_file/torch_value.h"

namespace lockstep {

constexpr std::uint64_t kMostPickleBytes = 32 << 20;

// Returns the value in the pickle. `file` is for messages. CheckpointError as for read_torch_file.
TorchValue read_pickle(std::string_view pickle, const StorageReader& storages,
                       const std::string& file);

}  // namespace lockstep
