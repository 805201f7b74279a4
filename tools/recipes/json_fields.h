// SPDX-License-Identifier: BSD-3-Clause
// The JSON fields that results of train and compare share. Only for .cpp files, since it includes
// the JSON library.
#pragma once

#include <nlohmann/json.hpp>

#include "tools/recipes/train_result.h"

namespace lockstep {

// Keeps the order in which fields are added, for human readers.
using Json = nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;

// {"lockstep": ..., "libtorch": ...}
Json versions_json();

// All fields of a result except schema_version and versions.
Json fields_of(const TrainResult& result);

}  // namespace lockstep
