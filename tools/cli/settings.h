// SPDX-License-Identifier: BSD-3-Clause
// `--set key=value`, another way to write the options of a recipe, for programs that tune them.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// Describes --set to the parser of `train` or `compare`, for --help.
void describe_settings(::CLI::App& app);

// The arguments with each `--set lr=0.1` written as `--lr=0.1`, so that the option itself checks
// the value. A key may have underscores. UsageError for a key that is not a recipe's option of this
// command, listing those, and for a setting without a value. `app` has described all its options.
std::vector<std::string> expand_settings(const std::vector<std::string>& arguments,
                                         const ::CLI::App& app);

}  // namespace lockstep::cli
