// SPDX-License-Identifier: BSD-3-Clause
// Printing that notices where the output is lost.
#pragma once

#include <cstdio>
#include <string_view>

#include <CLI/CLI.hpp>

namespace lockstep::cli {

// Writes the text at once. Returns why it could not be written, as an errno, or 0.
int print(std::FILE* stream, std::string_view text);

// BackendError if print() on standard output returned other than 0.
void check_output(int error);

// Prints the answer to --help or --version, which the parser throws as an error with exit code 0.
// BackendError if it cannot be written.
void print_answer(const ::CLI::App& app, const ::CLI::ParseError& asked);

}  // namespace lockstep::cli
