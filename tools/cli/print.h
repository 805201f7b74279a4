// SPDX-License-Identifier: BSD-3-Clause
// Printing that notices lost output.
#pragma once

#include <cstdio>
#include <string_view>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// Writes the text at once. Returns 0, or an errno if the text could not be written.
int print(std::FILE* stream, std::string_view text);

// BackendError if `error`, the result of print() on standard output, is not 0.
void check_output(int error);

// Prints the answer to --help or --version, which the parser throws as an error with exit code 0.
// BackendError if it cannot be written.
void print_answer(const ::CLI::App& app, const ::CLI::ParseError& asked);

}  // namespace lockstep::cli
