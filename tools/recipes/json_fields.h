// SPDX-License-Identifier: BSD-3-Clause
// The JSON fields that the results of the command share. Only for .cpp files, since it includes the
// JSON library.
#pragma once

#include <nlohmann/json.hpp>

namespace lockstep {

struct TrainResult;

// Keeps the order in which fields are added, for human readers.
using Json = nlohmann::ordered_json;

constexpr int kSchemaVersion = 1;

// {"lockstep": ..., "libtorch": ...}
Json versions_json();

// Returns all fields of a result (train_result.h) except schema_version and versions.
Json fields_of(const TrainResult& result);

}  // namespace lockstep
