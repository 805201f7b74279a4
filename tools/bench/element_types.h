// SPDX-License-Identifier: BSD-3-Clause
// The element types for measuring collectives, by their names in options.
#pragma once

#include <map>
#include <string>

#include <c10/core/ScalarType.h>

namespace lockstep::bench {

const std::map<std::string, at::ScalarType>& element_types();
// The name of one of these types.
const std::string& name_of(at::ScalarType type);

}  // namespace lockstep::bench
