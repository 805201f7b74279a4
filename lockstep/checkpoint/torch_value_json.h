// SPDX-License-Identifier: BSD-3-Clause
// Values of Python without tensors as JSON: the parameter groups of an optimizer.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/checkpoint/torch_file.h"

namespace lockstep {

// Tuples become lists. UsageError for a tensor.
nlohmann::json to_json(const TorchValue& value);
TorchValue torch_value(const nlohmann::json& json);

}  // namespace lockstep
