// SPDX-License-Identifier: BSD-3-Clause
// The types of elements that collectives are measured with, by the names that users give them.
#pragma once

#include <map>
#include <string>

#include <c10/core/ScalarType.h>

namespace lockstep::bench {

const std::map<std::string, at::ScalarType>& element_types();
// Of one of these.
const std::string& name_of(at::ScalarType type);

}  // namespace lockstep::bench
