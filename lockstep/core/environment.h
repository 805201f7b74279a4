// SPDX-License-Identifier: BSD-3-Clause
// Reading environment variables, with errors that name the variable and its value.
#pragma once

#include <limits>
#include <optional>
#include <string>

#include "lockstep/core/number.h"

namespace lockstep {

// The variable's value; nothing if it is unset or empty.
std::optional<std::string> environment(const char* name);

// Indices, which start at 0; and counts, which start at 1.
constexpr Range<int> kFrom0{0, std::numeric_limits<int>::max()};
constexpr Range<int> kFrom1{1, std::numeric_limits<int>::max()};

// The variable as a whole number, see number.h. UsageError for anything else.
std::optional<int> environment_int(const char* name, const Range<int>& range = kFrom0);

// OMP_NUM_THREADS; of a list, which OpenMP allows, the first number, that of the outermost level.
std::optional<int> omp_num_threads();

}  // namespace lockstep
