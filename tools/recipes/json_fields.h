// SPDX-License-Identifier: BSD-3-Clause
// The JSON that the results of train and compare have in common. Only for .cpp files: it brings in
// the JSON library.
#pragma once

#include "tools/recipes/train_result.h"
#include <nlohmann/json.hpp>

namespace lockstep {

// Keeps the order in which fields are added, for people who read it.
using Json = nlohmann::ordered_json;

constexpr int schema_version = 1;

// {"lockstep": ..., "libtorch": ...}
Json versions_json();

// All fields of a result but schema_version and versions.
Json fields_of(const TrainResult& result);

}  // namespace lockstep
