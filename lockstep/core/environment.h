// SPDX-License-Identifier: BSD-3-Clause
// Reads environment variables, with errors that name the variable and its value; and the type of a
// started program's variables.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/number.h"

namespace lockstep {

// Names and values.
using EnvironmentVariables = std::vector<std::pair<std::string, std::string>>;

// nullopt if the variable is unset or empty.
std::optional<std::string> environment(const char* name);

// Indices start at 0, counts at 1.
constexpr Range<int> kFrom0{0, std::numeric_limits<int>::max()};
constexpr Range<int> kFrom1{1, std::numeric_limits<int>::max()};

// The variable as a whole number (number.h); nullopt if it is unset or empty. UsageError for
// anything else.
std::optional<int> environment_int(const char* name, const Range<int>& range = kFrom0);

// OMP_NUM_THREADS. OpenMP allows a list; this is its first number, for the outermost level.
std::optional<int> omp_num_threads();

}  // namespace lockstep
